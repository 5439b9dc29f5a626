"""The gold answers of public benchmarks, judged against themselves and against each other."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mprm.annotation.checker import AnswerChecker
from mprm.annotation.checker_pool import Job
from mprm.answers.compare import read_answer, same_answer
from mprm.answers.options import are_letters
from mprm.data.questions import read_questions
from mprm.data.types import Question
from tests.conftest import SHARED

pytest.importorskip("math_verify")


def math500(path: Path) -> list[Question]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Question(id=r["unique_id"], question=r["problem"], answer=r["answer"]) for r in records]


FILES = {
    "mathvision": (SHARED / "data/mathvision/test.jsonl", read_questions, 3040),
    "dynamath": (SHARED / "data/dynamath/dataset.json", read_questions, 501),
    "math500": (SHARED / "data/math500/test500.jsonl", math500, 500),
}


@pytest.fixture(scope="module", params=FILES)
def questions(request: pytest.FixtureRequest) -> list[Question]:
    path, read, n_questions = FILES[request.param]
    if not path.exists():
        pytest.skip(f"{request.param} is not in shared/data")
    found = read(path)
    assert len(found) == n_questions
    return found


@pytest.fixture(scope="module")
def checker() -> Iterator[AnswerChecker]:
    with AnswerChecker(timeout_s=30) as checker:
        yield checker


def response(answer: str) -> str:
    return f"We look at the figure.\n\nTherefore the answer is \\boxed{{{answer}}}."


def test_every_gold_answer_is_right_for_its_own_question(checker: AnswerChecker, questions: list[Question]) -> None:
    found = checker.check_many([(response(q.answer), q) for q in questions])
    assert [(q.id, q.answer, j) for q, j in zip(questions, found, strict=True) if j.verdict != "correct"] == []


def test_algebra_alone_finds_every_mathematical_gold_answer_equal_to_itself(
    checker: AnswerChecker, questions: list[Question]
) -> None:
    readings = [read_answer(question.answer) for question in questions if not question.options]
    jobs = [Job(r.latex, (r.latex,)) for r in dict.fromkeys(readings) if r.kind != "words"]
    outcomes = dict(checker._pool.run(jobs))
    not_equal = [jobs[place].answer for place, outcome in outcomes.items() if outcome.equal != 0]
    # DynaMath has the time 5:0, which is 5/0 to math-verify
    assert [answer for answer in not_equal if answer != "5:0"] == []


def test_the_text_of_the_right_option_is_right(checker: AnswerChecker, questions: list[Question]) -> None:
    # a letter is the name of an option first: E, the text of option D of question 742, chooses option E
    choices = [
        q
        for q in questions
        if len({read_answer(o).key for o in q.options}) == len(q.options) > 0
        and (are_letters(q.options) or not any(re.fullmatch(r"\W*(?:text)?\W*[A-Za-z]\W*", o) for o in q.options))
    ]
    texts = [q.options["ABCDEFGHIJ".index(q.answer)] for q in choices]
    found = checker.check_many([(response(text), q) for text, q in zip(texts, choices, strict=True)])
    assert [(q.id, text, j) for q, text, j in zip(choices, texts, found, strict=True) if j.verdict != "correct"] == []


def test_the_gold_answer_of_another_question_is_wrong(checker: AnswerChecker, questions: list[Question]) -> None:
    rng = random.Random(0)
    pairs = []
    while len(pairs) < 200:
        one, other = rng.sample(questions, 2)
        numbers = read_answer(one.answer).number, read_answer(other.answer).number
        if one.options or other.options or None in numbers:
            continue
        if abs(float(numbers[0].value) - float(numbers[1].value)) > 0.1:
            pairs.append((response(other.answer), one))
    # 50% of one question may be 0.5 of another: no such pair is among these golds
    assert {judged.verdict for judged in checker.check_many(pairs)} == {"wrong"}


def test_algebra_alone_finds_other_gold_answers_different(checker: AnswerChecker, questions: list[Question]) -> None:
    rng = random.Random(1)
    readings = [r for q in questions if not q.options and (r := read_answer(q.answer)).kind == "mathematics"]
    jobs = []
    while len(jobs) < 60:
        one, other = rng.sample(readings, 2)
        if same_answer(one, other) is None:
            jobs.append(Job(one.latex, (other.latex,)))
    equal = [jobs[place] for place, outcome in checker._pool.run(jobs) if outcome.equal is not None]
    assert equal == []


def test_another_letter_is_wrong(checker: AnswerChecker, questions: list[Question]) -> None:
    choices = [q for q in questions if q.options]
    others = ["B" if q.answer == "A" else "A" for q in choices]
    found = checker.check_many([(response(letter), q) for letter, q in zip(others, choices, strict=True)])
    assert {judged.verdict for judged in found} <= {"wrong"}


def test_verdicts_on_real_responses_are_those_that_were_published(checker: AnswerChecker) -> None:
    path = SHARED / "data/gsm8k/example_model_solutions.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not in shared/data")
    pairs, labels = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        question = Question(id="1", question=record["question"], answer=record["ground_truth"].split("\nA: ")[-1])
        for solution in (value for value in record.values() if isinstance(value, dict)):
            # the file's own mark for the answer is the name of an option elsewhere
            pairs.append((solution["solution"].replace("\nA: ", "\nAnswer: "), question))
            labels.append("correct" if solution["is_correct"] else "wrong")
    assert (len(labels), labels.count("correct")) == (5276, 2001)
    assert [judged.verdict for judged in checker.check_many(pairs)] == labels


def test_the_written_solutions_of_math500_are_right(checker: AnswerChecker) -> None:
    path = SHARED / "data/math500/test500.jsonl"
    if not path.exists():
        pytest.skip("MATH-500 is not in shared/data")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = checker.check_many([(r["solution"], q) for r, q in zip(records, math500(path), strict=True)])
    assert [(r["answer"], j) for r, j in zip(records, found, strict=True) if j.verdict != "correct"] == []

"""The gold answers of public benchmarks, graded against themselves and against each other.

The whole files where they lie in ../shared beside the checkout, else the excerpts in tests/data/public.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mprm.annotation.checker import AnswerChecker
from mprm.answers.compare import ParsedAnswer, read_answer, same_answer
from mprm.answers.grade import Comparison, grade_by_algebra
from mprm.answers.options import are_letters
from mprm.data.questions import read_questions
from mprm.data.types import Question
from tests.conftest import EXCERPTS, WHOLE

pytest.importorskip("math_verify")


FILES = {
    "mathvision/test.jsonl": (read_questions, 3040, 145),
    "dynamath/dataset.json": (read_questions, 501, 120),
    "math500/test500.jsonl": (read_questions, 500, 120),
}
"""How each is read, and the number of questions of the whole file and of the excerpt."""


def public(name: str) -> Path:
    return WHOLE / name if (WHOLE / name).exists() else EXCERPTS / name


@pytest.fixture(scope="module", params=FILES)
def questions(request: pytest.FixtureRequest) -> list[Question]:
    read, n_whole, n_excerpt = FILES[request.param]
    path = public(request.param)
    questions = read(path)
    assert len(questions) == (n_whole if path.is_relative_to(WHOLE) else n_excerpt)
    return questions


@pytest.fixture(scope="module")
def checker() -> Iterator[AnswerChecker]:
    with AnswerChecker(timeout_s=30) as checker:
        yield checker


def response(answer: str) -> str:
    return f"We look at the figure.\n\nTherefore the answer is \\boxed{{{answer}}}."


def test_every_gold_answer_is_right_for_its_own_question(checker: AnswerChecker, questions: list[Question]) -> None:
    grades = checker.check_many([(response(q.answer), q) for q in questions])
    assert [(q.id, q.answer, g) for q, g in zip(questions, grades, strict=True) if g.grade != "correct"] == []


def comparison(answer: ParsedAnswer, gold: ParsedAnswer) -> Comparison:
    return Comparison(answer.latex, (gold.latex,), answer.key, (answer.key,))


def test_algebra_alone_finds_every_mathematical_gold_answer_equal_to_itself(questions: list[Question]) -> None:
    answers = dict.fromkeys(read_answer(question.answer) for question in questions if not question.options)
    mathematical = [answer for answer in answers if answer.kind != "words"]
    assert len(mathematical) > 40
    not_equal = [a.latex for a in mathematical if grade_by_algebra(comparison(a, a)).grade != "correct"]
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
    grades = checker.check_many([(response(text), q) for text, q in zip(texts, choices, strict=True)])
    assert [(q.id, text, g) for q, text, g in zip(choices, texts, grades, strict=True) if g.grade != "correct"] == []


def test_the_gold_answer_of_another_question_is_incorrect(checker: AnswerChecker, questions: list[Question]) -> None:
    rng = random.Random(0)
    pairs = []
    while len(pairs) < 200:
        question, other = rng.sample(questions, 2)
        numbers = read_answer(question.answer).number, read_answer(other.answer).number
        if question.options or other.options or None in numbers:
            continue
        if abs(float(numbers[0].value) - float(numbers[1].value)) > 0.1:
            pairs.append((response(other.answer), question))
    # 50% of one question may be 0.5 of another: no such pair is among these golds
    assert {graded.grade for graded in checker.check_many(pairs)} == {"incorrect"}


def test_algebra_alone_finds_other_gold_answers_different(questions: list[Question]) -> None:
    rng = random.Random(1)
    answers = [a for q in questions if not q.options and (a := read_answer(q.answer)).kind == "mathematics"]
    comparisons = []
    while len(comparisons) < 60:
        answer, gold = rng.sample(answers, 2)
        if same_answer(answer, gold) is None:
            comparisons.append(comparison(answer, gold))
    assert [c for c in comparisons if grade_by_algebra(c).grade == "correct"] == []


def test_another_letter_is_incorrect(checker: AnswerChecker, questions: list[Question]) -> None:
    choices = [q for q in questions if q.options]
    others = ["B" if q.answer == "A" else "A" for q in choices]
    grades = checker.check_many([(response(letter), q) for letter, q in zip(others, choices, strict=True)])
    assert {graded.grade for graded in grades} <= {"incorrect"}


def test_grades_of_real_responses_are_those_that_were_published(checker: AnswerChecker) -> None:
    path = public("gsm8k/example_model_solutions.jsonl")
    pairs, labels = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        question = Question(id="1", question=record["question"], answer=record["ground_truth"].split("\nA: ")[-1])
        for solution in (value for value in record.values() if isinstance(value, dict)):
            # the file's own mark for the answer is the name of an option elsewhere
            pairs.append((solution["solution"].replace("\nA: ", "\nAnswer: "), question))
            labels.append("correct" if solution["is_correct"] else "incorrect")
    assert (len(labels), labels.count("correct")) == ((5276, 2001) if path.is_relative_to(WHOLE) else (400, 147))
    assert [graded.grade for graded in checker.check_many(pairs)] == labels


def test_the_written_solutions_of_math500_are_right(checker: AnswerChecker) -> None:
    path = public("math500/test500.jsonl")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    grades = checker.check_many([(r["solution"], q) for r, q in zip(records, read_questions(path), strict=True)])
    assert [(r["answer"], g) for r, g in zip(records, grades, strict=True) if g.grade != "correct"] == []


def test_a_boxed_answer_is_right_against_a_gold_answer_that_is_a_rationale(checker: AnswerChecker) -> None:
    path = public("gsm8k/test.jsonl")
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines()[:200]:
        record = json.loads(line)
        answer = record["answer"].rsplit("#### ", 1)[1]
        pairs.append((f"So it is \\boxed{{{answer}}}.", Question(id="1", question="?", answer=record["answer"])))
    for record in map(json.loads, public("math500/test500.jsonl").read_text(encoding="utf-8").splitlines()[:200]):
        question = Question(id="1", question="?", answer=record["solution"])
        pairs.append((f"So it is \\boxed{{{record['answer']}}}.", question))
    assert len(pairs) >= 220
    grades = checker.check_many(pairs)
    assert [(p, g) for p, g in zip(pairs, grades, strict=True) if g.grade != "correct"] == []

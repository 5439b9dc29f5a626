from __future__ import annotations

import random
import re

import pytest
from hypothesis import assume, given, settings, strategies as st

from mprm_lab.world import SOURCES, Problem, draw, judge_chain, judge_step, problem, solution
from mprm_lab.world.grammar import FORMS, NEUTRAL
from mprm_lab.world.scene import COLOURS, LETTERS, Grid
from mprm_lab.world.solutions import claims_of
from tests.lab.world.solver import Seen, see
from tests.lab.world.truth import is_true

CHANGED = re.compile(
    r"(?<=row )\d|(?<=Row )\d|(?<=olumn )\d|(?<=ar )[A-Z]\b|(?<=ption )[A-D]|(?<=boxed\{)[A-D]|\d+"
    rf"|{'|'.join(COLOURS)}|circle|square|triangle|cross|\bYes\b|\bNo\b|does not count|\bcounts\b|\bnot more\b|\bmore\b|\badd\b|\bsubtract\b|[+-]"
)
GROUPS = [
    [*COLOURS],
    ["circle", "square", "triangle", "cross"],
    ["Yes", "No"],
    ["not more", "more"],
    ["add", "subtract"],
    ["does not count", "counts"],
    ["+", "-"],
]


def seen_in(example: Problem) -> Seen:
    return see(SOURCES[example.source].domain, draw(example), example.question)


def changed(sentence: str, draws: random.Random) -> str | None:
    """The sentence with one number or name in place of another."""
    matches = list(CHANGED.finditer(sentence))
    if not matches:
        return None
    match = draws.choice(matches)
    before = sentence[: match.start()]
    if before.endswith(("row ", "Row ", "olumn ")):
        others = list("1234")
    elif before.lower().endswith("cell "):
        others = [str(number) for number in range(1, 17)]
    elif before.endswith(("ption ", "boxed{")) and match[0] in "ABCD":
        others = list("ABCD")
    elif match[0].isdigit():
        number = int(match[0])
        others = [str(n) for n in (number - 1, number + 1, number + 10, draws.randrange(10)) if 0 <= n <= 99]
    elif match[0] in LETTERS:
        others = list(LETTERS)
    else:
        others = next(group for group in GROUPS if match[0] in group)
    other = draws.choice([name for name in others if name != match[0]])
    return before + other + sentence[match.end() :]


@pytest.mark.parametrize("name", SOURCES)
def test_judge_and_an_independent_check_agree_on_solutions_with_one_thing_changed(name: str) -> None:
    draws = random.Random(name)
    n_false = n_true = 0
    for seed in range(40):
        example = problem(name, seed)
        seen, steps = seen_in(example), solution(example)
        for index, step in enumerate(steps):
            assert judge_step(example, step) == ("neutral" if step in NEUTRAL else "correct"), (example.id, step)
            assert step in NEUTRAL or is_true(seen, step), (example.id, step)
            other = changed(step, draws)
            if other is None:
                continue
            expected = "correct" if is_true(seen, other) else "incorrect"
            judged = judge_chain(example, [*steps[:index], other, *steps[index + 1 :]])
            assert judged[index] == expected, (example.id, example.question, other)
            # every claim names what it is about: no other step's truth hangs on this one
            assert judged[:index] + judged[index + 1 :] == judge_chain(example, steps[:index] + steps[index + 1 :])
            n_false += expected == "incorrect"
            n_true += expected == "correct"
    assert n_false > 60
    assert n_true < 0.1 * n_false, "nearly every change makes a sentence false"


def grid_sum() -> Problem:
    """Row 2 of the grid is 3 5 0 7, to be added from the left."""
    example = next(p for p in (problem("grid-sum", seed) for seed in range(99)) if "row 2 from left" in p.question)
    items = example.orders[0]
    values, totals = (3, 5, 0, 7), (3, 8, 8, 15)
    facts = {"result": "15", "answer 15": "right", f"start {items[0]}": "yes", "value cell 1": "4"}
    for item, value, total in zip(items, values, totals, strict=True):
        facts |= {f"value {item}": str(value), f"total {item}": str(total), f"before {item}": str(total - value)}
        facts[f"sign {item}"] = "+"
    return Problem(
        source="grid-sum",
        seed=0,
        scene=Grid(((4, 1, 1, 1), values, (1, 1, 1, 1), (1, 1, 1, 1))),
        question="What is the sum of row 2 from left to right?",
        options=(),
        answer="15",
        orders=(items,),
        facts=facts,
    )


def test_a_misread_digit_spoils_every_total_until_the_chain_recovers() -> None:
    steps = [
        "Cell 5 is 3, so the total is 3.",
        "Cell 6 is 6, so the total is 9.",  # it is 5
        "Let us go on.",
        "Cell 7 is 0, so the total is 9.",  # read rightly, but the total still has the mistake
        "Cell 8 shows 7, and 8 + 7 = 15.",  # back at the true total
        r"This gives 15, so the answer is \boxed{15}.",
    ]
    right, wrong = "correct", "incorrect"
    assert judge_chain(grid_sum(), steps) == [right, wrong, "neutral", wrong, right, right]


def test_a_right_total_after_a_wrong_reading_is_incorrect() -> None:
    assert judge_step(grid_sum(), "Cell 6 is 6, so the total is 8.") == "incorrect"


def test_a_wrong_total_carried_into_a_right_sum_is_incorrect() -> None:
    # 9 + 7 is 16, but the total before the last digit is 8
    assert judge_step(grid_sum(), "Cell 8 shows 7, and 9 + 7 = 16.") == "incorrect"


def test_a_skipped_item_is_wrong_only_where_a_total_lacks_it() -> None:
    left_out = ["Cell 5 is 3, so the total is 3.", "Cell 8 is 7, so the total is 10."]
    in_mind = ["Cell 5 is 3, so the total is 3.", "Cell 8 is 7, so the total is 15."]
    assert judge_chain(grid_sum(), left_out) == ["correct", "incorrect"]
    assert judge_chain(grid_sum(), in_mind) == ["correct", "correct"]


def test_an_item_said_twice_is_right_twice_and_wrong_when_added_twice() -> None:
    once = "Cell 6 is 5, so the total is 8."
    assert judge_chain(grid_sum(), [once, once, "Cell 6 is 5, so the total is 13."]) == [
        "correct",
        "correct",
        "incorrect",
    ]


def test_a_total_at_a_cell_that_is_not_asked_for_is_incorrect() -> None:
    assert judge_step(grid_sum(), "Cell 1 is 4, so the total is 4.") == "incorrect"


def test_a_right_answer_after_a_wrong_result_is_incorrect() -> None:
    assert judge_step(grid_sum(), r"This gives 14, so the answer is \boxed{15}.") == "incorrect"
    assert judge_step(grid_sum(), r"So the answer is \boxed{15}.") == "correct"


@pytest.mark.parametrize(
    "garbled",
    [
        "",
        "Cell 5 is 3, so the total is",
        "Cell 5 is is 3, so the total is 3.",
        "cell 5 is 3, so the total is 3.",
        "Cell 17 is 3, so the total is 3.",
        "Cell 5 is 03, so the total is 3.",
        "Let us go",
        "Let us go on. Row",
        "The sky is blue.",
        "Bar K is 3, so the total is 3.",
    ],
)
def test_what_has_no_known_form_is_incorrect(garbled: str) -> None:
    assert judge_step(grid_sum(), garbled) == "incorrect"


def test_a_step_of_two_sentences_is_as_good_as_its_worst() -> None:
    right, wrong = "Cell 5 is 3, so the total is 3.", "Cell 5 is 4, so the total is 4."
    neutral = "Let us go on."
    assert judge_step(grid_sum(), f"{neutral} {right}") == "correct"
    assert judge_step(grid_sum(), f"{neutral}\n{right} {wrong}") == "incorrect"
    assert judge_step(grid_sum(), f"{neutral} {neutral}") == "neutral"


def test_the_text_of_the_right_option_answers_the_question_too() -> None:
    example = problem("bars-total", 0)
    for other in (example, problem("bars-second", 0)):
        text = other.options["ABCD".index(other.answer)]
        assert judge_step(other, rf"So the answer is \boxed{{{text}}}.") == "correct"
    wrong = next(letter for letter in "ABCD" if letter != example.answer)
    assert judge_step(example, rf"So the answer is \boxed{{{wrong}}}.") == "incorrect"


def test_what_is_true_of_the_picture_is_correct_whatever_the_question() -> None:
    example = problem("bars-total", 3)
    height, letter = max(zip(example.scene.heights, example.scene.letters, strict=True))  # type: ignore[union-attr]
    assert judge_step(example, f"The tallest bar is bar {letter} with {height}.") == "correct"
    assert judge_step(example, f"The tallest bar is bar {letter} with {height + 1}.") == "incorrect"


@pytest.mark.parametrize("name", SOURCES)
def test_no_form_filled_with_a_problems_own_facts_is_false_and_judged_correct(name: str) -> None:
    """Whatever the form: a sentence of another kind of question, too, says only what is so."""
    n_correct = 0
    for seed in range(12):
        example = problem(name, seed)
        seen = seen_in(example)
        items = [fact.removeprefix("value ") for fact in example.facts if fact.startswith("value ")]
        draws = random.Random(seed)
        for form in {form for group in FORMS.values() for form in group}:
            names = {slot: draws.choice(items) for slot in ("item", "item2")} | {"answer": example.answer}
            if draws.random() < 0.7 and f"next {names['item']}" in example.facts:
                names["item2"] = example.facts[f"next {names['item']}"]
            try:
                sentence = form.write(names, example.facts)
            except KeyError:  # it speaks of what the question does not know
                continue
            if judge_step(example, sentence) == "correct":
                n_correct += 1
                assert is_true(seen, sentence), (example.question, sentence)
    assert n_correct > 20


def test_no_sentence_has_two_forms() -> None:
    forms = {form for group in FORMS.values() for form in group}
    sentences = {step for name in SOURCES for seed in range(60) for step in solution(problem(name, seed))}
    for sentence in sentences - set(NEUTRAL):
        assert sum(form.pattern.fullmatch(sentence) is not None for form in forms) == 1, sentence


def test_every_form_is_used_by_some_solution() -> None:
    sentences = [step for name in SOURCES for seed in range(150) for step in solution(problem(name, seed))]
    used = set(sentences)
    for group in FORMS.values():
        for form in group:
            assert any(form.pattern.fullmatch(sentence) for sentence in used), form.text
    assert used >= set(NEUTRAL)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_no_text_breaks_the_judge(text: str) -> None:
    assume(text not in NEUTRAL)
    assert judge_step(grid_sum(), text) == "incorrect"
    assert claims_of(text) is None

from __future__ import annotations

from itertools import chain

import pytest

from mprm.annotation.checker import AnswerChecker
from mprm.data.types import STEP_SEPARATOR, split_steps
from mprm.errors import ConfigError
from mprm_lab.world import SOURCES, problem, solution
from mprm_lab.world.grammar import NEUTRAL

N_SEEDS = 300

MEAN_STEPS = {
    "grid-sum": 5.0,
    "grid-path": 9.3,
    "grid-alternate": 6.3,
    "grid-max": 4.7,
    "grid-above": 4.9,
    "grid-compare": 6.0,
    "bars-total": 5.1,
    "bars-range": 5.7,
    "bars-above": 5.9,
    "bars-compare": 4.9,
    "bars-second": 5.0,
    "shapes-count": 4.9,
    "shapes-lines": 5.9,
    "shapes-compare": 6.0,
    "shapes-points": 5.6,
}


@pytest.fixture(scope="module")
def solutions() -> dict[str, list[list[str]]]:
    return {name: [solution(problem(name, seed)) for seed in range(N_SEEDS)] for name in SOURCES}


def test_solutions_have_the_stated_lengths(solutions: dict[str, list[list[str]]]) -> None:
    means = {name: sum(map(len, chains)) / N_SEEDS for name, chains in solutions.items()}
    assert means == pytest.approx(MEAN_STEPS, abs=0.35)
    lengths = {len(steps) for chains in solutions.values() for steps in chains}
    assert (min(lengths), max(lengths)) == (2, 12)
    assert sum(means.values()) / len(means) == pytest.approx(5.6, abs=0.1)


def test_a_tenth_of_the_steps_claim_nothing(solutions: dict[str, list[list[str]]]) -> None:
    for name, chains in solutions.items():
        steps = list(chain.from_iterable(chains))
        assert sum(step in NEUTRAL for step in steps) / len(steps) == pytest.approx(0.1, abs=0.03), name


def test_the_last_step_and_no_other_gives_the_answer(solutions: dict[str, list[list[str]]]) -> None:
    for name, chains in solutions.items():
        for seed, steps in enumerate(chains):
            assert steps[-1].endswith(rf"\boxed{{{problem(name, seed).answer}}}.")
            assert not any("boxed" in step for step in steps[:-1])
            assert split_steps(STEP_SEPARATOR.join(steps)) == tuple(steps)


def test_the_answer_checker_finds_every_solution_correct_and_other_answers_wrong(
    solutions: dict[str, list[list[str]]],
) -> None:
    pairs, expected = [], []
    for name, chains in solutions.items():
        for seed, steps in enumerate(chains[:60]):
            question = problem(name, seed).as_question()
            others = {"choice": "ABCD", "yes/no": ("Yes", "No"), "open": (str(int(seed)), "98")}[
                SOURCES[name].answers
            ]
            pairs.append((STEP_SEPARATOR.join(steps), question))
            expected.append("correct")
            for other in others:
                if other != question.answer:
                    text = STEP_SEPARATOR.join(steps).replace(rf"\boxed{{{question.answer}}}", rf"\boxed{{{other}}}")
                    pairs.append((text, question))
                    expected.append("incorrect")
    with AnswerChecker(processes=1) as checker:
        assert [graded.grade for graded in checker.check_many(pairs)] == expected


@pytest.mark.parametrize("name", SOURCES)
def test_a_problem_has_several_solutions_each_always_the_same(name: str) -> None:
    example = problem(name, 4)
    chains = [solution(example, number) for number in range(20)]
    assert chains == [solution(example, number) for number in range(20)]
    assert len({tuple(steps) for steps in chains}) >= 10


def test_a_negative_number_of_a_solution_is_refused() -> None:
    with pytest.raises(ConfigError, match="the number is -1"):
        solution(problem("grid-sum", 0), -1)

"""A problem's correct solutions."""

from __future__ import annotations

from mprm_lab.world.forms import FORMS, NEUTRAL
from mprm_lab.world.problem import Problem
from mprm_lab.world.randomness import draws_for
from mprm_lab.world.sources import SOURCES

NEUTRAL_SHARE = 0.115
"""Chance of a sentence that claims nothing before each step; a tenth of all steps in the end."""
MOST_NEUTRAL = 2
MOST_STEPS = 12


def solution(problem: Problem, number: int = 0) -> list[str]:
    r"""The steps of a correct solution, the last of which gives the answer as ``\boxed{…}``.

    Solutions with other numbers say the same in other words, other portions, and where the question leaves it open,
    in another order.
    """
    draws = draws_for(problem.source, problem.seed, "solution", number)
    steps: list[str] = []
    lines = SOURCES[problem.source].tell(draws, problem)
    n_left = min(MOST_NEUTRAL, MOST_STEPS - len(lines))
    for name, names in lines:
        if n_left and draws.chance(NEUTRAL_SHARE):
            steps.append(draws.pick(NEUTRAL))
            n_left -= 1
        steps.append(draws.pick(FORMS[name]).write(names, problem.facts))
    return steps

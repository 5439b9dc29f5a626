"""The truth of a step.

A step is correct when all that it claims is true of the picture and the question, incorrect when anything is not, and
neutral when it claims nothing. What stood before it does not matter, because every claim names what it is about:

- A running total is the total of the question's own items, in the question's own order, up to the item that the
  sentence names. Where the question names no direction, rows are read from the left and columns from the top.
- A misread item makes its own step incorrect, and every later one whose total still contains the mistake, until the
  chain comes back to the true total.
- An item that a chain leaves out makes no step incorrect by itself, but every later total that lacks it is.
- An item that comes twice is correct again when the same is said, and incorrect when it was added twice.
- Items in another order have totals that the question's order does not know, and are incorrect where these differ.
- A running total at an item that the question does not ask for is incorrect, and so is one over two items that do not
  follow each other in the question's order.
- A sentence that has none of the known forms is incorrect: garbled text claims nothing that could be true.

"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from mprm_lab.world.forms import FORMS, NEUTRAL
from mprm_lab.world.problem import Problem

Judgement = Literal["correct", "incorrect", "neutral"]

_ALL_FORMS = tuple(form for forms in FORMS.values() for form in forms)
_SENTENCE_END = re.compile(r"(?<=\.) ")


@lru_cache(maxsize=1 << 16)
def claims_of(sentence: str) -> tuple[tuple[str, str], ...] | None:
    """The facts that a sentence names and the values it gives them; None when it has no known form.

    Examples
    --------
    >>> claims_of("Cell 7 is 4, so the total is 19.")
    (('value cell 7', '4'), ('total cell 7', '19'))
    """
    if sentence in NEUTRAL:
        return ()
    for form in _ALL_FORMS:
        claims = form.read(sentence)
        if claims is not None:
            return tuple(claims)
    return None


def judge_step(problem: Problem, step: str) -> Judgement:
    """Whether a step of one or more sentences is correct, incorrect or neutral."""
    made: list[tuple[str, str]] = []
    for sentence in _SENTENCE_END.split(" ".join(step.split())):
        claims = claims_of(sentence)
        if claims is None:
            return "incorrect"
        made += claims
    if not made:
        return "neutral"
    return "correct" if all(problem.facts.get(key) == value for key, value in made) else "incorrect"


def judge_chain(problem: Problem, steps: Sequence[str]) -> list[Judgement]:
    """The judgement of each step of a solution."""
    return [judge_step(problem, step) for step in steps]

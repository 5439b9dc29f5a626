"""Solutions: what they say in which order, and whether each step is true.

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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from mprm_lab.world.grammar import FORMS, NEUTRAL
from mprm_lab.world.problems import Problem
from mprm_lab.world.rng import Rng, rng_of

NEUTRAL_SHARE = 0.115
"""Chance of a neutral sentence before each step; a tenth of all steps in the end."""
MAX_NEUTRAL = 2
MAX_STEPS = 12

Verdict = Literal["correct", "incorrect", "neutral"]

Line = tuple[str, dict[str, str]]
"""A key of `mprm_lab.world.grammar.FORMS`, and names for its slots."""
Outline = Callable[[Rng, Problem], list[Line]]
"""The lines of a solution, in order."""


def totals(*pairs: float) -> Outline:
    """Item after item with the running total, sometimes two at once; then the answer."""

    def outline(rng: Rng, problem: Problem) -> list[Line]:
        share = _share(rng, pairs)
        items = problem.orders[0]
        n_first = 1 if rng.chance(0.3) else 0  # the first item needs no total
        start: list[Line] = [("start", {"item": item}) for item in items[:n_first]]
        return [*start, *_items(rng, items[n_first:], "total", share), _answer(problem)]

    return outline


def alternating(rng: Rng, problem: Problem) -> list[Line]:
    """What the total begins with, each item with its turn, and the answer."""
    begin: list[Line] = [("begin", {})] if rng.chance(0.7) else []
    return [*begin, *(("turn", {"item": item}) for item in problem.orders[0]), _answer(problem)]


def running(form: str, *pairs: float, answer: str = "") -> Outline:
    """Item after item with a running quantity, sometimes two at once; then the answer."""

    def outline(rng: Rng, problem: Problem) -> list[Line]:
        lines = _items(rng, problem.orders[0], form, _share(rng, pairs))
        return [*lines, (answer, {"answer": problem.answer}) if answer else _answer(problem)]

    return outline


def tallest_and_shortest(rng: Rng, problem: Problem) -> list[Line]:
    """The tallest and the shortest bar in either order, or both at once; then their difference."""
    names = [{"item": problem.facts[bar]} for bar in ("tallest", "shortest")]
    if rng.chance(0.3):
        lines: list[Line] = [("tallest and shortest", names[0] | {"item2": names[1]["item"]})]
    else:
        lines = rng.shuffled([("tallest", names[0]), ("shortest", names[1])])
    difference: list[Line] = [("difference", {})] if rng.chance(0.6) else []
    return [*_search(rng, problem), *lines, *difference, _answer(problem)]


def two_tallest(rng: Rng, problem: Problem) -> list[Line]:
    """The tallest bar and the next, one after the other or both at once; then the answer."""
    first, second = problem.facts["tallest"], problem.facts["next tallest"]
    lines: list[Line] = [("tallest", {"item": first}), ("next tallest", {"item": second})]
    if rng.chance(0.3):
        lines = [("two tallest", {"item": first, "item2": second})]
    return [*_search(rng, problem), *lines, _answer(problem)]


def comparison(form: str, *pairs: float) -> Outline:
    """One side, the other side, and the answer, sometimes in two steps."""

    def outline(rng: Rng, problem: Problem) -> list[Line]:
        share = _share(rng, pairs)
        lines = [line for items in problem.orders for line in _items(rng, items, form, share)]
        answer = {"answer": problem.answer}
        if rng.chance(0.4):
            return [*lines, ("compared", {}), ("plain answer", answer)]
        return [*lines, ("compared answer", answer)]

    return outline


def _share(rng: Rng, pairs: tuple[float, ...]) -> float:
    """How often two items come in one step: one of the shares."""
    return pairs[0] if len(pairs) == 1 else rng.pick(pairs)


def _search(rng: Rng, problem: Problem) -> list[Line]:
    """Sometimes all bars with the largest so far, before the tallest is named."""
    return _items(rng, problem.orders[0], "largest", 0.4) if rng.chance(0.4) else []


def _items(rng: Rng, items: Sequence[str], form: str, share: float) -> list[Line]:
    """A line for each item, or for two at once with probability ``share``."""
    lines: list[Line] = []
    start = 0
    while start < len(items):
        if start + 1 < len(items) and rng.chance(share):
            lines.append((f"{form} of two", {"item": items[start], "item2": items[start + 1]}))
            start += 2
        else:
            lines.append((form, {"item": items[start]}))
            start += 1
    return lines


def _answer(problem: Problem) -> Line:
    name = f"choice answer {problem.answer}" if problem.options else "open answer"
    return name, {"answer": problem.answer}


OUTLINES: dict[str, Outline] = {
    "grid-sum": totals(0.0, 0.15, 0.5),
    "grid-path": totals(0.0, 0.2),
    "grid-alternate": alternating,
    "grid-max": running("largest", 0.0, 0.2, 0.8, answer="largest answer"),
    "grid-above": running("above", 0.0, 0.2, 0.6),
    "grid-compare": comparison("total", 1.0),
    "bars-total": totals(0.0, 0.15, 0.5),
    "bars-range": tallest_and_shortest,
    "bars-above": running("above", 0.0, 0.2, 0.6),
    "bars-compare": comparison("total", 0.0, 0.5, 1.0),
    "bars-second": two_tallest,
    "shapes-count": running("seen", 0.0, 0.2, 0.6),
    "shapes-lines": running("seen", 0.8, 1.0),
    "shapes-compare": comparison("seen", 1.0),
    "shapes-points": running("points", 0.0),
}
"""By source."""


def solution(problem: Problem, number: int = 0) -> list[str]:
    r"""The steps of a correct solution, the last of which gives the answer as ``\boxed{…}``.

    Solutions with other numbers use other words, take other items together, and where the question leaves it open,
    have another order.
    """
    rng = rng_of(problem.source, problem.seed, "solution", number)
    steps: list[str] = []
    lines = OUTLINES[problem.source](rng, problem)
    n_left = min(MAX_NEUTRAL, MAX_STEPS - len(lines))
    for name, names in lines:
        if n_left and rng.chance(NEUTRAL_SHARE):
            steps.append(rng.pick(NEUTRAL))
            n_left -= 1
        steps.append(rng.pick(FORMS[name]).write(names, problem.facts))
    return steps


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


def judge_step(problem: Problem, step: str) -> Verdict:
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


def judge_chain(problem: Problem, steps: Sequence[str]) -> list[Verdict]:
    """The verdict on each step of a solution."""
    return [judge_step(problem, step) for step in steps]

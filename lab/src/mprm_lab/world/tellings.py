"""In what order a solution says what: lines, each the name of a form and the names it speaks of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mprm_lab.draws import Draws
from mprm_lab.world.problem import Problem

Line = tuple[str, dict[str, str]]
"""A key of `mprm_lab.world.forms.FORMS`, and names for its slots."""
MANY = 8
"""Items that are mostly told two at once."""
Telling = Callable[[Draws, Problem], list[Line]]


def tell_total(draws: Draws, problem: Problem) -> list[Line]:
    """Item after item with the running total, sometimes two at once; then the answer."""
    return _totals(draws, problem, pairs=draws.pick((0.0, 0.15, 0.5)))


def tell_path(draws: Draws, problem: Problem) -> list[Line]:
    """As `tell_total`, nearly always one item at a time."""
    return _totals(draws, problem, pairs=draws.pick((0.0, 0.2)))


def _totals(draws: Draws, problem: Problem, *, pairs: float) -> list[Line]:
    items = problem.runs[0].items
    n_first = 1 if draws.chance(0.3) else 0  # the first item needs no total
    start: list[Line] = [("start", {"item": item}) for item in items[:n_first]]
    return [*start, *_items(draws, items[n_first:], "total", pairs=pairs), _answer(problem)]


def tell_alternate(draws: Draws, problem: Problem) -> list[Line]:
    """What the total begins with, each item with its turn, and the answer."""
    begin: list[Line] = [("begin", {})] if draws.chance(0.7) else []
    return [*begin, *(("turn", {"item": item}) for item in problem.runs[0].items), _answer(problem)]


def tell_maximum(draws: Draws, problem: Problem) -> list[Line]:
    """Item after item with the largest so far, sometimes two at once; then the answer."""
    lines = _items(draws, problem.runs[0].items, "largest", pairs=draws.pick((0.0, 0.2, 0.8)))
    return [*lines, ("largest answer", {"answer": problem.answer})]


def tell_above(draws: Draws, problem: Problem) -> list[Line]:
    """Bar after bar with the running count, sometimes two at once; then the answer."""
    lines = _items(draws, problem.runs[0].items, "above", pairs=draws.pick((0.0, 0.2, 0.6)))
    level = problem.facts["level"]
    return [*((form, names | {"level": level}) for form, names in lines), _answer(problem)]


def tell_count(draws: Draws, problem: Problem) -> list[Line]:
    """Cell after cell with the running count, two at once the more often the more there are; then the answer."""
    items = problem.runs[0].items
    pairs = draws.pick((0.0, 0.2, 0.6)) if len(items) < MANY else draws.pick((0.8, 1.0))
    return [*_items(draws, items, "seen", pairs=pairs), _answer(problem)]


def tell_range(draws: Draws, problem: Problem) -> list[Line]:
    """The tallest and the shortest bar in either order, or both at once; then their difference."""
    names = [{"item": problem.facts[bar]} for bar in ("tallest", "shortest")]
    if draws.chance(0.3):
        lines: list[Line] = [("tallest and shortest", names[0] | {"item2": names[1]["item"]})]
    else:
        lines = draws.shuffled([("tallest", names[0]), ("shortest", names[1])])
    difference: list[Line] = [("difference", {})] if draws.chance(0.6) else []
    return [*_search(draws, problem), *lines, *difference, _answer(problem)]


def tell_second(draws: Draws, problem: Problem) -> list[Line]:
    """The tallest bar and the next, one after the other or both at once; then the answer."""
    first, second = problem.facts["tallest"], problem.facts["next tallest"]
    lines: list[Line] = [("tallest", {"item": first}), ("next tallest", {"item": second})]
    if draws.chance(0.3):
        lines = [("two tallest", {"item": first, "item2": second})]
    return [*_search(draws, problem), *lines, _answer(problem)]


def _search(draws: Draws, problem: Problem) -> list[Line]:
    """Sometimes all bars with the largest so far, before the tallest is named."""
    return _items(draws, problem.runs[0].items, "largest", pairs=0.4) if draws.chance(0.4) else []


def tell_line_comparison(draws: Draws, problem: Problem) -> list[Line]:
    """The sums of two rows or columns, two cells at a time; then the answer."""
    return _comparison(draws, problem, "total", pairs=1.0)


def tell_bar_comparison(draws: Draws, problem: Problem) -> list[Line]:
    """The totals of two bars and two others, each at once or bar by bar; then the answer."""
    return _comparison(draws, problem, "total", pairs=draws.pick((0.0, 0.5, 1.0)))


def tell_shape_comparison(draws: Draws, problem: Problem) -> list[Line]:
    """The numbers of shapes in two rows or columns, two cells at a time; then the answer."""
    return _comparison(draws, problem, "seen", pairs=1.0)


def _comparison(draws: Draws, problem: Problem, form: str, *, pairs: float) -> list[Line]:
    """One side and the other, and the answer, sometimes in two steps."""
    lines = [line for run in problem.runs for line in _items(draws, run.items, form, pairs=pairs)]
    answer = {"answer": problem.answer}
    if draws.chance(0.4):
        return [*lines, ("compared", {}), ("plain answer", answer)]
    return [*lines, ("compared answer", answer)]


def tell_points(draws: Draws, problem: Problem) -> list[Line]:
    """Cell after cell with its points and their running total; then the answer."""
    return [*_items(draws, problem.runs[0].items, "points", pairs=0.0), _answer(problem)]


def _items(draws: Draws, items: Sequence[str], form: str, *, pairs: float) -> list[Line]:
    """Items, some of them two at once, each with what it does to the running quantity."""
    return [
        (form, {"item": portion[0]})
        if len(portion) == 1
        else (f"{form} of two", {"item": portion[0], "item2": portion[1]})
        for portion in _portions(draws, items, pairs)
    ]


def _portions(draws: Draws, items: Sequence[str], pairs: float) -> Iterator[Sequence[str]]:
    """The items one at a time, or two with this probability."""
    start = 0
    while start < len(items):
        n = 2 if start + 1 < len(items) and draws.chance(pairs) else 1
        yield items[start : start + n]
        start += n


def _answer(problem: Problem) -> Line:
    names = {"answer": problem.answer}
    if problem.options:
        return f"choice answer {problem.answer}", names
    return "open answer", names

"""Questions about a grid of digits."""

from __future__ import annotations

from itertools import accumulate

from mprm_lab.draws import Draws
from mprm_lab.world.asked import Asked, above, compared, totals, yes_no
from mprm_lab.world.names import CELLS
from mprm_lab.world.paths import Cells, line_cells, line_name, line_path, straight, walk
from mprm_lab.world.picture_facts import grid_facts
from mprm_lab.world.problem import Run
from mprm_lab.world.scene import N_LINES, Grid
from mprm_lab.world.sentence import filled

BEGIN = 20
"""What alternating totals begin with, so that they never fall below zero."""

SUM = ("What is the sum of <path>?", "Add the digits of <path>. What is the total?")
PATH = (
    "Start at <item> and go <moves>. What is the sum of the digits on the way?",
    "Go from <item> <moves>. What is the total of the digits?",
)
ALTERNATE = (
    "Begin with <begin>. Take <path>, and add and subtract the digits in turn. What is the total?",
    "We have <begin>. Along <path>, add the first digit, subtract the next, and so on. What is the total?",
)
MAXIMUM = (
    "Read <path>. In which <place> is the largest digit?",
    "Along <path>, which <place> has the largest digit?",
)
ABOVE = (
    "Along <path>, how many digits are more than <level>?",
    "How many digits along <path> are more than <level>?",
)
COMPARE = (
    "Is the sum of <line> more than the sum of <line2>?",
    "Is the total of <line> more than the total of <line2>?",
)


def ask_sum(draws: Draws) -> Asked:
    """The sum of a row, a column or a diagonal."""
    path, items = straight(draws)
    return _total_of(draws, SUM, {"path": path}, items)


def ask_path(draws: Draws) -> Asked:
    """The sum of a walk through seven to nine cells."""
    moves, items = walk(draws, draws.between(7, 9))
    return _total_of(draws, PATH, {"item": items[0], "moves": ", ".join(moves)}, items)


def ask_alternate(draws: Draws) -> Asked:
    """A total in which the digits are added and subtracted in turn."""
    path, items = straight(draws)
    return _total_of(draws, ALTERNATE, {"path": path, "begin": str(BEGIN)}, items, begin=BEGIN, signs="+-+-")


def _total_of(
    draws: Draws, questions: tuple[str, ...], names: dict[str, str], items: Cells, *, begin: int = 0, signs: str = ""
) -> Asked:
    grid = _grid(draws)
    running = totals(items, _digits(grid, items), begin=begin, signs=signs)
    facts = grid_facts(grid) | running
    if begin:
        facts["begin"] = str(begin)
    return Asked(
        scene=grid,
        question=filled(draws.pick(questions), names),
        result=running[f"total {items[-1]}"],
        runs=(Run("", items),),
        facts=facts,
    )


def ask_maximum(draws: Draws) -> Asked:
    """The place of the largest digit in a row or column; it is there once."""
    along, way = draws.between(0, 1), draws.between(0, 1)
    line = draws.between(0, N_LINES - 1)
    items = line_cells(along, line, way)
    while True:
        grid = _grid(draws)
        values = _digits(grid, items)
        if values.count(max(values)) == 1:
            break
    at = values.index(max(values))
    place = str(1 + (N_LINES - 1 - at if way else at))
    largest = [str(value) for value in accumulate(values, max)]
    facts = grid_facts(grid) | {f"largest {item}": value for item, value in zip(items, largest, strict=True)}
    names = {"place": ("column", "row")[along], "path": line_path(along, line, way)}
    return Asked(
        scene=grid,
        question=filled(draws.pick(MAXIMUM), names),
        result=place,
        runs=(Run("", items),),
        facts=facts | {"largest": largest[-1], "at": items[at], "in": f"{names['place']} {place}"},
    )


def ask_above(draws: Draws) -> Asked:
    """How many digits of a row, a column or a diagonal are more than another."""
    path, items = straight(draws)
    grid, level = _grid(draws), draws.between(2, 7)
    facts, result = above(items, _digits(grid, items), level)
    return Asked(
        scene=grid,
        question=filled(draws.pick(ABOVE), {"path": path, "level": str(level)}),
        result=result,
        runs=(Run("", items),),
        facts=grid_facts(grid) | facts,
    )


def ask_compare(draws: Draws) -> Asked:
    """Whether one row's or column's sum is more than another's."""
    along = draws.between(0, 1)
    lines = draws.shuffled(range(N_LINES))[:2]
    one, two = (line_cells(along, line) for line in lines)
    is_more = draws.chance(0.5)
    while True:
        grid = _grid(draws)
        first, second = sum(_digits(grid, one)), sum(_digits(grid, two))
        if (first > second) == is_more:
            break
    names = [line_name(along, line) for line in lines]
    return Asked(
        scene=grid,
        question=filled(draws.pick(COMPARE), {"line": names[0], "line2": names[1]}),
        result=yes_no(is_more),
        runs=(Run(names[0], one), Run(names[1], two)),
        facts=grid_facts(grid)
        | totals(one, _digits(grid, one))
        | totals(two, _digits(grid, two))
        | compared(first, second),
    )


def _grid(draws: Draws) -> Grid:
    return Grid(tuple(tuple(draws.between(0, 9) for _ in range(N_LINES)) for _ in range(N_LINES)))


def _digits(grid: Grid, items: Cells) -> list[int]:
    digits = [digit for row in grid.digits for digit in row]
    return [digits[CELLS.index(item)] for item in items]

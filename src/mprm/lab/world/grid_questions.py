"""Questions about a grid of digits."""

from __future__ import annotations

from itertools import accumulate

from mprm.lab.draws import Draws
from mprm.lab.world.asked import Asked, compared, totals, yes_no
from mprm.lab.world.names import COLUMNS, DIGIT_THINGS, ROWS, cell_name
from mprm.lab.world.picture_facts import grid_facts, lines_of
from mprm.lab.world.problem import Run
from mprm.lab.world.scene import N_LINES, Grid
from mprm.lab.world.sentence import filled

Place = tuple[int, int]
"""Row and column of a cell, from 0."""

BEGIN = 20
"""What alternating totals begin with, so that they never fall below zero."""
TURNS = {"+": "add", "-": "subtract"}
MOVES: dict[str, Place] = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
WAYS = (("left", "right"), ("top", "bottom"))
"""Ends of a row, and of a column."""

LINE = "<line> from <start> to <end>"
DIAGONAL = "the diagonal from <item> to <item2>"
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
COUNT = ("How many <thing> are there from <line> to <line2>?", "From <line> to <line2>, how many <thing> are there?")
COMPARE = (
    "Is the sum of <line> more than the sum of <line2>?",
    "Is the total of <line> more than the total of <line2>?",
)


def ask_sum(draws: Draws) -> Asked:
    """The sum of a row, a column or a diagonal."""
    path, places = _straight(draws)
    return _total_of(draws, SUM, {"path": path}, places)


def ask_path(draws: Draws) -> Asked:
    """The sum of a walk through seven to nine cells."""
    places, moves = _walk(draws, draws.between(7, 9))
    return _total_of(draws, PATH, {"item": cell_name(*places[0]), "moves": ", ".join(moves)}, places)


def ask_alternate(draws: Draws) -> Asked:
    """A total in which the digits are added and subtracted in turn."""
    path, places = _straight(draws)
    names = {"path": path, "begin": str(BEGIN)}
    return _total_of(draws, ALTERNATE, names, places, begin=BEGIN, signs="+-+-")


def _total_of(
    draws: Draws,
    questions: tuple[str, ...],
    names: dict[str, str],
    places: list[Place],
    *,
    begin: int = 0,
    signs: str = "",
) -> Asked:
    grid = _grid(draws)
    items = tuple(cell_name(*place) for place in places)
    values = [grid.digits[row][column] for row, column in places]
    running = totals("", items, values, begin=begin, signs=signs)
    facts = grid_facts(grid) | running
    if begin:
        facts["begin"] = str(begin)
        facts |= {f"turn {item}": TURNS[sign] for item, sign in zip(items, signs, strict=True)}
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
    places = _line_places(along, line, way)
    while True:
        grid = _grid(draws)
        values = [grid.digits[row][column] for row, column in places]
        if values.count(max(values)) == 1:
            break
    items = tuple(cell_name(*place) for place in places)
    largest = [str(value) for value in accumulate(values, max)]
    place = str(places[values.index(max(values))][1 - along] + 1)
    names = {"place": ("column", "row")[along], "path": _line_path(along, line, way)}
    facts = grid_facts(grid) | {f"largest {item}": value for item, value in zip(items, largest, strict=True)}
    facts |= {"largest": largest[-1], "place": place}
    return Asked(
        scene=grid,
        question=filled(draws.pick(MAXIMUM), names),
        result=place,
        runs=(Run("", items),),
        facts=facts,
    )


def ask_count(draws: Draws) -> Asked:
    """How often a digit is in the grid."""
    digit = draws.between(0, 9)
    often = 0.1 + 0.3 * draws.uniform()
    grid = Grid(
        tuple(
            tuple(digit if draws.chance(often) else draws.between(0, 9) for _ in range(N_LINES))
            for _ in range(N_LINES)
        )
    )
    lines = draws.pick((ROWS, ROWS[::-1], COLUMNS, COLUMNS[::-1]))
    thing = DIGIT_THINGS[digit]
    numbers = [lines_of(grid)[line].count(digit) for line in lines]
    return Asked(
        scene=grid,
        question=filled(draws.pick(COUNT), {"thing": thing, "line": lines[0], "line2": lines[-1]}),
        result=str(sum(numbers)),
        runs=(Run(thing, lines),),
        facts=grid_facts(grid) | totals(f"{thing} ", lines, numbers),
    )


def ask_compare(draws: Draws) -> Asked:
    """Whether one row's or column's sum is more than another's."""
    along = draws.between(0, 1)
    one, two = draws.shuffled(range(N_LINES))[:2]
    names = (ROWS, COLUMNS)[along]
    is_more = draws.chance(0.5)
    while True:
        grid = _grid(draws)
        digits = lines_of(grid)
        first, second = sum(digits[names[one]]), sum(digits[names[two]])
        if (first > second) == is_more:
            break
    facts = grid_facts(grid) | compared(first, second)
    runs = []
    for number in (one, two):
        items = tuple(cell_name(*place) for place in _line_places(along, number, 0))
        facts |= totals("", items, digits[names[number]])
        runs.append(Run(names[number], items))
    return Asked(
        scene=grid,
        question=filled(draws.pick(COMPARE), {"line": names[one], "line2": names[two]}),
        result=yes_no(is_more),
        runs=tuple(runs),
        facts=facts,
    )


def _grid(draws: Draws) -> Grid:
    return Grid(tuple(tuple(draws.between(0, 9) for _ in range(N_LINES)) for _ in range(N_LINES)))


def _straight(draws: Draws) -> tuple[str, list[Place]]:
    """A row, a column or a diagonal, from one end to the other, and what it is called."""
    kind, way = draws.between(0, 2), draws.between(0, 1)
    if kind < 2:
        line = draws.between(0, N_LINES - 1)
        return _line_path(kind, line, way), _line_places(kind, line, way)
    last = N_LINES - 1
    falls = draws.chance(0.5)
    places = [(row, row if falls else last - row) for row in range(N_LINES)]
    if way:
        places.reverse()
    return filled(DIAGONAL, {"item": cell_name(*places[0]), "item2": cell_name(*places[-1])}), places


def _line_path(along: int, line: int, way: int) -> str:
    start, end = WAYS[along][way], WAYS[along][1 - way]
    return filled(LINE, {"line": (ROWS, COLUMNS)[along][line], "start": start, "end": end})


def _line_places(along: int, line: int, way: int) -> list[Place]:
    places = [(number, line) if along else (line, number) for number in range(N_LINES)]
    return places[::-1] if way else places


def _walk(draws: Draws, n_cells: int) -> tuple[list[Place], list[str]]:
    """A walk that enters no cell twice."""
    while True:
        places, moves = [(draws.between(0, N_LINES - 1), draws.between(0, N_LINES - 1))], list[str]()
        while len(places) < n_cells:
            row, column = places[-1]
            ways = [
                (move, (row + down, column + right))
                for move, (down, right) in MOVES.items()
                if 0 <= row + down < N_LINES and 0 <= column + right < N_LINES
            ]
            ways = [(move, place) for move, place in ways if place not in places]
            if not ways:
                break
            move, place = draws.pick(ways)
            moves.append(move)
            places.append(place)
        else:
            return places, moves

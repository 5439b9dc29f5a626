"""Questions about grids of digits, bar charts and scenes of shapes: what is shown, asked and true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mprm_lab.world.grammar import FITS, LARGEST, filled
from mprm_lab.world.rng import Rng
from mprm_lab.world.scene import (
    COLOURS,
    COLUMNS,
    LETTERS,
    MORE,
    N_LINES,
    PLURALS,
    ROWS,
    SHAPES,
    Bars,
    Grid,
    Scene,
    Shape,
    Shapes,
    cell_name,
    listed,
)

Items = tuple[str, ...]
"""Names of cells or bars, in the question's order."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it has options."""

    scene: Scene
    question: str
    result: str
    """What is asked for: a number, a bar, Yes or No."""
    orders: tuple[Items, ...]
    """Items in the question's order: one sequence, two for comparisons."""
    facts: dict[str, str]
    """Besides those of the scene."""
    distractors: Items = ()
    """Wrong options; numbers need none, see `near_numbers`."""


def _draft(
    rng: Rng,
    scene: Scene,
    templates: tuple[str, ...],
    names: dict[str, str],
    result: str | int | bool,
    facts: dict[str, str],
    *orders: Items,
) -> Draft:
    """A question by one of the templates, with these names in its slots."""
    text = {True: "Yes", False: "No"}[result] if isinstance(result, bool) else str(result)
    return Draft(scene, filled(rng.pick(templates), names), text, orders, facts)


def totals(items: Sequence[str], values: Sequence[int], *, begin: int = 0, signs: str = "") -> dict[str, str]:
    """Facts on the total before each item and after it, and whether the item is added or subtracted.

    Examples
    --------
    >>> totals(["bar K"], [2], begin=5, signs="-")
    {'before bar K': '5', 'sign bar K': '-', 'turn bar K': 'subtract', 'total bar K': '3'}
    """
    facts = {}
    total = begin
    for item, value, sign in zip(items, values, signs or "+" * len(items), strict=True):
        facts[f"before {item}"] = str(total)
        facts[f"sign {item}"], facts[f"turn {item}"] = sign, {"+": "add", "-": "subtract"}[sign]
        total += value if sign == "+" else -value
        facts[f"total {item}"] = str(total)
    return facts


def _running(name: str, items: Sequence[str], values: Sequence[int]) -> dict[str, str]:
    return {f"{name} {item}": str(value) for item, value in zip(items, values, strict=True)}


def _above(items: Sequence[str], values: Sequence[int], level: int) -> tuple[dict[str, str], str]:
    """Facts on how many values are more than a level, up to each item; and how many there are in all."""
    counts = list(accumulate(int(value > level) for value in values))
    return _running("count", items, counts) | {"level": str(level)}, str(counts[-1])


def _largest(items: Sequence[str], values: Sequence[int]) -> dict[str, str]:
    """Facts on the largest value up to each item."""
    return _running("largest", items, list(accumulate(values, max)))


def _comparison(first: int, second: int) -> dict[str, str]:
    return {"first": str(first), "second": str(second), "relation": MORE[first > second]}


def near_numbers(rng: Rng, result: int, n: int) -> Items:
    """Other numbers near the result, as a slip in reading or adding makes them."""
    steps = [*rng.shuffled((-2, -1, 1, 2)), *rng.shuffled((-3, 3, -10, 10)), 4, 5]
    if rng.chance(0.3):
        steps.insert(0, rng.pick((-10, 10)))
    others = [result + step for step in steps if 0 <= result + step <= LARGEST]
    return tuple(map(str, others[:n]))


# Paths through the sixteen cells of a picture.

MOVES = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
"""Row and column that each move adds."""
ENDS = (("left", "right"), ("top", "bottom"))
"""Of a row, and of a column."""
LINE = "<line> from <start> to <end>"
DIAGONAL = "the diagonal from <item> to <item2>"


def _straight(rng: Rng) -> tuple[str, Items]:
    """A row, a column or a diagonal, from one end to the other: what it is called, and its cells."""
    kind, is_reversed = rng.between(0, 2), rng.between(0, 1)
    if kind < 2:
        line = rng.between(0, N_LINES - 1)
        return _line_path(kind, line, is_reversed), _line_cells(kind, line, is_reversed)
    falls = rng.chance(0.5)
    cells = [cell_name(row, row if falls else N_LINES - 1 - row) for row in range(N_LINES)]
    if is_reversed:
        cells.reverse()
    return filled(DIAGONAL, {"item": cells[0], "item2": cells[-1]}), tuple(cells)


def _line_path(is_column: int, line: int, is_reversed: int) -> str:
    start, end = ENDS[is_column][is_reversed], ENDS[is_column][1 - is_reversed]
    return filled(LINE, {"line": _line_name(is_column, line), "start": start, "end": end})


def _line_name(is_column: int, line: int) -> str:
    return (ROWS, COLUMNS)[is_column][line]


def _line_cells(is_column: int, line: int, is_reversed: int = 0) -> Items:
    cells = [cell_name(number, line) if is_column else cell_name(line, number) for number in range(N_LINES)]
    return tuple(cells[::-1] if is_reversed else cells)


def _two_lines(rng: Rng) -> tuple[list[str], list[Items]]:
    """Two rows or two columns: their names, and their cells."""
    is_column = rng.between(0, 1)
    lines = rng.shuffled(range(N_LINES))[:2]
    return [_line_name(is_column, line) for line in lines], [_line_cells(is_column, line) for line in lines]


def _walk(rng: Rng, n_cells: int) -> tuple[list[str], Items]:
    """A walk that enters no cell twice: its moves, and its cells."""
    while True:
        cells, moves = [(rng.between(0, N_LINES - 1), rng.between(0, N_LINES - 1))], list[str]()
        while len(cells) < n_cells:
            row, column = cells[-1]
            nearby = [(move, (row + down, column + right)) for move, (down, right) in MOVES.items()]
            free = [
                (move, cell)
                for move, cell in nearby
                if 0 <= cell[0] < N_LINES and 0 <= cell[1] < N_LINES and cell not in cells
            ]
            if not free:
                break
            move, cell = rng.pick(free)
            moves.append(move)
            cells.append(cell)
        else:
            return moves, tuple(cell_name(*cell) for cell in cells)


# Grids of digits.

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
GRID_ABOVE = (
    "Along <path>, how many digits are more than <level>?",
    "How many digits along <path> are more than <level>?",
)
GRID_COMPARE = (
    "Is the sum of <line> more than the sum of <line2>?",
    "Is the total of <line> more than the total of <line2>?",
)


def ask_sum(rng: Rng) -> Draft:
    """The sum of a row, a column or a diagonal."""
    path, items = _straight(rng)
    return _grid_total(rng, SUM, {"path": path}, items)


def ask_path(rng: Rng) -> Draft:
    """The sum of a walk through seven to nine cells."""
    moves, items = _walk(rng, rng.between(7, 9))
    return _grid_total(rng, PATH, {"item": items[0], "moves": ", ".join(moves)}, items)


def ask_alternate(rng: Rng) -> Draft:
    """A total in which the digits are added and subtracted in turn."""
    path, items = _straight(rng)
    return _grid_total(rng, ALTERNATE, {"path": path, "begin": str(BEGIN)}, items, begin=BEGIN, signs="+-+-")


def _grid_total(
    rng: Rng, templates: tuple[str, ...], names: dict[str, str], items: Items, *, begin: int = 0, signs: str = ""
) -> Draft:
    grid = _grid(rng)
    facts = totals(items, _digits(grid, items), begin=begin, signs=signs)
    result = facts[f"total {items[-1]}"]
    return _draft(rng, grid, templates, names, result, facts | ({"begin": str(begin)} if begin else {}), items)


def ask_maximum(rng: Rng) -> Draft:
    """The column or row of the largest digit in a line; it is there once."""
    is_column, is_reversed = rng.between(0, 1), rng.between(0, 1)
    line = rng.between(0, N_LINES - 1)
    items = _line_cells(is_column, line, is_reversed)
    while True:
        grid = _grid(rng)
        values = _digits(grid, items)
        if values.count(max(values)) == 1:
            break
    at = values.index(max(values))
    result = 1 + (N_LINES - 1 - at if is_reversed else at)
    names = {"place": ("column", "row")[is_column], "path": _line_path(is_column, line, is_reversed)}
    facts = {"largest": str(max(values)), "at": items[at], "in": f"{names['place']} {result}"}
    return _draft(rng, grid, MAXIMUM, names, result, facts | _largest(items, values), items)


def ask_grid_above(rng: Rng) -> Draft:
    """How many digits of a row, a column or a diagonal are more than another."""
    path, items = _straight(rng)
    grid, level = _grid(rng), rng.between(2, 7)
    facts, result = _above(items, _digits(grid, items), level)
    return _draft(rng, grid, GRID_ABOVE, {"path": path, "level": str(level)}, result, facts, items)


def ask_grid_compare(rng: Rng) -> Draft:
    """Whether one row's or column's sum is more than another's."""
    names, orders = _two_lines(rng)
    is_more = rng.chance(0.5)
    while True:
        grid = _grid(rng)
        values = [_digits(grid, items) for items in orders]
        first, second = map(sum, values)
        if (first > second) == is_more:
            break
    facts = totals(orders[0], values[0]) | totals(orders[1], values[1]) | _comparison(first, second)
    return _draft(rng, grid, GRID_COMPARE, {"line": names[0], "line2": names[1]}, is_more, facts, *orders)


def _grid(rng: Rng) -> Grid:
    return Grid(tuple(tuple(rng.between(0, 9) for _ in range(N_LINES)) for _ in range(N_LINES)))


def _digits(grid: Grid, items: Items) -> list[int]:
    digits = grid.values
    return [digits[item] for item in items]


# Bar charts.

HIGHEST = 9
TOTAL = ("What is the total of <bars>?", "Add <bars>. What is the sum?")
RANGE = (
    "Of <bars>, what is the difference of the tallest and the shortest?",
    "There are <bars>. How much more is the tallest than the shortest?",
)
BARS_ABOVE = (
    "Of <bars>, how many are more than <level>?",
    "There are <bars>. How many are more than <level>?",
)
BARS_COMPARE = (
    "Is the total of <item> and <item2> more than the total of <item3> and <item4>?",
    "Is <item> + <item2> more than <item3> + <item4>?",
)
SECOND = (
    "Of <bars>, which is the next tallest after the tallest?",
    "There are <bars>. Which one is second when the tallest is first?",
)


def ask_total(rng: Rng) -> Draft:
    """The total of three to six bars."""
    bars = _bars(rng, rng.between(3, 8))
    n_items = rng.between(3, min(6, len(bars.letters)))
    items = tuple(rng.shuffled(list(bars.values))[:n_items])
    heights = bars.values
    values = [heights[item] for item in items]
    return _draft(rng, bars, TOTAL, {"bars": listed(items)}, sum(values), totals(items, values), items)


def ask_range(rng: Rng) -> Draft:
    """The tallest bar less the shortest; each of them is there once."""

    def is_unique(heights: Sequence[int]) -> bool:
        return heights.count(max(heights)) == heights.count(min(heights)) == 1

    bars = _bars(rng, rng.between(3, 8), is_unique)
    result = max(bars.heights) - min(bars.heights)
    return _of_all_bars(rng, bars, RANGE, result, _largest(list(bars.values), bars.heights))


def ask_bars_above(rng: Rng) -> Draft:
    """How many bars are higher than a level."""
    bars = _bars(rng, rng.between(3, 7))
    level = rng.between(2, 7)
    facts, result = _above(list(bars.values), bars.heights, level)
    return _of_all_bars(rng, bars, BARS_ABOVE, result, facts)


def ask_bars_compare(rng: Rng) -> Draft:
    """Whether two bars together are more than two others."""
    is_more = rng.chance(0.5)
    bars = _bars(rng, rng.between(4, 8))
    items = rng.shuffled(list(bars.values))[:4]
    while True:
        heights = bars.values
        values = [heights[item] for item in items]
        first, second = sum(values[:2]), sum(values[2:])
        if (first > second) == is_more:
            break
        bars = Bars(bars.letters, _heights(rng, len(bars.letters)))
    facts = _comparison(first, second) | totals(items[:2], values[:2]) | totals(items[2:], values[2:])
    names = dict(zip(("item", "item2", "item3", "item4"), items, strict=True))
    return _draft(rng, bars, BARS_COMPARE, names, is_more, facts, tuple(items[:2]), tuple(items[2:]))


def ask_second(rng: Rng) -> Draft:
    """Which bar is the second tallest; no other is as high as one of the first two."""

    def is_unique(heights: Sequence[int]) -> bool:
        third, second, first = sorted(heights)[-3:]
        return third < second < first

    bars = _bars(rng, rng.between(4, 8), is_unique)
    heights = bars.values
    *others, third, second, first = sorted(heights, key=heights.__getitem__)
    draft = _of_all_bars(rng, bars, SECOND, second, _largest(list(heights), bars.heights))
    return replace(draft, distractors=(first, third, rng.pick(others)))


def _of_all_bars(rng: Rng, bars: Bars, templates: tuple[str, ...], result: str | int, facts: dict[str, str]) -> Draft:
    """A question about all bars, from left to right."""
    names = {"bars": listed(bars.values), "level": facts.get("level", "")}
    return _draft(rng, bars, templates, names, result, facts, tuple(bars.values))


def _bars(rng: Rng, n_bars: int, is_fit: Callable[[Sequence[int]], bool] = lambda _: True) -> Bars:
    letters = "".join(rng.shuffled(LETTERS)[:n_bars])
    while not is_fit(heights := _heights(rng, n_bars)):
        pass
    return Bars(letters, heights)


def _heights(rng: Rng, n_bars: int) -> tuple[int, ...]:
    return tuple(rng.between(0, HIGHEST) for _ in range(n_bars))


# Scenes of shapes.

COUNT = ("How many <thing> are there along <path>?", "Along <path>, how many <thing> do we see?")
TWO_LINES = (
    "How many <thing> are in <line> and <line2>, from <start> to <end>?",
    "In <line> and <line2>, from <start> to <end>, how many <thing> are there?",
)
SHAPES_COMPARE = ("Are there more <thing> in <line> than in <line2>?", "Does <line> have more <thing> than <line2>?")
POINTS = (
    "<Prices>. What are the shapes along <path> worth?",
    "<Prices>. What is the total of the points along <path>?",
)
PRICE = ("each <shape> is worth <each>", "each <shape> scores <each>")
WORTH = (1, 5)
"""Least and most points of a shape."""


def ask_count(rng: Rng) -> Draft:
    """How many shapes of some kind there are in a row, a column or a diagonal; all numbers are equally likely."""
    path, items = _straight(rng)
    wanted = rng.between(0, len(items))
    while True:
        scene, things = _shapes(rng)
        fitting = [thing for thing in things if sum(_fits(scene, items, thing)) == wanted]
        if fitting:
            break
    return _counted(rng, scene, rng.pick(fitting), items, COUNT, {"path": path})


def ask_two_lines(rng: Rng) -> Draft:
    """How many shapes of some kind there are in two rows or two columns."""
    (line, line2), orders = _two_lines(rng)
    scene, things = _shapes(rng)
    start, end = ENDS[line in COLUMNS]
    names = {"line": line, "line2": line2, "start": start, "end": end}
    return _counted(rng, scene, rng.pick(things), orders[0] + orders[1], TWO_LINES, names)


def _counted(
    rng: Rng, scene: Shapes, thing: str, items: Items, templates: tuple[str, ...], names: dict[str, str]
) -> Draft:
    facts = _count_facts(scene, items, thing)
    return _draft(rng, scene, templates, {"thing": thing} | names, facts[f"count {items[-1]}"], facts, items)


def ask_shapes_compare(rng: Rng) -> Draft:
    """Whether one row or column has more shapes of some kind than another."""
    is_more = rng.chance(0.5)
    names, orders = _two_lines(rng)
    while True:
        scene, things = _shapes(rng)
        thing = rng.pick(things)
        first, second = (sum(_fits(scene, items, thing)) for items in orders)
        if (first > second) == is_more:
            break
    facts = _count_facts(scene, orders[0], thing) | _count_facts(scene, orders[1], thing)
    slots = {"thing": thing, "line": names[0], "line2": names[1]}
    return _draft(rng, scene, SHAPES_COMPARE, slots, is_more, facts | _comparison(first, second), *orders)


def ask_points(rng: Rng) -> Draft:
    """What the shapes of a row, a column or a diagonal are worth, each kind at its price."""
    path, items = _straight(rng)
    while True:
        scene, _ = _shapes(rng)
        shown = {shape.shape for row in scene.cells for shape in row if shape is not None}
        if shown:
            break
    each = {shape: rng.between(*WORTH) for shape in rng.shuffled(SHAPES) if shape in shown}
    shapes = scene.values
    worth = [each[shape.shape] if (shape := shapes[item]) else 0 for item in items]
    facts = totals(items, worth)
    price = rng.pick(PRICE)
    prices = [filled(price, {"shape": shape, "each": str(points)}) for shape, points in each.items()]
    names = {"prices": listed(prices), "path": path}
    result = facts[f"total {items[-1]}"]
    return _draft(rng, scene, POINTS, names, result, facts | _running("each", items, worth), items)


def _shapes(rng: Rng) -> tuple[Shapes, list[str]]:
    """A scene, and the things that can be asked for because it may hold them."""
    shapes = rng.shuffled(SHAPES)[: rng.between(2, 4)]
    colours = rng.shuffled(COLOURS)[: rng.between(2, 3)]
    density = 0.5 + 0.4 * rng.uniform()
    cells = tuple(
        tuple(Shape(rng.pick(shapes), rng.pick(colours)) if rng.chance(density) else None for _ in range(N_LINES))
        for _ in range(N_LINES)
    )
    things = [PLURALS[shape] for shape in shapes] + [f"{colour} shapes" for colour in colours]
    pairs = [f"{colour} {PLURALS[shape]}" for colour in colours for shape in shapes]
    return Shapes(cells), things + rng.shuffled(pairs)[:2]


def _fits(scene: Shapes, items: Items, thing: str) -> list[bool]:
    """Whether each cell holds one of the things, such as ``red shapes``."""
    shapes = scene.values
    names = [
        (PLURALS[shape.shape], f"{shape.colour} shapes", f"{shape.colour} {PLURALS[shape.shape]}") if shape else ()
        for shape in (shapes[item] for item in items)
    ]
    return [thing in of_cell for of_cell in names]


def _count_facts(scene: Shapes, items: Items, thing: str) -> dict[str, str]:
    """Facts on whether each cell holds one of the things, and how many there are up to it."""
    fits = _fits(scene, items, thing)
    facts = {f"fits {item}": FITS[is_fit] for item, is_fit in zip(items, fits, strict=True)}
    return facts | _running("count", items, list(accumulate(map(int, fits))))


TEMPLATES = (
    *(LINE, DIAGONAL, *SUM, *PATH, *ALTERNATE, *MAXIMUM, *GRID_ABOVE, *GRID_COMPARE),
    *(*TOTAL, *RANGE, *BARS_ABOVE, *BARS_COMPARE, *SECOND),
    *(*COUNT, *TWO_LINES, *SHAPES_COMPARE, *POINTS, *PRICE),
)
"""Every question, with slots."""

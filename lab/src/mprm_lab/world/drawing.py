"""From a problem to its picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mprm_lab.draws import Draws
from mprm_lab.world.canvas import CELL, SIZE, Canvas, Colour, near
from mprm_lab.world.glyphs import HEIGHT, WIDTH, Span
from mprm_lab.world.problem import Problem
from mprm_lab.world.randomness import draws_for
from mprm_lab.world.scene import COLOURS, Bars, Grid, Shapes

LIGHT: tuple[Colour, ...] = ((246, 246, 244), (244, 238, 222), (226, 236, 246), (232, 244, 230))
DARK: tuple[Colour, ...] = ((30, 32, 40), (22, 40, 44), (46, 30, 42))
DARK_INKS: tuple[Colour, ...] = ((20, 20, 24), (150, 24, 30), (20, 60, 150), (16, 100, 50), (110, 40, 120))
LIGHT_INKS: tuple[Colour, ...] = ((244, 244, 240), (250, 200, 90), (130, 210, 250), (150, 230, 150), (250, 160, 170))
BAR_INKS: tuple[Colour, ...] = ((66, 110, 190), (206, 96, 60), (70, 150, 90), (140, 90, 170), (90, 100, 110))
SHAPE_INKS: dict[str, Colour] = {
    "red": (214, 44, 44),
    "green": (44, 156, 70),
    "blue": (44, 84, 214),
    "yellow": (232, 190, 30),
    "purple": (146, 50, 168),
}
REACH = 14
"""How far a colour may be off its name in each channel."""
AXIS = 9
"""Column of the vertical axis of a bar chart."""


def draw(problem: Problem) -> bytes:
    """The problem's picture as a PNG file of 112 × 112 pixels; a problem always has the same bytes."""
    canvas = Canvas()
    draws = draws_for(problem.source, problem.seed, "picture")
    painter: Callable[[Draws, Canvas, Any], list[Colour]] = PAINTERS[type(problem.scene)]
    colours = painter(draws, canvas, problem.scene)
    return canvas.png(colours, grain=draws.between(2, 7), key=problem.id)


def _paint_grid(draws: Draws, canvas: Canvas, grid: Grid) -> list[Colour]:
    is_dark = draws.chance(0.35)
    background = near(draws, draws.pick(DARK if is_dark else LIGHT), 8)
    inks = draws.shuffled(LIGHT_INKS if is_dark else DARK_INKS)[: draws.between(1, 3)]
    if draws.chance(0.5):
        _paint_cells(canvas)
    wide, high = draws.pick(((3, 3), (2, 3), (3, 2)))
    middle_x, middle_y = (CELL - WIDTH * wide) // 2, (CELL - HEIGHT * high) // 2
    for row, digits in enumerate(grid.digits):
        for column, digit in enumerate(digits):
            left = column * CELL + middle_x + draws.between(-3, 3)
            top = row * CELL + middle_y + draws.between(-2, 2)
            canvas.glyph(str(digit), left, top, wide, high, draws.between(2, len(inks) + 1))
    return [background, _between(background, inks[0], 3), *(near(draws, ink, REACH) for ink in inks)]


def _paint_cells(canvas: Canvas) -> None:
    """Thin lines between the cells, in ink 1."""
    for place in (CELL, 2 * CELL, 3 * CELL):
        canvas.box(place, 0, 1, SIZE, 1)
        canvas.box(0, place, SIZE, 1, 1)


def _between(one: Colour, other: Colour, part: int) -> Colour:
    """The colour that is one part in so many of the way from one to the other."""
    red, green, blue = (a + (b - a) // part for a, b in zip(one, other, strict=True))
    return red, green, blue


def _paint_bars(draws: Draws, canvas: Canvas, bars: Bars) -> list[Colour]:
    background = near(draws, draws.pick(LIGHT), 6)
    unit = draws.between(9, 10)
    base = draws.between(92, 94)
    top = base - 9 * unit
    has_lines = draws.chance(0.7)
    for level in range(1, 10):
        length = 5 if level == 5 else 3
        if has_lines:
            canvas.box(AXIS, base - level * unit, SIZE - AXIS, 1, 1)
        canvas.box(AXIS - length, base - level * unit, length, 1, 2)
    canvas.box(AXIS, top, 1, base - top, 2)
    canvas.box(AXIS - 3, base, SIZE - AXIS + 3, 1, 2)
    inks = draws.shuffled(BAR_INKS)[: draws.between(1, 3)]
    slot = (SIZE - AXIS - 6) // len(bars.letters)
    width = max(6, slot - draws.between(4, 9))
    for place, (letter, height) in enumerate(zip(bars.letters, bars.heights, strict=True)):
        left = AXIS + 3 + place * slot
        middle = left + slot // 2 + (draws.between(-1, 1) if slot > 14 else 0)
        ink = draws.between(3, len(inks) + 2)
        canvas.box(middle - width // 2, base - height * unit, width, height * unit, ink)
        canvas.glyph(letter, middle - WIDTH, base + 4, 2, 2, 2)
    axis = near(draws, DARK_INKS[0], 12)
    return [background, _between(background, axis, 7), axis, *(near(draws, ink, REACH) for ink in inks)]


def _paint_shapes(draws: Draws, canvas: Canvas, shapes: Shapes) -> list[Colour]:
    background = near(draws, draws.pick(LIGHT), 6)
    if draws.chance(0.5):
        _paint_cells(canvas)
    for row, cells in enumerate(shapes.cells):
        for column, shape in enumerate(cells):
            if shape is not None:
                side = draws.between(15, 21)
                left = column * CELL + draws.between(2, CELL - side - 1)
                top = row * CELL + draws.between(2, CELL - side - 1)
                canvas.spans(left, top, shape_spans(shape.shape, side), 2 + COLOURS.index(shape.colour))
    inks = [near(draws, SHAPE_INKS[colour], REACH) for colour in COLOURS]
    return [background, _between(background, DARK_INKS[0], 4), *inks]


PAINTERS: dict[type, Callable[[Draws, Canvas, Any], list[Colour]]] = {
    Grid: _paint_grid,
    Bars: _paint_bars,
    Shapes: _paint_shapes,
}


@cache
def shape_spans(shape: str, side: int) -> tuple[Span, ...]:
    """The pixels of a shape in a square of ``side`` pixels, reckoned in whole numbers."""
    rows = range(side)
    if shape == "square":
        return tuple((row, 1, side - 2) for row in rows[1:-1])
    if shape == "triangle":
        # the row's half width grows from nothing to half the side
        halves = [(row * side) // (2 * (side - 1)) for row in rows]
        return tuple((row, side // 2 - half, 2 * half + side % 2) for row, half in zip(rows, halves, strict=True))
    if shape == "cross":
        arm = side // 3
        return tuple((row, 0, side) if arm <= row < side - arm else (row, arm, side - 2 * arm) for row in rows)
    inside = [[(2 * x - side + 1) ** 2 + (2 * row - side + 1) ** 2 <= side * side for x in rows] for row in rows]
    return tuple((row, line.index(True), sum(line)) for row, line in enumerate(inside) if any(line))

"""From a problem to its picture: a few inks on a background, each in four shades that differ by light noise.

Every pixel is set by our own integer arithmetic: no version of an imaging library can change a picture that a corpus
was made from. Pillow only holds the result and writes it as PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import shake_128
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mprm.data import atomic_write, n_cores
from mprm_lab.world.problems import Problem, parsed_name, problem
from mprm_lab.world.rng import Rng, rng_of
from mprm_lab.world.scene import COLOURS, LETTERS, Bars, Grid, Shapes

Colour = tuple[int, int, int]
Mask = NDArray[np.bool_]

SIZE, CELL = 112, 28
"""Pixels of a side of the picture, and of each of its sixteen cells."""
WIDTH, HEIGHT = 5, 7
"""Dots of a glyph."""
_ROWS = (files("mprm_lab.world") / "glyphs.txt").read_text(encoding="ascii").splitlines()
GLYPHS: dict[str, tuple[str, ...]] = dict(
    zip("0123456789" + LETTERS, zip(*map(str.split, _ROWS), strict=True), strict=True)
)
"""Rows of each digit and letter from top to bottom, ``#`` where there is ink."""

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
N_SHADES = 4
SHADES = np.repeat(np.arange(N_SHADES, dtype=np.uint8), (176, 40, 24, 16))
"""The shade for each random byte; about a third of the pixels are off their colour."""
SHADE_OFFSETS = (0, 1, -1, 2)
DRAW_AT_ONCE = 500
"""From so many pictures on, all cores draw."""


def draw(problem: Problem) -> Image.Image:
    """The problem's picture, 112 × 112 pixels in palette mode; a problem always has the same pixels."""
    canvas = np.zeros((SIZE, SIZE), np.uint8)  # ink of each pixel, 0 for the background
    rng = rng_of(problem.source, problem.seed, "picture")
    painter: Callable[[Rng, Any, Any], list[Colour]] = PAINTERS[type(problem.scene)]
    colours = painter(rng, canvas, problem.scene)
    grain = rng.between(2, 7)  # how far the noise goes in each channel
    # SHAKE-128 is a standard: no library can change the noise
    random_bytes = np.frombuffer(shake_128(problem.id.encode()).digest(SIZE * SIZE), np.uint8)
    pixels = canvas.ravel() * np.uint8(N_SHADES) + SHADES[random_bytes]
    image = Image.frombytes("P", (SIZE, SIZE), pixels.tobytes())
    image.putpalette(
        [_clipped(channel + offset * grain) for colour in colours for offset in SHADE_OFFSETS for channel in colour]
    )
    return image


def write_images(problems: Iterable[Problem | str], root: str | Path) -> list[Path]:
    """The paths of the pictures of problems, or of their ids or names; those that are not there yet are drawn."""
    names = [(each.source, each.seed) if isinstance(each, Problem) else parsed_name(each) for each in problems]
    folder = Path(root).expanduser()
    paths = [folder / source / f"{seed}.png" for source, seed in names]
    missing = [(name, path) for name, path in zip(names, paths, strict=True) if not path.is_file()]
    if len(missing) < DRAW_AT_ONCE:
        for name, path in missing:
            _draw_file(name, path)
        return paths
    with ProcessPoolExecutor(n_cores()) as pool:
        list(pool.map(_draw_file, *zip(*missing, strict=True), chunksize=100))
    return paths


def _draw_file(name: tuple[str, int], path: Path) -> None:
    with atomic_write(str(path), sync=False) as temporary:
        draw(problem(*name)).save(temporary, "PNG", compress_level=1)


def _clipped(channel: int) -> int:
    return min(255, max(0, channel))


def _near(rng: Rng, colour: Colour, reach: int) -> Colour:
    """A colour that differs from this one by at most ``reach`` in each channel."""
    red, green, blue = (_clipped(channel + rng.between(-reach, reach)) for channel in colour)
    return red, green, blue


def _between(colour: Colour, other: Colour, part: int) -> Colour:
    """The colour that is one part in so many of the way to the other."""
    red, green, blue = (a + (b - a) // part for a, b in zip(colour, other, strict=True))
    return red, green, blue


def _stamp(canvas: Any, mask: Mask, left: int, top: int, ink: int) -> None:
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = ink


@cache
def glyph_mask(name: str, wide: int, high: int) -> Mask:
    """The pixels of a digit or letter whose dots are ``wide`` × ``high`` pixels."""
    dots = np.array([[dot == "#" for dot in row] for row in GLYPHS[name]])
    return dots.repeat(high, axis=0).repeat(wide, axis=1)


@cache
def shape_mask(shape: str, side: int) -> Mask:
    """The pixels of a shape in a square of ``side`` pixels, computed in whole numbers."""
    row, column = np.ogrid[:side, :side]
    if shape == "square":
        return (row > 0) & (row < side - 1) & (column > 0) & (column < side - 1)
    if shape == "triangle":
        half = (row * side) // (2 * (side - 1))  # the row's half width grows from nothing to half the side
        return (column >= side // 2 - half) & (column < side // 2 + half + side % 2)
    if shape == "cross":
        arm = side // 3
        return ((row >= arm) & (row < side - arm)) | ((column >= arm) & (column < side - arm))
    circle: Mask = (2 * column - side + 1) ** 2 + (2 * row - side + 1) ** 2 <= side * side
    return circle


def _paint_grid(rng: Rng, canvas: Any, grid: Grid) -> list[Colour]:
    is_dark = rng.chance(0.35)
    background = _near(rng, rng.pick(DARK if is_dark else LIGHT), 8)
    inks = rng.shuffled(LIGHT_INKS if is_dark else DARK_INKS)[: rng.between(1, 3)]
    if rng.chance(0.5):
        _paint_cells(canvas)
    wide, high = rng.pick(((3, 3), (2, 3), (3, 2)))
    middle_x, middle_y = (CELL - WIDTH * wide) // 2, (CELL - HEIGHT * high) // 2
    for row, digits in enumerate(grid.digits):
        for column, digit in enumerate(digits):
            left = column * CELL + middle_x + rng.between(-3, 3)
            top = row * CELL + middle_y + rng.between(-2, 2)
            _stamp(canvas, glyph_mask(str(digit), wide, high), left, top, rng.between(2, len(inks) + 1))
    return [background, _between(background, inks[0], 3), *(_near(rng, ink, REACH) for ink in inks)]


def _paint_cells(canvas: Any) -> None:
    """Thin lines between the cells, in ink 1."""
    canvas[:, CELL::CELL] = canvas[CELL::CELL] = 1


def _paint_bars(rng: Rng, canvas: Any, bars: Bars) -> list[Colour]:
    background = _near(rng, rng.pick(LIGHT), 6)
    unit = rng.between(9, 10)
    base = rng.between(92, 94)
    has_lines = rng.chance(0.7)
    for level in range(1, 10):
        row, length = base - level * unit, 5 if level == 5 else 3
        if has_lines:
            canvas[row, AXIS:] = 1
        canvas[row, AXIS - length : AXIS] = 2
    canvas[base - 9 * unit : base, AXIS] = 2
    canvas[base, AXIS - 3 :] = 2
    inks = rng.shuffled(BAR_INKS)[: rng.between(1, 3)]
    slot = (SIZE - AXIS - 6) // len(bars.letters)
    width = max(6, slot - rng.between(4, 9))
    for number, (letter, height) in enumerate(zip(bars.letters, bars.heights, strict=True)):
        middle = AXIS + 3 + number * slot + slot // 2 + (rng.between(-1, 1) if slot > 14 else 0)
        left = middle - width // 2
        canvas[base - height * unit : base, left : left + width] = rng.between(3, len(inks) + 2)
        _stamp(canvas, glyph_mask(letter, 2, 2), middle - WIDTH, base + 4, 2)
    axis = _near(rng, DARK_INKS[0], 12)
    return [background, _between(background, axis, 7), axis, *(_near(rng, ink, REACH) for ink in inks)]


def _paint_shapes(rng: Rng, canvas: Any, shapes: Shapes) -> list[Colour]:
    background = _near(rng, rng.pick(LIGHT), 6)
    if rng.chance(0.5):
        _paint_cells(canvas)
    for row, cells in enumerate(shapes.cells):
        for column, shape in enumerate(cells):
            if shape is not None:
                side = rng.between(15, 21)
                left = column * CELL + rng.between(2, CELL - side - 1)
                top = row * CELL + rng.between(2, CELL - side - 1)
                _stamp(canvas, shape_mask(shape.shape, side), left, top, 2 + COLOURS.index(shape.colour))
    inks = [_near(rng, SHAPE_INKS[colour], REACH) for colour in COLOURS]
    return [background, _between(background, DARK_INKS[0], 4), *inks]


PAINTERS: dict[type, Callable[[Rng, Any, Any], list[Colour]]] = {
    Grid: _paint_grid,
    Bars: _paint_bars,
    Shapes: _paint_shapes,
}

"""Reads the pictures of the world back from their pixels, knowing only how digits, letters and shapes look."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
from PIL import Image

from mprm_lab.world.drawing import GLYPHS

CELL = 28
HUES = {"red": 0, "yellow": 48, "green": 134, "blue": 227, "purple": 289}


def _dots(rows: list[str]) -> tuple[str, ...]:
    """The rows of a bitmap without empty columns at its sides."""
    inked = [column for column in range(len(rows[0])) if any(row[column] == "#" for row in rows)]
    return tuple(row[inked[0] : inked[-1] + 1] for row in rows)


BY_DOTS = {_dots(list(rows)): name for name, rows in GLYPHS.items()}


def read_pixels(picture: Image.Image) -> Any:
    return np.asarray(picture.convert("RGB")).astype(np.int16)


def _ink(pixels: Any, least: int, background: Any = None) -> Any:
    """Where the picture differs from its background by at least so much."""
    background = pixels[::3, ::3] if background is None else background
    return np.abs(pixels - np.median(background, axis=(0, 1))).sum(axis=2) >= least


def _cropped(mask: Any) -> Any:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _glyph(mask: Any) -> str:
    mask = _cropped(mask)
    high = mask.shape[0] // 7
    for wide in (2, 3):
        if mask.shape[1] in (3 * wide, 5 * wide):
            dots = mask[high // 2 :: high, wide // 2 :: wide]
            rows = tuple("".join(".#"[int(dot)] for dot in row) for row in dots)
            if rows in BY_DOTS:
                return BY_DOTS[rows]
    raise AssertionError(f"no glyph looks like\n{mask.astype(int)}")


def _cells(mask: Any) -> list[list[Any]]:
    """The inside of each cell; lines between cells are left out."""
    starts = range(0, 4 * CELL, CELL)
    return [[mask[top + 1 : top + CELL, left + 1 : left + CELL] for left in starts] for top in starts]


def read_grid(picture: Image.Image) -> list[list[int]]:
    return [[int(_glyph(cell)) for cell in row] for row in _cells(_ink(read_pixels(picture), 200))]


def read_bars(picture: Image.Image) -> dict[str, int]:
    pixels = read_pixels(picture)
    ticks = np.flatnonzero(pixels[:, 7].sum(axis=1) < 200)
    assert len(ticks) == 10, "marks from 0 to 9"
    base, unit = ticks[-1], ticks[-1] - ticks[-2]
    mask = _ink(pixels, 220, pixels[-12:, :5])  # left of the letters; bars can fill most of the picture
    below = mask[base + 2 :]
    columns = np.flatnonzero(below.any(axis=0))
    letters = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    heights = {}
    for letter in letters:
        middle = (letter[0] + letter[-1]) // 2
        above = mask[:base, middle][::-1]
        n_pixels = len(above) if above.all() else int(np.argmin(above))
        assert n_pixels % unit == 0
        heights[_glyph(below[:, letter[0] : letter[-1] + 1])] = n_pixels // unit
    return heights


def read_shapes(picture: Image.Image) -> list[list[tuple[str, str] | None]]:
    """Shape and colour in each cell."""
    pixels = read_pixels(picture)
    mask = _ink(pixels, 120)
    starts = range(0, 4 * CELL, CELL)
    colours = [[pixels[top + 1 : top + CELL, left + 1 : left + CELL] for left in starts] for top in starts]
    return [
        [_shape(cell, colour) for cell, colour in zip(row, row_colours, strict=True)]
        for row, row_colours in zip(_cells(mask), colours, strict=True)
    ]


def _shape(mask: Any, colours: Any) -> tuple[str, str] | None:
    if not mask.any():
        return None
    hue = 360 * colorsys.rgb_to_hsv(*(colours[mask].mean(axis=0) / 255))[0]
    colour = min(HUES, key=lambda name: abs((hue - HUES[name] + 180) % 360 - 180))
    inked = _cropped(mask)
    widths = inked.sum(axis=1) / inked.shape[1]
    if widths[0] > 0.9:
        shape = "square"
    elif widths[-1] > 0.9:
        shape = "triangle"
    else:
        shape = "circle" if widths[len(widths) // 4] > 0.6 else "cross"
    return shape, colour

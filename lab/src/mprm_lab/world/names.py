"""What sentences call the things of the world."""

from __future__ import annotations

from collections.abc import Iterable

from mprm_lab.world.glyphs import LETTERS
from mprm_lab.world.scene import COLOURS, N_LINES, SHAPES

LINES = tuple(f"{kind} {number + 1}" for kind in ("row", "column") for number in range(N_LINES))
ROWS, COLUMNS = LINES[:N_LINES], LINES[N_LINES:]
CELLS = tuple(f"cell {number + 1}" for number in range(N_LINES * N_LINES))
"""Row by row: one number for a place is far sooner learnt than a row and a column."""
BARS = tuple(f"bar {letter}" for letter in LETTERS)
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
SHAPE_THINGS = (
    *PLURALS.values(),
    *(f"{colour} shapes" for colour in COLOURS),
    *(f"{colour} {PLURALS[shape]}" for colour in COLOURS for shape in SHAPES),
)
NOTHING = "nothing"
LOOKS = (NOTHING, *(f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES))
"""What a cell of a scene can hold."""
OPTIONS = "ABCD"
MORE = {True: "more than", False: "not more than"}
FITS = {True: "counts", False: "does not count"}
LARGEST = 99
"""No number of the world is larger."""


def cell_name(row: int, column: int) -> str:
    """The name of a cell; places count from 0, names from 1.

    Examples
    --------
    >>> cell_name(1, 2)
    'cell 7'
    """
    return CELLS[row * N_LINES + column]


def listed(names: Iterable[str]) -> str:
    """The names with commas, and "and" before the last.

    Examples
    --------
    >>> listed(["bar F", "bar G", "bar K"])
    'bar F, bar G and bar K'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

"""Scenes: what the pictures show, what their parts are called, and what is true of them whatever the question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

N_LINES = 4
"""Rows of a picture, and columns."""
SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = ("red", "green", "blue", "yellow", "purple")
LETTERS = "FGHJKLPSTX"
"""Names of bars: letters that look little alike, and none that names an option."""

ROWS = tuple(f"row {number + 1}" for number in range(N_LINES))
COLUMNS = tuple(f"column {number + 1}" for number in range(N_LINES))
CELLS = tuple(f"cell {number + 1}" for number in range(N_LINES * N_LINES))
"""Row by row: small models learn one number for a cell far sooner than a row and a column."""
BARS = tuple(f"bar {letter}" for letter in LETTERS)
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
NOTHING = "nothing"
LOOKS = (NOTHING, *(f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES))
"""What a cell of a scene of shapes can hold."""
MORE = {True: "more than", False: "not more than"}

Facts = Mapping[str, str]
"""What is true: the value of each fact. `mprm_lab.world.grammar` lists them."""
Words = tuple[str, ...]


def cell_name(row: int, column: int) -> str:
    """The name of a cell, such as ``cell 7`` for row 1 and column 2, both from 0."""
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


@dataclass(frozen=True, slots=True)
class Grid:
    """Digits in four rows of four."""

    digits: tuple[tuple[int, ...], ...]
    """Row by row."""

    @property
    def values(self) -> dict[str, int]:
        """The digit of each cell."""
        return dict(zip(CELLS, (digit for row in self.digits for digit in row), strict=True))

    def facts(self) -> dict[str, str]:
        """Every digit, and whether it is more than each other digit."""
        return _value_facts(self.values)

    def patch_words(self) -> list[Words]:
        """Words for what each of the sixteen patches shows, row by row."""
        return [(str(digit),) for digit in self.values.values()]


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of three to eight bars."""

    letters: str
    """Their names from left to right."""
    heights: tuple[int, ...]
    """From 0 to 9."""

    @property
    def values(self) -> dict[str, int]:
        """The height of each bar, from left to right."""
        return {f"bar {letter}": height for letter, height in zip(self.letters, self.heights, strict=True)}

    def facts(self) -> dict[str, str]:
        """Every height, whether it is above each level, and the tallest and shortest bars where they are unique."""
        heights = self.values
        high, low = max(self.heights), min(self.heights)
        facts = _value_facts(heights) | {"high": str(high), "low": str(low), "difference": str(high - low)}
        ranked = sorted(heights, key=heights.__getitem__)
        for name, rank in (("shortest", 0), ("tallest", -1), ("next tallest", -2)):
            if self.heights.count(heights[ranked[rank]]) == 1:
                facts[name] = ranked[rank]
        if "tallest" not in facts:  # then no bar comes after the tallest
            facts.pop("next tallest", None)
        return facts

    def patch_words(self) -> list[Words]:
        """Words for each of the sixteen patches.

        The bars are shared out in order over the eight half columns. The upper two rows name their heights, in left
        and in right halves; the lower two, where the letters are drawn, the letters and heights, so that a model that
        attends to a letter finds its height at the same token.
        """
        n_halves = 2 * N_LINES
        bars = [half * len(self.letters) // n_halves for half in range(n_halves)]
        upper = [(str(self.heights[bar]),) for bar in bars]
        lower = [(self.letters[bar], str(self.heights[bar])) for bar in bars]
        return [*upper[::2], *upper[1::2], *lower[::2], *lower[1::2]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A coloured shape."""

    shape: str
    colour: str


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes in some of sixteen cells."""

    cells: tuple[tuple[Shape | None, ...], ...]
    """Row by row; None where a cell is empty."""

    @property
    def values(self) -> dict[str, Shape | None]:
        """What each cell holds."""
        return dict(zip(CELLS, (shape for row in self.cells for shape in row), strict=True))

    def facts(self) -> dict[str, str]:
        """What every cell holds, in words."""
        return {
            f"value {cell}": f"a {shape.colour} {shape.shape}" if shape else NOTHING
            for cell, shape in self.values.items()
        }

    def patch_words(self) -> list[Words]:
        """Words for what each of the sixteen patches shows, row by row; 0 where nothing is."""
        return [(shape.colour, shape.shape) if shape else ("0",) for shape in self.values.values()]


Scene = Grid | Bars | Shapes


def _value_facts(values: dict[str, int]) -> dict[str, str]:
    """The value of each item, and whether it is more than each number from 0 to 9."""
    facts = {f"value {item}": str(value) for item, value in values.items()}
    for item, value in values.items():
        facts |= {f"relation {item} {level}": MORE[value > level] for level in range(10)}
    return facts

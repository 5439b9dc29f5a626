"""What the pictures show."""

from __future__ import annotations

from dataclasses import dataclass

N_LINES = 4
"""Rows of a picture, and columns."""

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = ("red", "green", "blue", "yellow", "purple")


@dataclass(frozen=True, slots=True)
class Grid:
    """Digits in four rows of four."""

    digits: tuple[tuple[int, ...], ...]
    """Row by row."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of three to eight bars."""

    letters: str
    """Their names from left to right."""
    heights: tuple[int, ...]
    """From 0 to 9."""


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


Scene = Grid | Bars | Shapes

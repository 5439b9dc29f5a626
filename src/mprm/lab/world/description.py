"""What a picture shows, in few words: those who learn to see have something to say about all of it."""

from __future__ import annotations

from mprm.lab.world.problem import Problem
from mprm.lab.world.scene import Bars, Grid, Shape, Shapes

LOOK = "What does the picture show?"
POINT = "What is at each place?"
NOTHING = "none"


def description(problem: Problem) -> list[str]:
    """A line for each row of the picture, or for all bars.

    Examples
    --------
    >>> from mprm.lab.world import problem
    >>> description(problem("bars-total", 3))
    ['Bars S 3, T 0, F 7, H 0, L 4.']
    """
    scene = problem.scene
    if isinstance(scene, Bars):
        told = (f"{letter} {height}" for letter, height in zip(scene.letters, scene.heights, strict=True))
        return [f"Bars {', '.join(told)}."]
    rows = _digits(scene) if isinstance(scene, Grid) else _shapes(scene)
    return [f"Row {number} {', '.join(row)}." for number, row in enumerate(rows, 1)]


def _digits(grid: Grid) -> list[list[str]]:
    return [[str(digit) for digit in row] for row in grid.digits]


def _shapes(shapes: Shapes) -> list[list[str]]:
    return [[_shape(shape) for shape in row] for row in shapes.cells]


def _shape(shape: Shape | None) -> str:
    return f"{shape.colour} {shape.shape}" if shape else NOTHING

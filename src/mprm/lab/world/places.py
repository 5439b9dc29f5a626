"""What is at each of a picture's sixteen places, in a word or two."""

from __future__ import annotations

from mprm.lab.world.canvas import CELL, SIZE
from mprm.lab.world.drawing import bar_middles
from mprm.lab.world.problem import Problem
from mprm.lab.world.scene import N_LINES, Bars, Grid, Shape, Shapes

Words = tuple[str, ...]


def places(problem: Problem) -> list[Words]:
    """Row by row: a digit, the colour and the shape, or the letter and the height of a bar; 0 where nothing is.

    A chart's bars are about as wide as a place or less: the upper two places of a column are for the bar nearest to
    the middle of its left half, the lower two for that of its right half.

    Examples
    --------
    >>> from mprm.lab.world import problem
    >>> places(problem("bars-total", 3))[:4]
    [('S', '3'), ('T', '0'), ('F', '7'), ('L', '4')]
    """
    scene = problem.scene
    if isinstance(scene, Bars):
        return _bars(scene)
    if isinstance(scene, Grid):
        return [(str(digit),) for row in scene.digits for digit in row]
    return _shapes(scene)


def _shapes(scene: Shapes) -> list[Words]:
    def words(shape: Shape | None) -> Words:
        return (shape.colour, shape.shape) if shape else ("0",)

    return [words(shape) for row in scene.cells for shape in row]


def _bars(bars: Bars) -> list[Words]:
    middles = bar_middles(len(bars.letters))
    found = list[Words]()
    for row in range(N_LINES):
        for x in range(CELL // 4 if row < N_LINES // 2 else 3 * CELL // 4, SIZE, CELL):
            bar = min(range(len(middles)), key=lambda bar: abs(middles[bar] - x))
            found.append((bars.letters[bar], str(bars.heights[bar])))
    return found

"""What is at each of a picture's sixteen places, in a word or two."""

from __future__ import annotations

from mprm.lab.world.canvas import CELL, SIZE
from mprm.lab.world.drawing import bar_middles
from mprm.lab.world.problem import Problem
from mprm.lab.world.scene import N_LINES, Bars, Grid, Shape, Shapes

Words = tuple[str, ...]


def places(problem: Problem) -> list[Words]:
    """Row by row: a digit, the colour and the shape, or the height or letter of a bar; 0 where nothing is.

    A chart's bars are about as wide as a place or less: the upper two places of a column are for the heights of the
    bars nearest to the middles of its halves, the lower two for their letters, which stand below.

    Examples
    --------
    >>> from mprm.lab.world import problem
    >>> places(problem("bars-total", 3))[:4]
    [('3',), ('0',), ('7',), ('4',)]
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
        names = bars.letters if row >= N_LINES // 2 else "".join(map(str, bars.heights))
        for x in range((1, 3)[row % 2] * CELL // 4, SIZE, CELL):
            found.append((names[min(range(len(middles)), key=lambda bar: abs(middles[bar] - x))],))
    return found

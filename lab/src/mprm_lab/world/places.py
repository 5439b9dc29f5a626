"""What is at each of a picture's sixteen places, in a word or two."""

from __future__ import annotations

from mprm_lab.world.problem import Problem
from mprm_lab.world.scene import N_LINES, Bars, Grid, Shape, Shapes

Words = tuple[str, ...]


def places(problem: Problem) -> list[Words]:
    """Row by row: a digit, the colour and the shape, or the height or letter of a bar; 0 where nothing is.

    A chart's bars are shared out in order over the eight half columns: the upper two rows name their heights, in left
    and in right halves, and the lower two, where the letters stand, the letters and heights: who looks for a letter
    finds its height at the same place.

    Examples
    --------
    >>> from mprm_lab.world import problem
    >>> places(problem("bars-total", 3))[:4]
    [('3',), ('0',), ('7',), ('0',)]
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
    n_halves = 2 * N_LINES
    heights = [str(bars.heights[half * len(bars.heights) // n_halves]) for half in range(n_halves)]
    letters = [bars.letters[half * len(bars.letters) // n_halves] for half in range(n_halves)]
    upper = [(height,) for height in heights]
    lower = list(zip(letters, heights, strict=True))
    return [*upper[::2], *upper[1::2], *lower[::2], *lower[1::2]]

"""Questions about a scene of shapes."""

from __future__ import annotations

from itertools import accumulate

from mprm_lab.draws import Draws
from mprm_lab.world.asked import Asked, compared, totals, yes_no
from mprm_lab.world.names import CELLS, FITS, PLURALS, listed
from mprm_lab.world.paths import WAYS, Cells, line_cells, line_name, straight
from mprm_lab.world.picture_facts import shape_facts
from mprm_lab.world.problem import Run
from mprm_lab.world.scene import COLOURS, N_LINES, SHAPES, Shape, Shapes
from mprm_lab.world.sentence import filled

COUNT = ("How many <thing> are there along <path>?", "Along <path>, how many <thing> do we see?")
LINES = (
    "How many <thing> are in <line> and <line2>, from <start> to <end>?",
    "In <line> and <line2>, from <start> to <end>, how many <thing> are there?",
)
COMPARE = ("Are there more <thing> in <line> than in <line2>?", "Does <line> have more <thing> than <line2>?")
POINTS = (
    "<Prices>. What are the shapes along <path> worth?",
    "<Prices>. What is the total of the points along <path>?",
)
PRICE = ("each <shape> is worth <each>", "each <shape> scores <each>")
WORTH = (1, 5)
"""Least and most points of a shape."""


def ask_count(draws: Draws) -> Asked:
    """How many shapes of some kind there are in a row, a column or a diagonal; any number is as likely as others."""
    path, items = straight(draws)
    wanted = draws.between(0, len(items))
    while True:
        scene, things = _scene(draws)
        fit = [thing for thing in things if _number(scene, items, thing) == wanted]
        if fit:
            break
    thing = draws.pick(fit)
    return _counted(draws, scene, thing, items, COUNT, {"path": path})


def ask_lines(draws: Draws) -> Asked:
    """How many shapes of some kind there are in two rows or two columns."""
    along = draws.between(0, 1)
    one, two = draws.shuffled(range(N_LINES))[:2]
    scene, things = _scene(draws)
    start, end = WAYS[along]
    names = {"line": line_name(along, one), "line2": line_name(along, two), "start": start, "end": end}
    items = line_cells(along, one) + line_cells(along, two)
    return _counted(draws, scene, draws.pick(things), items, LINES, names)


def _counted(
    draws: Draws, scene: Shapes, thing: str, items: Cells, questions: tuple[str, ...], names: dict[str, str]
) -> Asked:
    return Asked(
        scene=scene,
        question=filled(draws.pick(questions), {"thing": thing} | names),
        result=str(_number(scene, items, thing)),
        runs=(Run(thing, items),),
        facts=shape_facts(scene) | _counts(scene, items, thing),
    )


def ask_compare(draws: Draws) -> Asked:
    """Whether one row or column has more shapes of some kind than another."""
    is_more = draws.chance(0.5)
    along = draws.between(0, 1)
    lines = draws.shuffled(range(N_LINES))[:2]
    one, two = (line_cells(along, line) for line in lines)
    while True:
        scene, things = _scene(draws)
        thing = draws.pick(things)
        first, second = _number(scene, one, thing), _number(scene, two, thing)
        if (first > second) == is_more:
            break
    names = [line_name(along, line) for line in lines]
    return Asked(
        scene=scene,
        question=filled(draws.pick(COMPARE), {"thing": thing, "line": names[0], "line2": names[1]}),
        result=yes_no(is_more),
        runs=(Run(names[0], one), Run(names[1], two)),
        facts=shape_facts(scene) | _counts(scene, one, thing) | _counts(scene, two, thing) | compared(first, second),
    )


def ask_points(draws: Draws) -> Asked:
    """What the shapes of a row, a column or a diagonal are worth, each kind at its price."""
    path, items = straight(draws)
    while True:
        scene, _ = _scene(draws)
        shown = {shape.shape for row in scene.cells for shape in row if shape is not None}
        if shown:
            break
    each = {shape: draws.between(*WORTH) for shape in draws.shuffled(SHAPES) if shape in shown}
    worth = [each[shape.shape] if shape else 0 for shape in _shapes(scene, items)]
    running = totals(items, worth)
    price = draws.pick(PRICE)
    told = [filled(price, {"shape": shape, "each": str(points)}) for shape, points in each.items()]
    return Asked(
        scene=scene,
        question=filled(draws.pick(POINTS), {"prices": listed(told), "path": path}),
        result=running[f"total {items[-1]}"],
        runs=(Run("", items),),
        facts=shape_facts(scene)
        | running
        | {f"each {item}": str(points) for item, points in zip(items, worth, strict=True)},
    )


def _scene(draws: Draws) -> tuple[Shapes, list[str]]:
    """A scene, and the things that can be asked for because it may hold them."""
    shapes = draws.shuffled(SHAPES)[: draws.between(2, 4)]
    colours = draws.shuffled(COLOURS)[: draws.between(2, 3)]
    full = 0.5 + 0.4 * draws.uniform()
    places = range(N_LINES)
    cells = tuple(
        tuple(Shape(draws.pick(shapes), draws.pick(colours)) if draws.chance(full) else None for _ in places)
        for _ in places
    )
    things = [PLURALS[shape] for shape in shapes] + [f"{colour} shapes" for colour in colours]
    pairs = [f"{colour} {PLURALS[shape]}" for colour in colours for shape in shapes]
    return Shapes(cells), things + draws.shuffled(pairs)[:2]


def _shapes(scene: Shapes, items: Cells) -> list[Shape | None]:
    shapes = [shape for row in scene.cells for shape in row]
    return [shapes[CELLS.index(item)] for item in items]


def _fits(shape: Shape | None, thing: str) -> bool:
    """Whether a shape is one of the things, such as ``red shapes``."""
    if shape is None:
        return False
    kind = PLURALS[shape.shape]
    return thing in (kind, f"{shape.colour} shapes", f"{shape.colour} {kind}")


def _number(scene: Shapes, items: Cells, thing: str) -> int:
    return sum(_fits(shape, thing) for shape in _shapes(scene, items))


def _counts(scene: Shapes, items: Cells, thing: str) -> dict[str, str]:
    """Facts on whether each cell holds one of the things, and how many there are up to it."""
    fits = [_fits(shape, thing) for shape in _shapes(scene, items)]
    facts = {f"fits {item}": FITS[is_one] for item, is_one in zip(items, fits, strict=True)}
    return facts | {f"count {item}": str(int(n)) for item, n in zip(items, accumulate(fits), strict=True)}

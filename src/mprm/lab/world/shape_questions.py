"""Questions about a scene of shapes."""

from __future__ import annotations

from itertools import accumulate

from mprm.lab.draws import Draws
from mprm.lab.world.asked import Asked, compared, totals, yes_no
from mprm.lab.world.grid_questions import COUNT
from mprm.lab.world.names import COLUMNS, PLURALS, ROWS, listed
from mprm.lab.world.picture_facts import shape_facts
from mprm.lab.world.problem import Run
from mprm.lab.world.scene import COLOURS, N_LINES, SHAPES, Shape, Shapes
from mprm.lab.world.sentence import filled

BESIDE = ("<Counted>, how many <thing> are <side>?", "How many <thing> are <side>, <counted>?")
COMPARE = (
    "From <line> to <line2>, are there more <thing> than <thing2>?",
    "Are there more <thing> than <thing2> from <line> to <line2>?",
)
POINTS = (
    "<Prices>. What are all the shapes worth?",
    "<Prices>. What is the total of the points?",
)
PRICE = ("each <shape> is worth <each>", "each <shape> gives <each> points")
SIDES = {
    "left of column 3": COLUMNS[:2],
    "left of column 4": COLUMNS[:3],
    "right of column 1": COLUMNS[1:],
    "right of column 2": COLUMNS[2:],
    "above row 3": ROWS[:2],
    "above row 4": ROWS[:3],
    "below row 1": ROWS[1:],
    "below row 2": ROWS[2:],
}
COUNTED = {"column": "from left to right", "row": "from top to bottom"}
WORTH = (1, 5)
"""Least and most points of a shape."""


def ask_count(draws: Draws) -> Asked:
    """How many shapes of some kind there are."""
    scene, things = _scene(draws)
    thing = draws.pick(things)
    lines = draws.pick((ROWS, ROWS[::-1], COLUMNS, COLUMNS[::-1]))
    return _counted(draws, scene, thing, lines, COUNT, {"line": lines[0], "line2": lines[-1]})


def ask_beside(draws: Draws) -> Asked:
    """How many shapes of some kind are on one side of a row or column."""
    scene, things = _scene(draws)
    side = draws.pick(list(SIDES))
    lines = SIDES[side]
    names = {"side": side, "counted": COUNTED[lines[0].split()[0]]}
    return _counted(draws, scene, draws.pick(things), lines, BESIDE, names)


def _counted(
    draws: Draws,
    scene: Shapes,
    thing: str,
    lines: tuple[str, ...],
    questions: tuple[str, ...],
    names: dict[str, str],
) -> Asked:
    facts = shape_facts(scene)
    numbers = [int(facts[f"number {thing} {line}"]) for line in lines]
    return Asked(
        scene=scene,
        question=filled(draws.pick(questions), {"thing": thing} | names),
        result=str(sum(numbers)),
        runs=(Run(thing, lines),),
        facts=facts | totals(f"{thing} ", lines, numbers),
    )


def ask_compare(draws: Draws) -> Asked:
    """Whether there are more shapes of one kind than of another."""
    is_more = draws.chance(0.5)
    while True:
        scene, things = _scene(draws)
        one, two = draws.shuffled(things)[:2]
        facts = shape_facts(scene)
        first, second = int(facts[f"number {one}"]), int(facts[f"number {two}"])
        # a circle more than red circles would need no look at the picture
        if (first > second) == is_more and not set(one.split()) & set(two.split()) - {"shapes"}:
            break
    lines = draws.pick((ROWS, COLUMNS))
    for thing in (one, two):
        facts |= totals(f"{thing} ", lines, [int(facts[f"number {thing} {line}"]) for line in lines])
    names = {"thing": one, "thing2": two, "line": lines[0], "line2": lines[-1]}
    return Asked(
        scene=scene,
        question=filled(draws.pick(COMPARE), names),
        result=yes_no(is_more),
        runs=(Run(one, lines), Run(two, lines)),
        facts=facts | compared(first, second),
    )


def ask_points(draws: Draws) -> Asked:
    """What all shapes are worth, each kind at its price."""
    scene, _ = _scene(draws)
    shown = {shape.shape for row in scene.cells for shape in row if shape is not None}
    shapes = [shape for shape in draws.shuffled(SHAPES) if shape in shown]
    each = {shape: draws.between(*WORTH) for shape in shapes}
    facts = shape_facts(scene)
    items = tuple(PLURALS[shape] for shape in shapes)
    worth = [int(facts[f"number {PLURALS[shape]}"]) * each[shape] for shape in shapes]
    for name, value, points in zip(items, worth, accumulate(worth), strict=True):
        facts[f"worth {name}"], facts[f"points {name}"] = str(value), str(points)
    facts |= {f"each {PLURALS[shape]}": str(price) for shape, price in each.items()}
    price = draws.pick(PRICE)
    prices = listed(filled(price, {"shape": shape, "each": str(each[shape])}) for shape in shapes)
    return Asked(
        scene=scene,
        question=filled(draws.pick(POINTS), {"prices": prices}),
        result=str(sum(worth)),
        runs=(Run("", items),),
        facts=facts,
    )


def _scene(draws: Draws) -> tuple[Shapes, list[str]]:
    """A scene, and the things that can be asked for because it may hold them."""
    shapes = draws.shuffled(SHAPES)[: draws.between(2, 4)]
    colours = draws.shuffled(COLOURS)[: draws.between(2, 3)]
    full = 0.5 + 0.4 * draws.uniform()
    places = range(N_LINES)
    while True:
        cells = tuple(
            tuple(Shape(draws.pick(shapes), draws.pick(colours)) if draws.chance(full) else None for _ in places)
            for _ in places
        )
        if any(any(row) for row in cells):
            break
    things = [PLURALS[shape] for shape in shapes] + [f"{colour} shapes" for colour in colours]
    pairs = [f"{colour} {PLURALS[shape]}" for colour in colours for shape in shapes]
    return Shapes(cells), things + draws.shuffled(pairs)[:2]

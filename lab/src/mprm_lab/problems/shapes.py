"""geomverse: a quantity of one shape through the side that it shares with another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script

SCRIPT = Script(
    openings=(
        "The figure is made of two shapes that share the side {B}{C}: the {colour} rectangle {A}{B}{C}{D}"
        " and {shape}.",
        "Two shapes meet at the side {B}{C} in this figure, namely the {colour} rectangle {A}{B}{C}{D} and {shape}.",
    ),
    work=(
        (
            "What is asked for belongs to the second shape, and it needs the length of {B}{C}; this must"
            " come from the rectangle.",
            "The length of {B}{C} is not given, yet it is the link: once it is known, the second shape can"
            " be worked out.",
        ),
        (
            "The area of the {colour} rectangle is {area} and {A}{B} = {side}, so ${B}{C} ="
            " \\frac{{{area}}}{{{side}}} = {link}$.",
            "Since the area of a rectangle is the product of its sides, {B}{C} = {area} ÷ {side} = {link}.",
        ),
        (
            "For the second shape, {rule}. With the numbers at hand this is ${sum} = {found}$.",
            "Now use that {rule}. Substituting what is known gives ${sum} = {found}$.",
        ),
    ),
    checks=(
        "Multiplying back, ${side} \\cdot {link} = {area}$ holds, so the shared side {B}{C} has the right length.",
        "The result {found} is of a sensible size when it is compared with the shared side of length {link}.",
        "Both shapes have been used exactly once, and no length that the figure gives is left over.",
        "In short, the rectangle gives {B}{C} = {link}, and from this the second shape gives {found}.",
    ),
    asides=(
        "The side {B}{C} is opposite to {A}{D} and just as long.",
        "No unit is given, so lengths and areas stay plain numbers.",
        "Opposite sides of the rectangle {A}{B}{C}{D} are equal.",
        "The order of work is therefore rectangle first, second shape afterwards.",
    ),
    slip="the shared side {B}{C} has the length {link}, and this leads to {found}",
)
"""Two hops: a rectangle gives a side, the side gives the second shape."""


@dataclass(frozen=True, slots=True)
class SecondShape:
    """A shape on the side that the rectangle gives."""

    name: str
    given: str
    ask: str
    rule: str
    work_out: Callable[[int, int], tuple[str, str]]
    """From the shared side and the number given: the calculation and its result."""


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


SECOND_SHAPES = (
    SecondShape(
        "a semicircle with {B}{C} as its diameter",
        "",
        "the perimeter of the semicircle, with π taken as 3.14",
        "the perimeter of a semicircle is half of the circle, $\\frac{3.14 d}{2}$, and the diameter $d$",
        lambda s, _: (f"\\frac{{3.14 \\cdot {s}}}{{2}} + {s}", _number(1.57 * s + s)),
    ),
    SecondShape(
        "a square with the side {B}{C}",
        "",
        "the area of the square",
        "the area of a square is the square of its side",
        lambda s, _: (f"{s}^2", str(s * s)),
    ),
    SecondShape(
        "a right triangle with the legs {B}{C} and {C}E",
        " The leg {C}E has the length {given}.",
        "the area of the right triangle",
        "the area of a right triangle is half the product of its legs",
        lambda s, given: (f"\\frac{{{s} \\cdot {given}}}{{2}}", _number(s * given / 2)),
    ),
    SecondShape(
        "a parallelogram on the base {B}{C}",
        " Its other side has the length {given}.",
        "the perimeter of the parallelogram",
        "the perimeter of a parallelogram is twice the sum of two neighbouring sides",
        lambda s, given: (f"2 \\cdot ({s} + {given})", str(2 * (s + given))),
    ),
    SecondShape(
        "a second rectangle with an equilateral triangle on {B}{C} cut out of it",
        " The other side of the second rectangle has the length {given}.",
        "the perimeter of the second shape",
        "the boundary consists of two sides of the rectangle and three sides of the length {B}{C}",
        lambda s, given: (f"2 \\cdot {given} + 3 \\cdot {s}", str(2 * given + 3 * s)),
    ),
)


def draw_problem(draws: Draws) -> Problem:
    """A rectangle, a second shape on one of its sides, and a question about the second."""
    shape = draws.pick(SECOND_SHAPES)
    names = dict(zip("ABCD", draws.pick(("ABCD", "FGHI", "KLMN", "PQRS")), strict=True))
    colour = draws.pick(("blue", "cyan", "green", "grey", "lime", "orange", "purple", "red", "yellow"))
    side, link, given = draws.between(6, 24), draws.between(5, 23), draws.between(6, 25)

    def facts(link_read: int) -> Facts:
        calculation, found = shape.work_out(link_read, given)
        words = {"colour": colour, "shape": shape.name.format_map(names), "rule": _rule(shape, names)}
        numbers = {"area": side * link, "side": side, "link": link_read, "sum": calculation}
        return {**names, **words, **numbers, "found": found, "answer": found}

    extra = shape.given.format_map({**names, "given": given})
    return Problem(
        question=(
            f"The side {names['B']}{names['C']} is shared by the {colour} rectangle {''.join(names.values())}"
            f" and {shape.name.format_map(names)}. The area of the {colour} rectangle is {side * link} and"
            f" {names['A']}{names['B']} = {side}.{extra} Compute {shape.ask}."
        ),
        script=SCRIPT,
        right=facts(link),
        wrong=tuple(facts(link + shift) for shift in (-2, -1, 1, 2, 10)),
    )


def _rule(shape: SecondShape, names: dict[str, str]) -> str:
    return shape.rule.replace("{B}{C}", names["B"] + names["C"])

"""mavis_poly: a cubic function read off its graph."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script

SCRIPT = Script(
    openings=(
        "The graph is that of a cubic function: it crosses the $x$-axis three times and its ends point in"
        " opposite ways.",
        "Look at the curve first: three crossings of the $x$-axis and no asymptote mean that a polynomial"
        " of degree three is drawn.",
    ),
    work=(
        (
            "Read the zeros off the graph. The curve meets the $x$-axis at $x = {r1}$, $x = {r2}$ and $x = {r3}$.",
            "The crossings with the $x$-axis lie at ${r1}$, ${r2}$ and ${r3}$, and none of them only"
            " touches the axis.",
        ),
        (
            "A cubic with these zeros has the factored form $f(x) = a{f1}{f2}{f3}$ with one unknown factor $a$.",
            "Each zero gives a linear factor, hence $f(x) = a{f1}{f2}{f3}$, where the number $a$ is still"
            " to be found.",
        ),
        (
            "The marked point $({p}, {y})$ lies on the curve. At $x = {p}$ the three factors multiply to"
            " ${unit}$, so $a \\cdot ({unit}) = {y}$ and $a = {a}$.",
            "To find $a$, use the marked point: $f({p}) = {y}$ while the product of the factors is ${unit}$"
            " there, which gives $a = {a}$.",
        ),
        (
            "Expand the first two factors: ${f1}{f2} = {quadratic}$. The third factor is kept for the next line.",
            "Multiplying the first two brackets term by term yields ${f1}{f2} = {quadratic}$.",
        ),
        (
            "Multiply by the third factor: $({quadratic}){f3} = {monic}$, where like terms have been collected.",
            "Bringing in the last bracket, we get $({quadratic}){f3} = {monic}$ after collecting like terms.",
        ),
        (
            "With the factor $a = {a}$ the expression of the function is $f(x) = {full}$.",
            "Multiplying every coefficient by ${a}$ gives the expanded function $f(x) = {full}$.",
        ),
        ("{finish}",),
    ),
    checks=(
        "Check one zero: putting $x = {r1}$ into the factored form makes the factor ${f1}$ vanish, so"
        " $f({r1}) = 0$ as the graph shows.",
        "The constant term ${constant}$ is where the curve should cross the $y$-axis, and this looks right"
        " on the graph.",
        "The leading coefficient ${a}$ fits the picture, because the right end of the curve goes {way}"
        " without bound.",
        "Putting the marked point in once more, ${a} \\cdot ({unit}) = {y}$, so the factor $a = {a}$ is confirmed.",
        "The sum of the zeros is ${sum}$, and this is minus the second coefficient divided by the first, as"
        " it has to be.",
    ),
    asides=(
        "A polynomial has no restriction on its domain.",
        "The scale of both axes is one unit a grid line.",
        "A cubic is fixed by its three zeros and one more point.",
        "All coefficients come out as whole numbers here.",
        "The turning points are not needed for this.",
        "The order of the factors does not matter.",
    ),
    slip="the marked point is $({p}, {y})$, so the factor is $a = {a}$ and the value asked for is ${answer}$",
)
"""A cubic from its graph."""


def polynomial(coefficients: list[int]) -> str:
    """The polynomial in LaTeX, highest power first.

    Examples
    --------
    >>> polynomial([2, 0, -1, 3])
    '2x^3 - x + 3'
    """
    text = ""
    for power, value in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if value == 0:
            continue
        sign = (" - " if value < 0 else " + ") if text else ("-" if value < 0 else "")
        size = "" if abs(value) == 1 and power else str(abs(value))
        text += sign + size + ("" if power == 0 else "x" if power == 1 else f"x^{power}")
    return text or "0"


def draw_problem(draws: Draws) -> Problem:
    """Three zeros, a marked point, and a question about the cubic through them."""
    r1, r2, r3 = sorted(draws.shuffled([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5])[:3])
    p = draws.pick([x for x in (-2, -1, 0, 1, 2, 3) if x not in (r1, r2, r3)])
    unit = (p - r1) * (p - r2) * (p - r3)
    a, t = draws.pick((-3, -2, -1, 1, 2, 3)), draws.between(6, 9)
    quadratic = [1, -r1 - r2, r1 * r2]
    monic = [1, -r1 - r2 - r3, r1 * r2 + r1 * r3 + r2 * r3, -r1 * r2 * r3]
    asks_slope = draws.chance(0.5)
    mark = "f'" if asks_slope else "f"

    def facts(a: int) -> Facts:
        full = [a * value for value in monic]
        slope = [3 * full[0], 2 * full[1], full[2]]
        used = slope if asks_slope else full
        value = sum(c * t**power for power, c in enumerate(reversed(used)))
        before = f"The derivative is $f'(x) = {polynomial(slope)}$, and" if asks_slope else "Evaluating this,"
        finish = f"{before} at $x = {t}$ we get ${mark}({t}) = {value}$, which is the value that was asked for."
        factors = {f"f{n}": f"({polynomial([1, -root])})" for n, root in enumerate((r1, r2, r3), 1)}
        forms = {"quadratic": polynomial(quadratic), "monic": polynomial(monic), "full": polynomial(full)}
        point = {"p": p, "y": a * unit, "unit": unit}
        ends = {"a": a, "constant": full[3], "way": "up" if a > 0 else "down"}
        roots = {"r1": r1, "r2": r2, "r3": r3, "sum": r1 + r2 + r3}
        return {**factors, **forms, **point, **ends, **roots, "finish": finish, "answer": str(value)}

    ask = draws.pick(("What is ${}$?", "Determine the value of ${}$.", "Compute ${}$ from the graph."))
    return Problem(
        question="The picture shows the graph of a polynomial function $f$ and one marked point on it. "
        + ask.format(f"{mark}({t})"),
        script=SCRIPT,
        right=facts(a),
        wrong=tuple(facts(other) for other in (-a, a + 1, a - 1, 2 * a) if other not in (0, a)),
    )

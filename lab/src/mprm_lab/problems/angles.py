"""geometry3k: find x from angles that add up."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script, lettered

SCRIPT = Script(
    openings=(
        "The figure shows {setting}. One angle is labelled $({a}x + {b})^\\circ$ and another one {c}°.",
        "Start with the labels: {setting}, an angle of $({a}x + {b})^\\circ$ and an angle that measures {c}°.",
    ),
    work=(
        (
            "The unknown sits in ∠{P}, so the aim is an equation in which $x$ is the only letter that is left.",
            "We are asked for $x$, which occurs only in the label of ∠{P}; every other label is a plain number.",
        ),
        (
            "Recall the theorem that applies to this figure: {theorem}.",
            "Here the following fact helps: {theorem}.",
        ),
        (
            "Applied to the labels this says that ∠{P} and ∠{Q} together make {e}°, that is, $({a}x + {b})"
            " + {c} = {e}$.",
            "Writing it with the labels of the figure gives $({a}x + {b}) + {c} = {e}$, where all terms are degrees.",
        ),
        (
            "Combine the two constants on the left-hand side: ${b} + {c} = {bc}$, so the equation becomes"
            " ${a}x + {bc} = {e}$.",
            "Adding the numbers ${b}$ and ${c}$ turns the equation into the shorter form ${a}x + {bc} = {e}$.",
        ),
        (
            "Subtract ${bc}$ from both sides to keep only the term with $x$ on the left: ${a}x = {e} - {bc} = {ax}$.",
            "Moving ${bc}$ to the other side leaves ${a}x = {ax}$, since ${e} - {bc} = {ax}$.",
        ),
        (
            "Divide both sides by ${a}$ to obtain $x = \\frac{{{ax}}}{{{a}}} = {x}$, which is choice"
            " {letter} in the list.",
            "Dividing by ${a}$ gives $x = {x}$. Among the four choices this value stands next to the letter"
            " {letter}.",
        ),
    ),
    checks=(
        "As a check, put $x = {x}$ back: ∠{P} = ${a} \\cdot {x} + {b}$ = {whole}°, and {whole}° + {c}° = {e}°.",
        "The size of ∠{P} then is {whole}°, which is positive and smaller than 180°, as an angle of such a"
        " figure must be.",
        "No other choice works, because the left-hand side grows with $x$ and meets {e} only at $x = {x}$.",
        "The drawing is not to scale, so the labels and not the looks of ∠{P} and ∠{Q} decide.",
    ),
    asides=(
        "All angles are measured in degrees.",
        "Note that ∠{P} is the one with the variable in its label.",
        "The equation is linear, so it has exactly one solution.",
        "Lengths play no part in this, only the angles ∠{P} and ∠{Q} do.",
    ),
    slip="the angle ∠{Q} measures {c}°, so that $x = {x}$",
)
"""``(a x + b) + c = e``, in several figures."""

FIGURES: tuple[tuple[str, str, int | None], ...] = (
    (
        "triangle {P}{Q}{R} with one side extended beyond {R}",
        "an exterior angle of a triangle equals the sum of the two remote interior angles, and it measures {e}° here",
        None,
    ),
    (
        "the angles ∠{P} and ∠{Q} side by side along a straight line",
        "two angles that form a linear pair add up to 180°",
        180,
    ),
    (
        "triangle {P}{Q}{R} with a right angle at {R}",
        "the two acute angles of a right triangle are complementary and add up to 90°",
        90,
    ),
    (
        "quadrilateral {P}{R}{Q}S inscribed in a circle",
        "opposite angles of a quadrilateral that is inscribed in a circle are supplementary, so they add up to 180°",
        180,
    ),
    (
        "two parallel lines and a transversal that meets them in {P} and {Q}",
        "interior angles on the same side of a transversal between parallel lines add up to 180°",
        180,
    ),
)


def draw_problem(draws: Draws) -> Problem:
    """A figure, its two angles and four choices for x."""
    setting, theorem, total = draws.pick(FIGURES)
    points = dict(zip("PQR", draws.pick(("ABC", "DEF", "KLM", "PQR", "TUV", "XYZ")), strict=True))
    a, b, x = draws.between(2, 6), draws.between(1, 12), draws.between(4, 9)
    e = total or a * x + b + draws.between(25, 75)
    c = e - a * x - b
    shifts = draws.shuffled([-2, -1, 1, 2, 3])[:3]
    options, letters = lettered(draws.shuffled([str(x + shift) for shift in [0, *shifts]]))

    def facts(shift: int) -> Facts:
        """All numbers of the solution when c is misread by as much as moves x by ``shift``."""
        found = {"x": x + shift, "c": c - a * shift, "ax": a * (x + shift), "bc": b + c - a * shift}
        words = {"setting": setting.format_map(points), "theorem": theorem.format(e=e), **points}
        letter = letters[str(x + shift)]
        whole = a * (x + shift) + b
        return {"a": a, "b": b, "e": e, "whole": whole, "letter": letter, "answer": letter, **found, **words}

    ask = draws.pick(("Find the value of $x$.", "Solve for $x$ in the figure.", "What is the value of $x$?"))
    return Problem(
        question=f"{ask}\nChoices:\n{options}",
        script=SCRIPT,
        right=facts(0),
        wrong=tuple(facts(shift) for shift in shifts),
        wants="letter",
    )

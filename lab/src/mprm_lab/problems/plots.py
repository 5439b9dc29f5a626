"""figureqa: a yes-or-no question about two colours in a synthetic plot."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script

SCRIPT = Script(
    openings=(
        "The figure is a {plot} with {n} entries, each in a colour of its own that the legend names.",
        "We have a {plot} here. Its {n} entries carry the names of colours, {one} and {two} among them.",
    ),
    work=(
        (
            "The {part} of {one} reaches about {v1} on the scale, as far as this can be read without a grid.",
            "Take {one} first. Its {part} corresponds to a value of roughly {v1}.",
        ),
        (
            "For {two}, {why}, the {part} corresponds to a value of roughly {v2}.",
            "Now compare it with {two}, {why}. Its {part} is at about {v2} on the same scale.",
        ),
        (
            "Since {v1} is {relation} {v2}, the statement in the question {verdict}, and the answer is {answer}.",
            "The value {v1} is {relation} {v2}. What the question claims therefore {verdict}: the answer is"
            " {answer}.",
        ),
    ),
    checks=(
        "The gap between {one} and {two} is about {gap}, which is large enough to be seen in the {plot}.",
        "The other entries do not matter, because the question names what has to be compared.",
        "A look at the legend makes sure that {one} and {two} were not mixed up.",
    ),
    asides=(
        "The shades of {one} and {two} are easy to tell apart.",
        "There are no numbers printed in the {plot}, so this is an estimate.",
        "The scale is the same for all {n} entries.",
        "Only the order of the values counts here, not their exact size.",
    ),
    slip="{one} stands at {v1}, which is {relation} the {v2} of {two}",
)

COLOURS = (
    "Aqua", "Blue Violet", "Burlywood", "Cadet Blue", "Chocolate", "Coral", "Crimson", "Dark Cyan",
    "Deep Pink", "Firebrick", "Forest Green", "Gold", "Hot Pink", "Indigo", "Khaki", "Lawn Green", "Maroon",
    "Medium Blue", "Navy Blue", "Olive", "Orchid", "Peru", "Rosy Brown", "Salmon", "Sienna", "Sky Blue",
    "Teal", "Tomato", "Violet",
)  # fmt: skip
PLOTS = (
    ("vertical bar chart", "bar"),
    ("horizontal bar chart", "bar"),
    ("pie chart", "slice"),
    ("line plot", "peak"),
    ("dot-line plot", "dot"),
)


def draw_problem(draws: Draws) -> Problem:
    """Two colours with their values, and a claim about them."""
    plot, part = draws.pick(PLOTS)
    n = draws.between(3, 7)
    one, two = draws.shuffled(COLOURS)[:2]
    v2 = draws.between(25, 75)
    gap = draws.between(2, 20)
    is_above = draws.chance(0.5)
    claim, claims_above, why = draws.pick(
        (
            ("Is {} greater than {}?", True, "the colour that it is measured against"),
            ("Is {} less than {}?", False, "the colour that it is measured against"),
            ("Is {} the maximum?", True, "which has the largest value among the others"),
            ("Is {} the minimum?", False, "which has the smallest value among the others"),
        )
    )

    def facts(is_above: bool, gap: int) -> Facts:
        holds = is_above == claims_above
        names = {"plot": plot, "part": part, "n": n, "one": one, "two": two, "why": why}
        values = {"v1": v2 + gap if is_above else v2 - gap, "v2": v2, "gap": gap}
        relation = "greater than" if is_above else "less than"
        verdict = "holds" if holds else "does not hold"
        return {
            **names,
            **values,
            "relation": relation,
            "verdict": verdict,
            "answer": "Yes" if holds else "No",
        }

    return Problem(
        question=claim.format(one, two),
        script=SCRIPT,
        right=facts(is_above, gap),
        wrong=tuple(facts(not is_above, other) for other in (1, 2, 3, 5)),
    )

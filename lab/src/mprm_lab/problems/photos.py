"""vqav2: how many of something a photo shows."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script

SCRIPT = Script(
    openings=(
        "The photo shows {scene}. The question is about the {things}, so these have to be found and counted"
        " with care.",
        "In this picture we see {scene}. I look for all {things}, including those that are partly hidden.",
        "What we have here is a photo of {scene}, and the task is to count the {things} in it.",
    ),
    work=(
        (
            "On the left-hand side I can make out {left} of them, and {right} more on the right-hand side;"
            " each of the {things} is counted once.",
            "Going from left to right, the left half of the photo has {left}, and the right half has {right}."
            " The {things} in the middle were given to the side that shows more of them.",
        ),
        (
            "Adding both sides gives {left} + {right} = {total}, so there are {total} {things} to be seen"
            " in the photo.",
            "Taken together these are {left} + {right} = {total} {things}, which answers the question.",
        ),
    ),
    checks=(
        "Counting once more from right to left leads to {total} again, so none of the {things} was missed.",
        "Things that only look similar, such as {decoy}, are not counted.",
        "The background is out of focus, but nothing there looks like one of the {things}.",
    ),
    asides=(
        "The light is good enough to tell the {things} from {decoy}.",
        "The photo was taken {hour}, to judge by the shadows.",
        "Those at the edge of the photo are counted as well, since they can still be recognised.",
        "What lies outside of the photo does not count.",
        "The {things} are near the camera and therefore easy to recognise.",
    ),
    slip="the count is {left} on the left and {right} on the right, which makes {total} {things} in all",
)

SCENES = (
    (
        "a busy street crossing",
        ("cars", "bicycles", "umbrellas", "traffic lights", "pigeons"),
        "the road signs",
    ),
    (
        "a kitchen with a wooden table",
        ("cups", "plates", "apples", "spoons", "chairs"),
        "the jars on the shelf",
    ),
    (
        "a beach on a windy day",
        ("surfboards", "kites", "dogs", "towels", "children"),
        "the posts in the sand",
    ),
    (
        "a pasture in front of some hills",
        ("cows", "sheep", "horses", "birds", "trees"),
        "the rocks in the grass",
    ),
    (
        "a living room with a large sofa",
        ("cushions", "books", "lamps", "cats", "pictures"),
        "the toys on the floor",
    ),
    (
        "a market stall under an awning",
        ("baskets", "melons", "customers", "crates", "scales"),
        "the paper bags",
    ),
    (
        "a ski slope in bright sun",
        ("skiers", "flags", "snowboards", "chairlifts", "huts"),
        "the poles of the fence",
    ),
    (
        "a harbour with calm water",
        ("boats", "gulls", "ropes", "fishermen", "buoys"),
        "the reflections in the water",
    ),
    (
        "a tennis court behind a fence",
        ("players", "balls", "rackets", "benches", "spectators"),
        "the marks on the court",
    ),
)
HOURS = ("early in the morning", "around noon", "in the afternoon", "towards the evening")


def draw_problem(draws: Draws) -> Problem:
    """A scene with some things left and right."""
    scene, kinds, decoy = draws.pick(SCENES)
    things, hour = draws.pick(kinds), draws.pick(HOURS)
    left, right = draws.between(1, 6), draws.between(2, 5)

    def facts(left: int, right: int) -> Facts:
        words = {"scene": scene, "things": things, "decoy": decoy, "hour": hour}
        total = left + right
        return {**words, "left": left, "right": right, "total": total, "answer": str(total)}

    asks = (
        "How many {} are there?",
        "How many {} can be seen in the picture?",
        "What is the number of {} in the photo?",
    )
    return Problem(
        question=draws.pick(asks).format(things),
        script=SCRIPT,
        right=facts(left, right),
        wrong=(
            facts(left + 1, right),
            facts(left, right + 1),
            facts(left + 2, right),
            facts(left, right - 1),
        ),
    )

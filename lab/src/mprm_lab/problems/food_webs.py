"""ai2d: who eats whom in a diagram of a food web."""

from __future__ import annotations

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script, lettered

SCRIPT = Script(
    openings=(
        "The diagram shows a food web of a {habitat}. The arrows run from the {producer} at the bottom up"
        " to the {top}.",
        "This is a diagram of the living things in a {habitat}, joined by arrows that show how energy is passed on.",
        "Several organisms of a {habitat} are drawn here, among them {producer}, {subject} and {top}, with"
        " arrows in between.",
    ),
    work=(
        (
            "An arrow in such a diagram points from the organism that is eaten to the organism that eats it.",
            "By convention the arrow head is at the eater: energy flows from the food to the animal that"
            " feeds on it.",
        ),
        (
            "Now find the {subject} in the diagram. The arrow that matters for the question joins it with"
            " the {found}.",
            "Following the arrows around the {subject}, the one that answers the question leads to the {found}.",
        ),
        (
            "So {claim}, and in the list of options the {found} is found under the letter {letter}.",
            "This means that {claim}. The option that names the {found} is {letter}.",
        ),
    ),
    checks=(
        "The other options can be ruled out, since no arrow joins them with the {subject} in the direction"
        " that is asked for.",
        "It also makes sense in nature: in a {habitat} it is common that {claim}.",
        "The {producer} makes its own food from sunlight, which is why the whole web starts there.",
        "The {top} stands at the end of the arrows, so nothing in the picture feeds on it.",
        "To be sure, trace the whole chain once more from the {producer} to the {top}; the {subject} is"
        " passed on the way.",
    ),
    asides=(
        "Each arrow stands for one feeding relation.",
        "The {subject} is drawn with its name beside it, so it is easy to find.",
        "The pictures themselves matter less than the arrows.",
        "Organisms without an arrow to the {subject} can be left out.",
        "The position on the page says nothing; only the arrows count.",
    ),
    slip="the arrow says that {claim}",
)

WEBS = (
    ("pond", ("algae", "water flea", "minnow", "perch", "heron")),
    ("meadow", ("grass", "grasshopper", "frog", "snake", "hawk")),
    ("forest", ("oak tree", "caterpillar", "blue tit", "sparrowhawk", "fox")),
    ("cold ocean", ("phytoplankton", "krill", "squid", "seal", "orca")),
    ("desert", ("cactus", "kangaroo rat", "rattlesnake", "roadrunner", "coyote")),
    ("tundra", ("lichen", "lemming", "ermine", "snowy owl", "wolf")),
    ("rocky shore", ("seaweed", "limpet", "crab", "gull", "sea eagle")),
    ("savanna", ("acacia", "termite", "aardvark", "hyena", "lion")),
    ("river", ("waterweed", "mayfly larva", "trout", "otter", "bear")),
    ("coral reef", ("plankton", "small shrimp", "butterflyfish", "grouper", "reef shark")),
)


def draw_problem(draws: Draws) -> Problem:
    """A food chain, one organism of it, and a question about its neighbour."""
    habitat, chain = draws.pick(WEBS)
    place = draws.between(1, 3)
    subject, looks_down = chain[place], draws.chance(0.5)
    others = [name for name in chain if name != subject]
    options, letters = lettered(draws.shuffled(others))

    def facts(found: str) -> Facts:
        claim = f"the {subject} feeds on the {found}" if looks_down else f"the {subject} is eaten by the {found}"
        ends = {"producer": chain[0], "top": chain[-1]}
        words = {"habitat": habitat, "subject": subject, "found": found, "claim": claim}
        return {**ends, **words, "letter": letters[found], "answer": letters[found]}

    below, above = chain[place - 1], chain[place + 1]
    right = below if looks_down else above
    asks = (
        (
            "What does the {} feed on?",
            "In the diagram, which organism is food for the {}?",
            "The {} gets its energy directly from what?",
        )
        if looks_down
        else (
            "Which organism eats the {}?",
            "In the diagram, to what is the {} food?",
            "What gets its energy directly from the {}?",
        )
    )
    is_pair = draws.chance(0.03)
    note = " The second image is an enlarged part of the first." if is_pair else ""
    return Problem(
        question=f"{draws.pick(asks).format(subject)}{note}\n{options}",
        script=SCRIPT,
        right=facts(right),
        wrong=tuple(facts(name) for name in others if name != right),
        wants="letter",
        n_images=2 if is_pair else 1,
    )

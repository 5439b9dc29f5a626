"""scienceqa: which of two samples has more of something, by a rule of school science."""

from __future__ import annotations

from dataclasses import dataclass

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script, lettered

SCRIPT = Script(
    openings=(
        "The picture shows two {things} side by side, {one} on the left and {two} on the right, with the"
        " data that are needed.",
        "We are given two {things}, {one} and {two}, and have to decide which of them has the {goal}.",
    ),
    work=(
        (
            "The idea behind the question is this: {rule}.",
            "To decide it, remember from science class that {rule}.",
        ),
        (
            "According to the picture, the {quantity} is {v1}{unit} for {one} and {v2}{unit} for {two}.",
            "Reading the data, {one} has a {quantity} of {v1}{unit}, whereas {two} has one of {v2}{unit}.",
        ),
        (
            "It follows that {result}. This is what option {letter} says.",
            "Hence {result}, which corresponds to option {letter} in the list.",
        ),
    ),
    checks=(
        "Everything else about the two {things} is the same, so only the {quantity} can make a difference.",
        "The option that calls both alike can be judged by the numbers {v1} and {v2} alone.",
        "The rule works in one direction only, and it was applied in that direction: {rule}.",
        "Put differently, the comparison of {v1}{unit} with {v2}{unit} settles the matter without any"
        " further calculation.",
    ),
    asides=(
        "The two {things} are drawn at the same size.",
        "Only a comparison is asked for, so no exact amount of anything has to be found.",
        "The {quantity} is the piece of data that counts.",
        "The names {one} and {two} are given below the drawings.",
        "The colours in the drawing have no meaning of their own.",
    ),
    slip="the {quantity} is {v1}{unit} for {one} against {v2}{unit} for {two}, so {result}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two samples and the rule that compares them."""

    things: str
    name: str
    goal: str
    quantity: str
    unit: str
    rule: str
    is_smaller_better: bool
    low: int
    high: int


EXPERIMENTS = (
    Experiment(
        things="solutions",
        name="Solution",
        goal="higher concentration of coloured particles",
        quantity="number of coloured particles",
        unit="",
        rule="with the same volume of solvent, more solute particles mean a higher concentration",
        is_smaller_better=False,
        low=3,
        high=14,
    ),
    Experiment(
        things="samples of gas",
        name="sample",
        goal="higher temperature",
        quantity="average particle speed",
        unit=" m/s",
        rule="among particles of equal mass, faster ones have more kinetic energy and a higher temperature",
        is_smaller_better=False,
        low=620,
        high=1680,
    ),
    Experiment(
        things="pairs of magnets",
        name="Pair",
        goal="stronger magnetic force between the magnets",
        quantity="distance between the magnets",
        unit=" cm",
        rule="the magnetic force between magnets that are alike is stronger when they are closer together",
        is_smaller_better=True,
        low=3,
        high=30,
    ),
    Experiment(
        things="cups of water at the same temperature",
        name="cup",
        goal="greater amount of thermal energy",
        quantity="mass of water",
        unit=" g",
        rule="at the same temperature and of the same material, more mass holds more thermal energy",
        is_smaller_better=False,
        low=90,
        high=480,
    ),
    Experiment(
        things="runners",
        name="Runner",
        goal="higher average speed over the same track",
        quantity="time for the track",
        unit=" s",
        rule="over the same distance, the one who takes less time has the higher average speed",
        is_smaller_better=True,
        low=41,
        high=95,
    ),
    Experiment(
        things="springs with the same load",
        name="Spring",
        goal="greater stiffness",
        quantity="stretch under the load",
        unit=" mm",
        rule="a spring that stretches less under the same load is the stiffer one",
        is_smaller_better=True,
        low=8,
        high=70,
    ),
)


def draw_problem(draws: Draws) -> Problem:
    """Two samples with a quantity each, and which of them comes out on top."""
    kind = draws.pick(EXPERIMENTS)
    one, two = f"{kind.name} A", f"{kind.name} B"
    v1 = draws.between(kind.low, kind.high)
    v2 = v1 if draws.chance(0.1) else draws.between(kind.low, kind.high)
    alike = "neither; they are the same"
    options, letters = lettered(draws.shuffled([one, two, alike]))

    def facts(v1: int) -> Facts:
        wins = None if v1 == v2 else one if (v1 < v2) == kind.is_smaller_better else two
        result = f"{wins or 'neither'} has the {kind.goal}" + ("" if wins else ", as the values are equal")
        letter = letters[wins or alike]
        names = {"things": kind.things, "one": one, "two": two, "goal": kind.goal, "quantity": kind.quantity}
        values = {"v1": v1, "v2": v2, "unit": kind.unit, "rule": kind.rule}
        return {**names, **values, "result": result, "letter": letter, "answer": letter}

    right = facts(v1)
    misread = [facts(v2), facts(v2 + 1 + v2 // 9), facts(v2 - 1 - v2 // 9)]
    is_pair = draws.chance(0.03)
    note = " Each image shows one of the two." if is_pair else ""
    return Problem(
        question=f"Compare the two {kind.things}. Which has the {kind.goal}?{note}\n{options}",
        script=SCRIPT,
        right=right,
        wrong=tuple(facts for facts in misread if facts["answer"] != right["answer"]),
        wants="letter",
        n_images=2 if is_pair else 1,
    )

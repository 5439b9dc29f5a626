"""What a problem is."""

from __future__ import annotations

from dataclasses import dataclass, field

from mprm.data.types import Question
from mprm_lab.world.scene import Scene
from mprm_lab.world.sentence import Facts


@dataclass(frozen=True, slots=True)
class Run:
    """Items that the question takes in this order, one running total after each."""

    name: str
    """What the items make up together: a row, a kind of shape."""
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question about a picture, with all that is true of it."""

    source: str
    seed: int
    scene: Scene
    question: str
    """With the options, where there are any."""
    options: tuple[str, ...]
    """The texts of options A to D; empty for open answers."""
    answer: str
    """A number, Yes or No, or the letter of an option."""
    runs: tuple[Run, ...]
    """The question's own order: one run, two for comparisons."""
    facts: Facts = field(repr=False, hash=False)
    """What sentences about the problem can claim, and what is true: see `mprm_lab.world.forms`."""

    @property
    def id(self) -> str:
        """The source and the seed, from which the problem can be made again, such as ``grid-sum/17``."""
        return f"{self.source}/{self.seed}"

    @property
    def image(self) -> str:
        """Where its picture lies under an image root."""
        return f"{self.id}.png"


def as_question(problem: Problem) -> Question:
    """The problem as policies are asked it."""
    return Question(
        id=problem.id,
        question=problem.question,
        answer=problem.answer,
        images=(problem.image,),
        source=problem.source,
        options=problem.options,
    )

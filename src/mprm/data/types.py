"""What a rollout is: one question, its images, and steps with their Monte-Carlo scores.

A chain of steps without labels: what a process reward model scores.

What a question is: the text, its images, and the answer that is right.

What a benchmark holds: a solution whose steps someone has judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
import xxhash

Score = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Step(msgspec.Struct, frozen=True, gc=False):
    """One reasoning step and what is known of its worth.

    ``score`` is the success rate of the continuations sampled after the step, in [0, 1]; a label
    set by hand or by threshold is 1.0 or 0.0. The counts behind it are None where the file has none.
    The field names of v1.1-Raw are the ones in ``msgspec.field``, so that its steps decode to this.
    """

    text: str = msgspec.field(name="step")
    score: Score
    n_correct: Count | None = msgspec.field(default=None, name="num_mc_correct")
    n_total: Count | None = msgspec.field(default=None, name="num_mc_total")

    @property
    def never_sampled(self) -> bool:
        """Whether no continuation was sampled, so that the score of 0 is an assumption."""
        return self.n_total == 0


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of steps that answers a question about some images."""

    question: str
    """The question alone, as the reward model sees it."""
    steps: tuple[Step, ...]
    images: tuple[str, ...] = ()
    prompt: str | None = None
    """The question with the answer instruction that the policy saw, where the file has both."""
    answer: str | None = None
    source: str | None = None
    """The data set it comes from, where the record says so; else the file's name stands for it."""

    @property
    def scores(self) -> tuple[float, ...]:
        """The score of each step, in order."""
        return tuple(step.score for step in self.steps)

    @property
    def chain(self) -> Chain:
        """What a reward model sees: no scores."""
        return Chain(self.question, tuple(step.text for step in self.steps), self.images)


@dataclass(frozen=True, slots=True)
class Chain:
    """A question, its images, and the steps that someone took to answer it."""

    question: str
    steps: tuple[str, ...]
    images: tuple[Any, ...] = ()
    """Paths as the data names them, or PIL images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A problem to be solved, with its gold answer."""

    id: str
    question: str
    """The question as a person reads it, options of a multiple choice included."""
    answer: str
    """The gold answer; the letter of the option for multiple choice."""
    images: tuple[str, ...] = ()
    """Image paths as the file names them."""
    source: str = ""
    options: tuple[str, ...] = ()
    """The texts of options A, B, C, …; empty for open answers."""


CORRECT, IGNORED, INCORRECT = 1, 0, -1
"""Labels of a step; an ignored one is neutral, or nobody judged it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A question, steps that answer it, and the label of each step."""

    id: str
    source: str
    """The data set or kind that per-source metrics group by."""
    problem: str
    """Key of the problem: solutions with the same key are held out, and drawn, together."""
    question: str
    steps: tuple[str, ...]
    labels: tuple[int, ...]
    """1 correct, -1 incorrect, 0 ignored; one for each step."""
    first_error: int | None
    """Number of the first incorrect step, from 0; None for a solution without error."""
    images: tuple[str, ...] = ()
    place: str = ""
    """FILE:LINE that it was read from."""

    @property
    def chain(self) -> Chain:
        """What a step scorer is given: no labels."""
        return Chain(self.question, self.steps, self.images)


def problem_key(question: str, images: tuple[str, ...] = ()) -> str:
    r"""Key of a problem: the same for the same question and images, whoever solved it and wherever it lies.

    White space does not count.

    Examples
    --------
    >>> problem_key("What is  x?\n") == problem_key("What is x?") != problem_key("What is x?", ("a.png",))
    True
    """
    parts = (" ".join(question.split()), *images)
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode("utf-8", "replace"))


def first_error_of(labels: tuple[int, ...]) -> int | None:
    """Number of the first incorrect step, from 0; None when there is none.

    Examples
    --------
    >>> first_error_of((1, 0, -1, 1)), first_error_of((1, 0))
    (2, None)
    """
    return labels.index(INCORRECT) if INCORRECT in labels else None


class StepScorer(Protocol):
    """Scores the steps of chains. `mprm.PRM` is one."""

    def score_many(
        self, chains: Sequence[Chain], *, on_scored: Callable[[int], None] | None = None
    ) -> list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for a step that truncation cut off.

        ``on_scored`` is called with the number of chains done since the last call.
        """
        ...

"""What a rollout is: one question, its images, and steps with their Monte-Carlo scores."""

from __future__ import annotations

from typing import Annotated

import msgspec

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

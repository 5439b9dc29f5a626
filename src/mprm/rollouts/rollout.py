"""What a rollout is: one question, its images, and steps with their Monte-Carlo scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One reasoning step and what is known of its worth.

    ``score`` is the success rate of the continuations sampled after the step, in [0, 1]; a label
    set by hand or by threshold is 1.0 or 0.0. The counts behind it are None where the file has none.
    """

    text: str
    score: float
    n_correct: int | None = None
    n_total: int | None = None

    @property
    def never_sampled(self) -> bool:
        """Whether no continuation was sampled, so that the score of 0 is an assumption."""
        return self.n_total == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
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

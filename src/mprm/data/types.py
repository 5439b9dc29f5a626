"""What flows between the stages: rollouts, questions, labelled solutions, candidates, chains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Protocol

import msgspec
import xxhash

from mprm.errors import ConfigError
from mprm.progress import Progress

Score = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Step(msgspec.Struct, frozen=True, gc=False):
    """One reasoning step and its Monte-Carlo score.

    ``score`` is the success rate of the continuations sampled after the step, in [0, 1]; a label set by hand or by
    threshold is 1.0 or 0.0. The counts are None where the file has none. The names in ``msgspec.field`` are those of
    v1.1-Raw, whose steps decode to this.
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
    """A chain of scored steps that answers a question about some images."""

    question: str
    """The question alone, as the reward model sees it."""
    steps: tuple[Step, ...]
    images: tuple[str, ...] = ()
    prompt: str | None = None
    """The question with the answer instruction that the policy saw, where the file has both."""
    answer: str | None = None
    source: str | None = None
    """The data set it comes from, where the record says so; else the file's name is the source."""

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
    """A question, its images, and steps without labels: what a process reward model scores."""

    question: str
    steps: tuple[str, ...]
    images: tuple[Any, ...] = ()
    """Paths as the data names them, or PIL images."""


class StepScorer(Protocol):
    """Scores the steps of chains; `mprm.PRM` is one."""

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = ...) -> list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for a step that truncation cut off."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One sampled solution of a question."""

    text: str
    steps: tuple[str, ...]
    finish_reason: str | None = None
    is_correct: bool | None = None
    """The label that the file gives; None where it gives none and the answer must be checked."""
    step_scores: tuple[float, ...] | None = None
    """Scores that the file gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSet:
    """A question with its candidates, at least one."""

    question: Question
    candidates: tuple[Candidate, ...]
    location: str
    """FILE:LINE."""

    @property
    def key(self) -> tuple[str, str]:
        """Source and id: no two sets have the same."""
        return self.question.source, self.question.id

    @property
    def solutions(self) -> list[Solution]:
        """The candidates as solutions without labels; candidate k of a question has its id with "#k" behind it."""
        question = self.question
        problem = problem_key(question.question, question.images)
        return [
            Solution(
                id=f"{question.id}#{index}",
                source=question.source,
                problem=problem,
                question=question.question,
                steps=candidate.steps,
                images=question.images,
                location=self.location,
            )
            for index, candidate in enumerate(self.candidates)
        ]

    @property
    def is_labelled(self) -> bool:
        """Whether the file says which candidates are correct."""
        return all(candidate.is_correct is not None for candidate in self.candidates)


CORRECT, IGNORED, INCORRECT = 1, 0, -1
"""Labels of a step; an ignored one is neutral, or nobody labelled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A question, steps that answer it, and the label of each step: one item of a step benchmark."""

    id: str = ""
    source: str = ""
    """The data set or kind that per-source metrics group by."""
    problem: str
    """Key of the problem: solutions with the same key are held out, and resampled, together."""
    question: str
    steps: tuple[str, ...]
    labels: tuple[int, ...] = ()
    """1 correct, -1 incorrect, 0 ignored; one for each step."""
    images: tuple[str, ...] = ()
    location: str = ""
    """FILE:LINE."""

    @property
    def first_error(self) -> int | None:
        """Index of the first incorrect step; None for a solution without error."""
        return first_error_of(self.labels)

    @property
    def chain(self) -> Chain:
        """What a step scorer is given: no labels."""
        return Chain(self.question, self.steps, self.images)


def problem_key(question: str, images: tuple[str, ...] = ()) -> str:
    r"""Key of a problem: the same for the same question and images, whoever solved it and whatever file it is in.

    White space does not count.

    Examples
    --------
    >>> problem_key("What is  x?\n") == problem_key("What is x?") != problem_key("What is x?", ("a.png",))
    True
    """
    parts = (" ".join(question.split()), *images)
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode("utf-8", "replace"))


def first_error_of(labels: tuple[int, ...]) -> int | None:
    """Index of the first incorrect step; None when there is none.

    Examples
    --------
    >>> first_error_of((1, 0, -1, 1)), first_error_of((1, 0))
    (2, None)
    """
    return labels.index(INCORRECT) if INCORRECT in labels else None


STEP_SEPARATOR = "\n\n"
_BLANK_LINES = re.compile(r"\n\s*\n")


def split_steps(text: str, max_steps: int | None = None) -> tuple[str, ...]:
    r"""The steps of a response: it is split at blank lines, and white space around steps is dropped.

    Where there are more than ``max_steps``, neighbours are joined again, so that each step is made of nearly as many
    pieces as any other.

    Examples
    --------
    >>> split_steps("First.\n\nThen.\n \nSo 4.")
    ('First.', 'Then.', 'So 4.')
    >>> split_steps("a\n\nb\n\nc\n\nd\n\ne", max_steps=2)
    ('a\n\nb', 'c\n\nd\n\ne')
    """
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be at least 1, got {max_steps}")
    pieces = [stripped for piece in _BLANK_LINES.split(text) if (stripped := piece.strip())]
    n = len(pieces)
    k = n if max_steps is None else min(n, max_steps)
    cuts = [number * n // k for number in range(k + 1)] if k else [0]
    return tuple(STEP_SEPARATOR.join(pieces[start:end]) for start, end in pairwise(cuts))

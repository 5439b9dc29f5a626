"""What a benchmark holds: a solution whose steps someone has judged."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from mprm.rollouts.chain import Chain

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
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def first_error_of(labels: tuple[int, ...]) -> int | None:
    """Number of the first incorrect step, from 0; None when there is none.

    Examples
    --------
    >>> first_error_of((1, 0, -1, 1)), first_error_of((1, 0))
    (2, None)
    """
    return labels.index(INCORRECT) if INCORRECT in labels else None

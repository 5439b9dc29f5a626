"""What a question is: the text, its images, and the answer that is right."""

from __future__ import annotations

from dataclasses import dataclass


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

"""The outcome of comparing a response with the gold answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["correct", "wrong", "failed"]
"""``failed``: the checker itself could not decide (time-out, crash); never counted as wrong in silence."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One response, judged."""

    verdict: Verdict
    answer: str | None
    """The final answer of the response, normalised so that equal answers vote together; None if none was found."""
    reason: str | None = None
    """Why the checker failed, or that no answer was found."""

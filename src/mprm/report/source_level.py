"""High-, medium- and low-MC sources: easy for the policy, in between, and hard."""

from __future__ import annotations

from typing import Literal

Level = Literal["high", "medium", "low"]
HIGH, LOW = 0.90, 0.70
"""The paper tells the three apart by example; these bounds put every source that it names where it does."""
WORDS: dict[Level, tuple[str, str]] = {
    "high": (
        "High mean MC: easy for the policy",
        "Most rollouts are positive throughout, so a low BIS means little mixture, and the tail of high BIS is thin.",
    ),
    "medium": (
        "Medium mean MC",
        "Most mixed rollouts with reliable positives, and so most for BIS to choose from.",
    ),
    "low": (
        "Low mean MC: hard for the policy",
        "A low BIS means few and unreliable positive steps.",
    ),
}
"""A title and what to expect."""


def level_of(mean_mc: float) -> Level:
    """The level of a source with this mean score over steps.

    Examples
    --------
    >>> level_of(0.9723), level_of(0.8253), level_of(0.5720)
    ('high', 'medium', 'low')
    """
    return "high" if mean_mc >= HIGH else "low" if mean_mc < LOW else "medium"

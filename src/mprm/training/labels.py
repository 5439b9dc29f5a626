"""What each step is taught: hard labels at a threshold, or its Monte-Carlo score."""

from __future__ import annotations

from collections.abc import Sequence

IGNORED = -100.0
"""The label of a step that has no part in the loss."""


def step_labels(scores: Sequence[float], *, tau: float = 0.0, soft: bool = False) -> list[float]:
    """The target of each step: 1 where its score is strictly above ``tau``, else 0; the score itself when soft.

    Examples
    --------
    >>> step_labels([0.875, 0.0625, 0.0], tau=0.0625)
    [1.0, 0.0, 0.0]
    >>> step_labels([0.875, 0.0625, 0.0], soft=True)
    [0.875, 0.0625, 0.0]
    """
    return list(map(float, scores)) if soft else [float(score > tau) for score in scores]

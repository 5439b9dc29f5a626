"""The Balanced-Information Score and its two parts, for one rollout."""

from __future__ import annotations

from collections.abc import Iterable

from mprm.errors import ConfigError, DataError


def _checked(scores: Iterable[float]) -> list[float]:
    values = [float(score) for score in scores]
    if not values:
        raise DataError("the rollout has no steps; expected at least one score")
    for number, score in enumerate(values):
        if not 0 <= score <= 1:  # so written, nan is bad too
            raise DataError(f"step {number} has score {score}; expected 0 to 1")
    return values


def positive_fraction(scores: Iterable[float], *, tau: float = 0.0) -> float:
    """Fraction of positive steps, ``p_pos = n_pos / n``; in [0, 1].

    A step is positive when its score is strictly above tau: at 0, a step that never succeeded is not.

    >>> positive_fraction([1.0, 0.5, 0.0, 0.0])
    0.5
    """
    values = _checked(scores)
    return sum(score > tau for score in values) / len(values)


def mixture(scores: Iterable[float], *, tau: float = 0.0) -> float:
    """How mixed the labels are, ``p_pos * (1 - p_pos)``; in [0, 0.25], 0 when all are alike.

    >>> mixture([1.0, 0.5, 0.0, 0.0])
    0.25
    """
    p_pos = positive_fraction(scores, tau=tau)
    return p_pos * (1 - p_pos)


def reliability(scores: Iterable[float], *, tau: float = 0.0) -> float:
    """Mean score ``R`` of the positive steps; in (0, 1], and 1 when there are none.

    >>> reliability([1.0, 0.5, 0.0, 0.0]), reliability([0.0, 0.0])
    (0.75, 1.0)
    """
    total, n_pos = 0.0, 0
    for score in _checked(scores):
        if score > tau:
            total += score
            n_pos += 1
    return total / n_pos if n_pos else 1.0


def bis(scores: Iterable[float], *, alpha: float = 0.05, tau: float = 0.0) -> float:
    """Balanced-Information Score of a rollout's step scores, ``(p_pos * (1 - p_pos) + alpha) * R``.

    It lies in ``[0, 0.25 + alpha]``; alpha is the smoothing, at least 0, and tau the label threshold.

    >>> bis([1.0, 0.5, 0.0, 0.0], alpha=0.25)
    0.375
    """
    if not alpha >= 0:
        raise ConfigError(f"alpha must be 0 or more, got {alpha}")
    values = _checked(scores)
    return (mixture(values, tau=tau) + alpha) * reliability(values, tau=tau)

"""Means over seeds with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMean:
    """A mean over seeds."""

    mean: float
    low: float | None
    """Ends of Student's 95% interval; None for a single seed."""
    high: float | None
    n: int


def seed_mean(values: Sequence[float]) -> SeedMean:
    """Mean and Student's interval, ``mean ± t(n - 1) · s / √n``.

    Examples
    --------
    >>> found = seed_mean([1.0, 2.0, 3.0])  # t(2) = 4.303, s = 1
    >>> round(found.low, 3), found.mean, round(found.high, 3)
    (-0.484, 2.0, 4.484)
    """
    n, mean = len(values), fmean(values)
    if n < 2:
        return SeedMean(mean=mean, low=None, high=None, n=n)
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / n**0.5
    return SeedMean(mean=mean, low=mean - half, high=mean + half, n=n)

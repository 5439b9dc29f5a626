"""Intervals: the benchmark's problems drawn again and again, with replacement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mprm.evaluation.measure import Key, UnitCounts, count_units, drawn_confusion, measure, overall_values
from mprm.evaluation.step_table import FloatArray, StepTable
from mprm.evaluation.threshold import Thresholds

LEVEL = 0.95
MOST_WEIGHTS = 2_000_000
"""Weights of steps held at a time, so that memory does not grow with the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A metric and its 95% interval."""

    value: float | None
    """None where it is undefined, as the AUC of steps that are all correct."""
    low: float | None = None
    high: float | None = None
    n_draws: int = 0
    """Draws behind the interval: those in which the metric is defined."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """The metrics of one model, and of each bootstrap draw."""

    counts: UnitCounts
    values: dict[Key, FloatArray]
    """Shape (1,)."""
    drawn: dict[Key, FloatArray]
    """Shape (draws,); empty without draws."""

    def estimates(self) -> dict[Key, Estimate]:
        """Each value with its percentile interval."""
        return {key: estimate(float(value[0]), self.drawn.get(key)) for key, value in self.values.items()}


def measured(table: StepTable, thresholds: Thresholds, *, draws: int, seed: int) -> Measured:
    """Measure a model's table, and its draws."""
    counts = count_units(table, thresholds)
    values = measure(counts, np.ones((1, counts.n_problems)))
    return Measured(counts=counts, values=values, drawn=bootstrap(counts, draws=draws, seed=seed))


def bootstrap(counts: UnitCounts, *, draws: int, seed: int) -> dict[Key, FloatArray]:
    """Every metric in each of the draws, shape (draws,).

    The same seed draws the same problems for every model of the same benchmark, so that their
    draws are paired. Thresholds stay as they were chosen: predictions are drawn, not made again.
    """
    n_steps = max(len(steps.order) for _, steps, _ in counts.rankings)
    at_once = max(1, MOST_WEIGHTS // max(n_steps, counts.n_problems))
    parts = [measure(counts, weights) for weights in _drawn_weights(counts.n_problems, draws, seed, at_once)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}


def bootstrap_overall(counts: UnitCounts, *, draws: int, seed: int) -> FloatArray:
    """The overall value alone in each of the draws, shape (draws,): the same as `bootstrap` gives, in less time."""
    at_once = max(1, MOST_WEIGHTS // counts.n_problems)
    return np.concatenate(
        [
            overall_values(drawn_confusion(counts, weights))
            for weights in _drawn_weights(counts.n_problems, draws, seed, at_once)
        ]
    )


def _drawn_weights(n_problems: int, draws: int, seed: int, at_once: int) -> Iterator[FloatArray]:
    """How often each draw holds each problem, some draws at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, draws, at_once):
        # one draw after the other, so that the draws do not depend on how many are made at once
        picks = (rng.integers(n_problems, size=n_problems) for _ in range(start, min(start + at_once, draws)))
        yield np.stack([np.bincount(pick, minlength=n_problems) for pick in picks]).astype(np.float64)


def estimate(value: float, drawn: FloatArray | None) -> Estimate:
    """A value with the percentile interval of its draws."""
    if np.isnan(value):
        return Estimate(value=None)
    defined = drawn[~np.isnan(drawn)] if drawn is not None else np.zeros(0)
    if not len(defined):
        return Estimate(value=value)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high), n_draws=len(defined))

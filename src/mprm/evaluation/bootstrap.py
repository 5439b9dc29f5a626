"""All metrics of a scored benchmark, under any weights of its problems.

Intervals: the benchmark's problems drawn again and again, with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mprm.evaluation.metrics import (
    BINS,
    Ranked,
    accuracies,
    accuracy,
    calibration_bin,
    defined_ratio,
    expected_calibration_error,
    f1_correct,
    f1_error,
    first_error_ranges,
    macro_f1,
    processbench_f1,
    ranked,
    ranking_metrics,
    step_weighted_mean,
)
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable
from mprm.evaluation.thresholds import Thresholds

Key = tuple[str | None, str]
"""(source, metric); the source is None for all sources together."""

METRICS = {
    "overall": "overall: per-source macro-F1, weighted by steps",
    "macro_f1": "macro-F1, all steps pooled",
    "f1_correct": "F1 of correct steps",
    "f1_error": "F1 of error steps",
    "accuracy": "accuracy",
    "auc": "AUC",
    "ap_error": "average precision of error steps",
    "ap_correct": "average precision of correct steps",
    "ece": f"expected calibration error, {BINS} bins",
    "first_error_accuracy": "first-error accuracy",
    "erroneous_accuracy": "accuracy on erroneous solutions",
    "correct_accuracy": "accuracy on correct solutions",
    "processbench_f1": "ProcessBench F1, mean over sources",
}
"""Names and what they mean; for one source there is no ``overall``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitCounts:
    """What the U units, each one problem within one source, add to every metric."""

    sources: tuple[str, ...]
    n_problems: int
    source: IntArray
    """Shape (U,): source of each unit; does not decrease."""
    problem: IntArray
    """Shape (U,): problem of each unit."""
    confusion: FloatArray
    """Shape (U, 4): see `f1_correct`."""
    solutions: FloatArray
    """Shape (U, 4): see `processbench_f1`."""
    bins: FloatArray
    """Shape (U, 3 * BINS): see `expected_calibration_error`."""
    rankings: tuple[tuple[str | None, Ranked, IntArray], ...]
    """(source, its steps by score, the unit of each of them), and so for all sources together."""

    @property
    def slices(self) -> list[slice]:
        """Where the units of each source stand."""
        bounds = np.searchsorted(self.source, np.arange(len(self.sources) + 1))
        return [slice(start, stop) for start, stop in pairwise(bounds)]


def count_units(table: StepTable, thresholds: Thresholds) -> UnitCounts:
    """Count what each unit adds, with the predictions that the thresholds make."""
    pairs = np.stack([table.source, table.problem], axis=1)
    units, unit_of_solution = np.unique(pairs, axis=0, return_inverse=True)
    n_units, unit_of_solution = len(units), unit_of_solution.reshape(-1)
    counted = np.flatnonzero(table.is_counted)
    scores, is_correct = table.scores[counted], table.labels[counted] == 1
    solution = table.solution[counted]
    unit = unit_of_solution[solution]
    is_taken = scores >= thresholds.of_steps[table.problem[solution]]
    cell = np.where(is_correct, np.where(is_taken, 0, 2), np.where(is_taken, 1, 3))
    place = calibration_bin(scores)
    per_bin = [_summed(unit, place, amount, (n_units, BINS)) for amount in (np.ones(len(unit)), scores, is_correct)]
    return UnitCounts(
        sources=table.sources,
        n_problems=len(table.problems),
        source=units[:, 0],
        problem=units[:, 1],
        confusion=_summed(unit, cell, np.ones(len(unit)), (n_units, 4)),
        solutions=_count_solutions(table, thresholds, unit_of_solution, n_units),
        bins=np.concatenate(per_bin, axis=1),
        rankings=_rankings(table, scores, is_correct, unit, table.source[solution]),
    )


def _count_solutions(table: StepTable, thresholds: Thresholds, units: IntArray, n_units: int) -> FloatArray:
    ranges = first_error_ranges(table)
    is_found = ranges.found(thresholds.of_solutions[table.problem[ranges.solution]])
    kind = np.where(ranges.is_erroneous, 0, 2)
    unit, shape = units[ranges.solution], (n_units, 4)
    return _summed(unit, kind, np.ones(len(kind)), shape) + _summed(unit, kind + 1, is_found, shape)


def _rankings(
    table: StepTable, scores: FloatArray, is_correct: BoolArray, unit: IntArray, source: IntArray
) -> tuple[tuple[str | None, Ranked, IntArray], ...]:
    found: list[tuple[str | None, Ranked, IntArray]] = []
    names: list[str | None] = [*table.sources, None]
    for number, name in enumerate(names):
        here = np.arange(len(scores)) if name is None else np.flatnonzero(source == number)
        steps = ranked(scores[here], is_correct[here])
        found.append((name, steps, unit[here][steps.order]))
    return tuple(found)


def _summed(rows: IntArray, columns: IntArray, amounts: FloatArray | BoolArray, shape: tuple[int, int]) -> FloatArray:
    """A matrix with each amount added at its row and column."""
    flat = np.bincount(rows * shape[1] + columns, weights=amounts, minlength=shape[0] * shape[1])
    return flat.astype(np.float64).reshape(shape)


def measure(counts: UnitCounts, weights_D_P: FloatArray) -> dict[Key, FloatArray]:
    """Every metric of each source and of all together, shape (D,); nan where it is undefined.

    Parameters
    ----------
    weights_D_P : shape (D, P)
        How often each draw holds each problem; ones for the metrics themselves.
    """
    weights_D_U = weights_D_P[:, counts.problem]
    confusion_D_K = drawn_confusion(counts, weights_D_P)
    solutions_D_K = np.stack([weights_D_U[:, s] @ counts.solutions[s] for s in counts.slices], axis=1)
    found: dict[Key, FloatArray] = {(None, "overall"): overall_values(confusion_D_K)}
    for name, confusion, solutions in [
        *((name, confusion_D_K[:, k], solutions_D_K[:, k]) for k, name in enumerate(counts.sources)),
        (None, confusion_D_K.sum(1), solutions_D_K.sum(1)),
    ]:
        for metric, values in _counted_metrics(confusion, solutions).items():
            found[name, metric] = values
    found[None, "processbench_f1"] = _mean_of_defined(processbench_f1(solutions_D_K))
    bins = (weights_D_U @ counts.bins).reshape(len(weights_D_P), 3, BINS)
    found[None, "ece"] = expected_calibration_error(bins)
    for name, steps, units in counts.rankings:
        for metric, values in ranking_metrics(steps, weights_D_U[:, units]).items():
            found[name, metric] = values
    return found


def drawn_confusion(counts: UnitCounts, weights_D_P: FloatArray) -> FloatArray:
    """Confusion of each source in each draw, shape (D, K, 4); see `measure`."""
    weights_D_U = weights_D_P[:, counts.problem]
    return np.stack([weights_D_U[:, s] @ counts.confusion[s] for s in counts.slices], axis=1)


def overall_values(confusion_D_K: FloatArray) -> FloatArray:
    """The paper's overall value of each draw: macro-F1 of each source, weighted by its counted steps."""
    return step_weighted_mean(macro_f1(confusion_D_K), confusion_D_K.sum(-1))


def _counted_metrics(confusion: FloatArray, solutions: FloatArray) -> dict[str, FloatArray]:
    erroneous, correct = accuracies(solutions)
    return {
        "macro_f1": macro_f1(confusion),
        "f1_correct": f1_correct(confusion),
        "f1_error": f1_error(confusion),
        "accuracy": accuracy(confusion),
        "first_error_accuracy": defined_ratio(solutions[:, 1] + solutions[:, 3], solutions[:, 0] + solutions[:, 2]),
        "erroneous_accuracy": erroneous,
        "correct_accuracy": correct,
        "processbench_f1": processbench_f1(solutions),
    }


def _mean_of_defined(values_D_K: FloatArray) -> FloatArray:
    """Mean over the sources that have a value."""
    is_defined = ~np.isnan(values_D_K)
    return defined_ratio(np.where(is_defined, values_D_K, 0).sum(1), is_defined.sum(1).astype(np.float64))


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

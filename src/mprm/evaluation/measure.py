"""All metrics of a scored benchmark, under any weights of its problems.

What each problem adds to each source is counted once. A bootstrap draw only weighs the problems
anew, so that a thousand draws are matrix products and one running sum over the sorted scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mprm.evaluation.defined_ratio import defined_ratio
from mprm.evaluation.first_error import accuracies, first_error_ranges, processbench_f1
from mprm.evaluation.ranking import Ranked, ranked, ranking_metrics
from mprm.evaluation.step_metrics import (
    BINS,
    accuracy,
    calibration_bin,
    expected_calibration_error,
    f1_correct,
    f1_error,
    macro_f1,
    step_weighted_mean,
)
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable
from mprm.evaluation.threshold import Thresholds

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

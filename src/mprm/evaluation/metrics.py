"""Division that says where there is nothing to divide by.

F1, accuracy and calibration of steps, from counts; each for any number of draws at once.

AUC and average precision of steps under any weights, for many draws of weights at once.

Finding the first error of a solution: first-error accuracy and ProcessBench's F1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable


def defined_ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """``part / whole``; nan where the whole is 0."""
    found = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found


BINS = 15
"""Bins of the calibration error, of equal width."""


def f1_correct(confusion: FloatArray) -> FloatArray:
    """F1 of the correct class; 0 where nothing is in the class and nothing is put there.

    Parameters
    ----------
    confusion : shape (..., 4)
        True positives, false positives, false negatives, true negatives; positive is correct.

    Examples
    --------
    >>> float(f1_correct(np.array([3.0, 1.0, 1.0, 0.0])))  # 2 * 3 / (2 * 3 + 1 + 1)
    0.75
    """
    tp, fp, fn, _ = np.moveaxis(confusion, -1, 0)
    return _f1(tp, fp + fn)


def f1_error(confusion: FloatArray) -> FloatArray:
    """F1 of the incorrect class; 0 where nothing is in the class and nothing is put there."""
    _, fp, fn, tn = np.moveaxis(confusion, -1, 0)
    return _f1(tn, fp + fn)


def _f1(hits: FloatArray, misses: FloatArray) -> FloatArray:
    total = 2 * hits + misses
    return np.divide(2 * hits, total, out=np.zeros(np.shape(total)), where=total > 0)


def macro_f1(confusion: FloatArray) -> FloatArray:
    """Mean of the F1 of the correct and of the incorrect class; of both, even where one is absent."""
    return (f1_correct(confusion) + f1_error(confusion)) / 2


def accuracy(confusion: FloatArray) -> FloatArray:
    """Share of steps that are told rightly; nan where there are no steps."""
    return defined_ratio(confusion[..., 0] + confusion[..., 3], confusion.sum(-1))


def step_weighted_mean(values: FloatArray, n_steps: FloatArray) -> FloatArray:
    """Mean over sources, the last axis, weighted by their numbers of steps: the paper's overall value.

    Examples
    --------
    >>> float(step_weighted_mean(np.array([0.5, 1.0]), np.array([3.0, 1.0])))
    0.625
    """
    return defined_ratio((values * n_steps).sum(-1), n_steps.sum(-1))


def calibration_bin(scores: FloatArray) -> IntArray:
    """Which of 15 bins of equal width each score lies in; the last one takes 1.

    Examples
    --------
    >>> calibration_bin(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 7, 14]
    """
    return np.minimum((scores * BINS).astype(np.int64), BINS - 1)


def expected_calibration_error(bins: FloatArray) -> FloatArray:
    """Mean distance of a bin's mean score from its share of correct steps, weighted by its number of steps.

    Parameters
    ----------
    bins : shape (..., 3, B)
        Of each bin: number of steps, sum of scores, number of correct steps.
    """
    n_steps, scores, correct = np.moveaxis(bins, -2, 0)
    # n / total * |scores / n - correct / n|: the n cancels, and an empty bin gives 0
    return defined_ratio(np.abs(scores - correct).sum(-1), n_steps.sum(-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """Steps sorted by score, once, for every draw."""

    order: IntArray
    """Shape (S,): the steps from the lowest to the highest score."""
    is_correct: BoolArray
    """Shape (S,): label of each, in that order."""
    starts: IntArray
    """Shape (G,): where each run of equal scores begins."""


def ranked(scores: FloatArray, is_correct: BoolArray) -> Ranked:
    """Steps in the order of their scores."""
    order = np.argsort(scores, kind="stable")
    sorted_scores = scores[order]
    is_new = np.concatenate([[True], sorted_scores[1:] != sorted_scores[:-1]]) if len(scores) else np.zeros(0, bool)
    return Ranked(order=order, is_correct=is_correct[order], starts=np.flatnonzero(is_new))


def ranking_metrics(steps: Ranked, weights_D_S: FloatArray) -> dict[str, FloatArray]:
    """AUC, and the average precision of both classes; nan in draws that lack a class.

    ``auc``: probability that a correct step scores above an incorrect one, ties counting half.
    ``ap_error``, ``ap_correct``: mean precision over the recall of the class, steps of equal score
    taken together.

    Parameters
    ----------
    weights_D_S : shape (D, S)
        How often each draw holds each step, in the order of ``steps``.
    """
    if not len(steps.starts):
        return dict.fromkeys(("auc", "ap_error", "ap_correct"), np.full(len(weights_D_S), np.nan))
    correct = _per_run(weights_D_S * steps.is_correct, steps.starts)
    wrong = _per_run(weights_D_S * ~steps.is_correct, steps.starts)
    correct_up_to, wrong_up_to = correct.cumsum(axis=1), wrong.cumsum(axis=1)
    n_correct, n_wrong = correct_up_to[:, -1:], wrong_up_to[:, -1:]
    won = (correct * (wrong_up_to - wrong / 2)).sum(axis=1)
    correct_from, wrong_from = n_correct - correct_up_to + correct, n_wrong - wrong_up_to + wrong
    return {
        "auc": defined_ratio(won, n_correct[:, 0] * n_wrong[:, 0]),
        # errors are found from the lowest score upwards, correct steps from the highest downwards
        "ap_error": _average_precision(wrong, wrong_up_to, correct_up_to, n_wrong[:, 0], n_correct[:, 0]),
        "ap_correct": _average_precision(correct, correct_from, wrong_from, n_correct[:, 0], n_wrong[:, 0]),
    }


def _average_precision(
    new: FloatArray, hits: FloatArray, misses: FloatArray, n_class: FloatArray, n_other: FloatArray
) -> FloatArray:
    taken = hits + misses
    precision = np.divide(hits, taken, out=np.zeros_like(taken), where=taken > 0)
    # undefined too when only this class is there: any order would be perfect
    return defined_ratio((new * precision).sum(axis=1), np.where(n_other > 0, n_class, 0))


def _per_run(weights: FloatArray, starts: IntArray) -> FloatArray:
    return weights if len(starts) == weights.shape[1] else np.add.reduceat(weights, starts, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstErrorRanges:
    """For each solution, the thresholds at which its first error is found.

    The first step below the threshold t is the predicted first error. It is the true one, e, exactly
    when ``score[e] < t`` and every score before it is at least t; a solution without error is told
    as such when its lowest score is at least t. Either way: when ``above < t <= up_to``.
    """

    solution: IntArray
    """Shape (M,): number of the solution; those with unscored steps are not there."""
    above: FloatArray
    """Shape (M,): score of the first error; -inf for a solution without one."""
    up_to: FloatArray
    """Shape (M,): lowest score before it, inf when it is the first step; of all steps when there is none."""
    is_erroneous: BoolArray

    def found(self, thresholds: FloatArray) -> BoolArray:
        """Shape (M,): whether the first error, or that there is none, is found at each solution's threshold."""
        return (self.above < thresholds) & (thresholds <= self.up_to)

    def taken(self, mask: BoolArray) -> FirstErrorRanges:
        """The ranges of some solutions."""
        return FirstErrorRanges(
            solution=self.solution[mask],
            above=self.above[mask],
            up_to=self.up_to[mask],
            is_erroneous=self.is_erroneous[mask],
        )


def first_error_ranges(table: StepTable) -> FirstErrorRanges:
    """The ranges of every solution that has a score for each step."""
    solutions = np.flatnonzero(table.is_whole)
    starts = np.searchsorted(table.solution, np.arange(len(table.source)))
    first_error = table.first_error[solutions]
    is_erroneous = first_error >= 0
    place = np.arange(len(table.scores)) - starts[table.solution]
    limit = np.where(table.first_error >= 0, table.first_error, np.iinfo(np.int64).max)
    before = np.where(place < limit[table.solution], table.scores, np.inf)
    return FirstErrorRanges(
        solution=solutions,
        above=np.where(is_erroneous, table.scores[starts[solutions] + np.maximum(first_error, 0)], -np.inf),
        up_to=np.minimum.reduceat(before, starts)[solutions],
        is_erroneous=is_erroneous,
    )


def processbench_f1(counts: FloatArray) -> FloatArray:
    """Harmonic mean of the accuracy on erroneous and on correct solutions; nan where either kind is absent.

    Parameters
    ----------
    counts : shape (..., 4)
        Erroneous solutions, those of them with the first error found; correct ones, those told as such.

    Examples
    --------
    >>> float(processbench_f1(np.array([4.0, 2.0, 3.0, 3.0])))  # 2 * 0.5 * 1 / 1.5
    0.6666666666666666
    """
    erroneous, correct = accuracies(counts)
    total = erroneous + correct
    return np.divide(2 * erroneous * correct, total, out=np.array(total), where=total > 0)


def accuracies(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Accuracy on erroneous and on correct solutions; nan where there are none."""
    return defined_ratio(counts[..., 1], counts[..., 0]), defined_ratio(counts[..., 3], counts[..., 2])

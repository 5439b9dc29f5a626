"""F1, accuracy and calibration of steps, from counts; each for any number of draws at once."""

from __future__ import annotations

import numpy as np

from mprm.evaluation.defined_ratio import defined_ratio
from mprm.evaluation.step_table import FloatArray, IntArray

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

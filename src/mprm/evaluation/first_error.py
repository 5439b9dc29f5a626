"""Finding the first error of a solution: first-error accuracy and ProcessBench's F1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mprm.evaluation.defined_ratio import defined_ratio
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable


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

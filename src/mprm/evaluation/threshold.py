"""Where to cut between correct and incorrect, chosen on other problems than those it is reported on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from mprm.errors import ConfigError
from mprm.evaluation.config import ThresholdChoice
from mprm.evaluation.first_error import FirstErrorRanges, first_error_ranges, processbench_f1
from mprm.evaluation.step_metrics import macro_f1, step_weighted_mean
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable

MOST_CANDIDATES = 1000
DIGITS = 4
TOLERANCE = 1e-12
"""Values that differ by less are equally good: their sums were only rounded differently."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thresholds:
    """The threshold of each problem, for step metrics and for whole solutions."""

    scheme: Literal["held-out", "test", "fixed"]
    steps: tuple[float, ...]
    """For step metrics: one for each fold; a single one when nothing is held out."""
    solutions: tuple[float, ...]
    """For first errors, likewise."""
    fold: IntArray
    """Shape (P,): which of them is a problem's own."""

    @property
    def of_steps(self) -> FloatArray:
        """Shape (P,): for the steps of each problem."""
        return np.array(self.steps)[self.fold]

    @property
    def of_solutions(self) -> FloatArray:
        """Shape (P,): for the first errors of each problem's solutions."""
        return np.array(self.solutions)[self.fold]


def candidate_thresholds(scores: FloatArray) -> FloatArray:
    """The distinct scores, rounded to 4 digits; 1,000 of them, evenly spaced by rank, when there are more.

    Examples
    --------
    >>> candidate_thresholds(np.array([0.5, 0.25, 0.50001])).tolist()
    [0.25, 0.5]
    """
    found = np.unique(np.round(scores, DIGITS))
    if len(found) <= MOST_CANDIDATES:
        return found
    return found[np.linspace(0, len(found) - 1, MOST_CANDIDATES).round().astype(np.int64)]


def best_step_threshold(scores: FloatArray, labels: IntArray, sources: IntArray) -> float:
    """The candidate with the best overall value; the lowest of equally good ones.

    Parameters
    ----------
    scores, labels, sources : shape (S,)
        Of steps that count: label 1 or -1, and no score missing.
    """
    candidates = candidate_thresholds(scores)
    found = np.unique(sources)
    confusion_C_K_4 = np.empty((len(candidates), len(found), 4))
    for place, source in enumerate(found):
        is_here = sources == source
        # sorted once; how many scores lie below each candidate is then a search, not a pass over all steps
        correct, wrong = (np.sort(scores[is_here & (labels == label)]) for label in (1, -1))
        fn, tn = np.searchsorted(correct, candidates), np.searchsorted(wrong, candidates)
        confusion_C_K_4[:, place] = np.stack([len(correct) - fn, len(wrong) - tn, fn, tn], axis=-1)
    values = step_weighted_mean(macro_f1(confusion_C_K_4), confusion_C_K_4.sum(-1))
    return _first_best(candidates, values)


def best_solution_threshold(ranges: FirstErrorRanges, sources: IntArray) -> float | None:
    """The candidate with the best ProcessBench F1, averaged over sources; None where no source has one."""
    finite = np.concatenate([ranges.above, ranges.up_to])
    candidates = candidate_thresholds(finite[np.isfinite(finite)])
    found = np.unique(sources)
    counts_C_K_4 = np.empty((len(candidates), len(found), 4))
    for place, source in enumerate(found):
        for column, is_kind in ((0, ranges.is_erroneous), (2, ~ranges.is_erroneous)):
            chosen = (sources == source) & is_kind
            can_be_right = chosen & (ranges.above < ranges.up_to)
            begun = np.searchsorted(np.sort(ranges.above[can_be_right]), candidates, side="left")
            ended = np.searchsorted(np.sort(ranges.up_to[can_be_right]), candidates, side="left")
            counts_C_K_4[:, place, column] = chosen.sum()
            counts_C_K_4[:, place, column + 1] = begun - ended
    f1_C_K = processbench_f1(counts_C_K_4)
    has_both = ~np.isnan(f1_C_K).all(axis=0)
    if not has_both.any():
        return None
    return _first_best(candidates, f1_C_K[:, has_both].mean(axis=1))


def _first_best(candidates: FloatArray, values: FloatArray) -> float:
    """The lowest candidate whose value is the best, up to rounding."""
    return float(candidates[np.argmax(values >= values.max() - TOLERANCE)])


def folds_of(problems: tuple[str, ...], *, folds: int, seed: int) -> IntArray:
    """Shape (P,): the fold of each problem, in a seeded random order that depends on the keys alone.

    The folds differ in size by one problem at most.
    """
    if len(problems) < folds:
        raise ConfigError(
            f"{len(problems)} problems cannot be split into {folds} folds;"
            " take fewer folds, or a fixed threshold (--threshold 0.5)"
        )
    # hashes of the keys, not draws: the folds do not depend on the order in which solutions are read
    ranked = sorted(range(len(problems)), key=lambda p: xxhash.xxh3_128_intdigest(problems[p].encode(), seed))
    fold = np.empty(len(problems), dtype=np.int64)
    fold[ranked] = np.arange(len(problems)) % folds
    return fold


def choose_thresholds(table: StepTable, choice: ThresholdChoice, *, folds: int, seed: int) -> Thresholds:
    """The thresholds of a table's problems.

    ``held-out``: the problems are split into folds; each fold is cut where the other folds are cut
    best, so that every problem is reported once and none helps to choose its own threshold.
    ``test``: one threshold, chosen on all that it is reported on. A number: that one.
    """
    n_problems = len(table.problems)
    if not isinstance(choice, str):
        single = (float(choice),)
        return Thresholds(scheme="fixed", steps=single, solutions=single, fold=np.zeros(n_problems, np.int64))
    is_held_out = choice == "held-out"
    fold = folds_of(table.problems, folds=folds, seed=seed) if is_held_out else np.zeros(n_problems, np.int64)
    ranges = first_error_ranges(table)
    pairs = [
        _choose(table, ranges, fold != number if is_held_out else np.ones(n_problems, np.bool_))
        for number in range(folds if is_held_out else 1)
    ]
    return Thresholds(
        scheme=choice, steps=tuple(step for step, _ in pairs), solutions=tuple(sol for _, sol in pairs), fold=fold
    )


def _choose(table: StepTable, ranges: FirstErrorRanges, is_used: BoolArray) -> tuple[float, float]:
    """The best thresholds for the problems that are used."""
    of_steps = table.is_counted & is_used[table.problem][table.solution]
    if not of_steps.any():
        raise ConfigError(
            "some fold holds every labelled step; take fewer folds, or a fixed threshold (--threshold 0.5)"
        )
    best = best_step_threshold(table.scores[of_steps], table.labels[of_steps], table.source[table.solution[of_steps]])
    of_ranges = is_used[table.problem[ranges.solution]]
    chosen = ranges.taken(of_ranges)
    solution_best = best_solution_threshold(chosen, table.source[chosen.solution])
    return best, best if solution_best is None else solution_best

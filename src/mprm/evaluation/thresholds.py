"""What can be chosen about an evaluation.

Where to cut between correct and incorrect, chosen on other problems than those it is reported on.

The two numbers to watch while a model is trained, without intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import xxhash

from mprm.errors import ConfigError, DataError
from mprm.evaluation.metrics import (
    FirstErrorRanges,
    first_error_ranges,
    macro_f1,
    processbench_f1,
    ranked,
    ranking_metrics,
    step_weighted_mean,
)
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray, StepTable, check_measurable

ThresholdChoice = float | Literal["held-out", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """How a model is measured."""

    threshold: ThresholdChoice = "held-out"
    """A step counts as correct when its score is at least this; a number, or where it is chosen."""
    folds: int = 5
    """Parts that the problems are split into when thresholds are held out."""
    seed: int = 0
    """Seed of folds, bootstrap draws and permutations."""
    draws: int = 1000
    """Bootstrap draws; 0 for no intervals."""
    tau: float = 0.0
    """Rollouts as a benchmark: a step is correct when its score is strictly above it."""
    image_root: str | None = None
    """Folder that holds the images."""
    text_only: bool = False
    """Accept records without an image."""
    benchmark_format: str | None = None
    """Name of the benchmark's format, where the first record must not decide."""

    def __post_init__(self) -> None:
        if isinstance(self.threshold, str):
            if self.threshold not in ("held-out", "test"):
                raise ConfigError(f"threshold must be held-out, test or a number, got {self.threshold!r}")
        elif not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold must be in [0, 1], got {self.threshold}")
        if self.folds < 2:
            raise ConfigError(f"folds must be 2 or more, got {self.folds}")
        if self.draws < 0:
            raise ConfigError(f"draws must be 0 or more, got {self.draws}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if not 0 <= self.tau < 1 or math.isnan(self.tau):
            raise ConfigError(f"tau must be in [0, 1), got {self.tau}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallValue:
    """How good a model is at the moment."""

    overall: float
    """Per-source macro-F1 weighted by steps, each problem cut at a threshold chosen on the others."""
    auc: float | None
    """None where the steps are of one class only."""
    n_counted: int
    n_unscored: int
    """Labelled steps without a score."""
    macro_f1: dict[str, float] = field(default_factory=dict)
    """Of each source, at the same thresholds: the overall value is their mean, weighted by steps."""


def overall_value(
    scores: Sequence[float] | FloatArray,
    labels: Sequence[int],
    sources: Sequence[str],
    problems: Sequence[str],
    *,
    folds: int = 5,
    seed: int = 0,
) -> OverallValue:
    """The held-out overall value and the AUC of some steps; the same as `evaluate` gives.

    Parameters
    ----------
    scores, labels, sources, problems : length S
        Of each step: its score, nan where it has none; 1, -1 or 0 for ignored; where it comes from;
        the key of its problem.

    Examples
    --------
    >>> overall_value([0.9, 0.2, 0.8, 0.1], [1, -1, 1, -1], ["math"] * 4, ["a", "a", "b", "b"], folds=2).auc
    1.0
    """
    if not len(scores) == len(labels) == len(sources) == len(problems):
        raise DataError(
            f"{len(scores)} scores, {len(labels)} labels, {len(sources)} sources and {len(problems)} problems;"
            " expected as many of each"
        )
    all_scores, all_labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    check_measurable(all_scores, all_labels)
    keys = tuple(dict.fromkeys(problems))
    fold_of = dict(zip(keys, folds_of(keys, folds=folds, seed=seed), strict=True))
    is_counted = (all_labels != 0) & ~np.isnan(all_scores)
    score, label = all_scores[is_counted], all_labels[is_counted]
    names, numbers = np.unique(np.asarray(sources, dtype=str), return_inverse=True)
    source = numbers.reshape(-1)[is_counted]
    fold = np.array([fold_of[key] for key in problems])[is_counted]
    cuts = np.empty(len(score))
    for number in np.unique(fold):
        others = fold != number
        if not others.any():
            raise DataError("one fold holds every labelled step; give more problems, or fewer folds")
        cuts[fold == number] = best_step_threshold(score[others], label[others], source[others])
    cell = np.where(label == 1, np.where(score >= cuts, 0, 2), np.where(score >= cuts, 1, 3))
    n_sources = len(names)
    confusion = np.bincount(source * 4 + cell, minlength=n_sources * 4).reshape(n_sources, 4).astype(np.float64)
    steps = ranked(score, label == 1)
    auc = float(ranking_metrics(steps, np.ones((1, len(score))))["auc"][0])
    by_source = macro_f1(confusion)
    counted = confusion.sum(-1) > 0
    return OverallValue(
        overall=float(step_weighted_mean(by_source, confusion.sum(-1))),
        macro_f1={str(name): float(f1) for name, f1, any_ in zip(names, by_source, counted, strict=True) if any_},
        auc=None if np.isnan(auc) else auc,
        n_counted=len(score),
        n_unscored=int(((all_labels != 0) & np.isnan(all_scores)).sum()),
    )

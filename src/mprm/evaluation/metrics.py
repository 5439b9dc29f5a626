"""The steps of a benchmark as arrays, the metrics made of them, and the thresholds that predictions need.

Metrics are computed for any number of bootstrap draws at once. A threshold is chosen on other problems than it is
reported on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mprm.errors import ConfigError, DataError
from mprm.evaluation.scores import ScoredSolution

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Threshold = Literal["held-out", "test"] | float
BINS = 15  # bins of the calibration error, of equal width
MAX_CANDIDATES = 1000
HEADLINES = {
    "visualprocessbench": ("VisualProcessBench", "overall"),
    "processbench": ("ProcessBench", "processbench_f1"),
    "prmbench": ("PRMBench", "prmscore"),
    "vlrmbench": ("VLRMBench", "overall"),
}
"""Name of each benchmark, and the metric that its authors report."""
VISUALPROCESSBENCH = frozenset({"MMMU", "MathVision", "MathVerse", "DynaMath", "WeMath"})
"""Its sources; other benchmarks have its format too, and not its name."""
TOLERANCE = 1e-12  # values that differ by less are equal: their sums were only rounded differently
FEWER_FOLDS = "take fewer folds, or a fixed threshold (--threshold 0.5)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """S steps of N solutions to P problems from K sources."""

    scores: FloatArray  # (S,): probability that the step is correct; nan for a step without a score
    labels: IntArray  # (S,): 1 correct, -1 incorrect, 0 ignored
    solution: IntArray  # (S,): index of each step's solution, non-decreasing
    first_error: IntArray  # (N,): index of the first incorrect step, -1 for none
    source: IntArray  # (N,): index into ``sources``
    problem: IntArray  # (N,): index into ``problems``
    sources: tuple[str, ...]
    problems: tuple[str, ...]
    is_modified: BoolArray
    """Shape (N,): whether PRMScore counts the solution: a modified one of PRMBench, the first of its id."""
    benchmark: str  # format of the benchmark; empty where there are several, or it is not known

    @classmethod
    def of(cls, solutions: Sequence[ScoredSolution]) -> StepTable:
        """The table of some scored solutions; sources and problems in order of first appearance."""
        sources = {name: index for index, name in enumerate(dict.fromkeys(s.source for s in solutions))}
        problems = {key: index for index, key in enumerate(dict.fromkeys(s.problem for s in solutions))}
        scores = [np.nan if score is None else score for s in solutions for score in s.scores]
        first = {(s.source, s.id): number for number, s in reversed(list(enumerate(solutions)))}
        modified = [
            s.benchmark == "prmbench/modified" and first[s.source, s.id] == n for n, s in enumerate(solutions)
        ]
        benchmarks = {s.benchmark.partition("/")[0] for s in solutions}
        table = cls(
            scores=np.array(scores, dtype=np.float64),
            labels=np.array([label for s in solutions for label in s.labels], dtype=np.int64),
            solution=np.repeat(np.arange(len(solutions)), [len(s.labels) for s in solutions]),
            first_error=np.array([-1 if s.first_error is None else s.first_error for s in solutions], dtype=np.int64),
            source=np.array([sources[s.source] for s in solutions], dtype=np.int64),
            problem=np.array([problems[s.problem] for s in solutions], dtype=np.int64),
            sources=tuple(sources),
            problems=tuple(problems),
            is_modified=np.array(modified),
            benchmark=benchmarks.pop() if len(benchmarks) == 1 else "",
        )
        if not table.labels.any():
            raise DataError("no step is labelled correct or incorrect; there is nothing to evaluate a model by")
        if not table.is_counted.any():
            raise DataError(
                "no labelled step could be scored: the model gives no number (nan), or every question is longer than"
                " its maximum length; look at the model's weights, and allow longer sequences"
            )
        return table

    @property
    def is_counted(self) -> BoolArray:
        """Shape (S,): whether step metrics count the step: it has a label and a score."""
        return np.not_equal(self.labels, 0) & ~np.isnan(self.scores)

    @property
    def is_scored(self) -> BoolArray:
        """Shape (N,): whether every step of the solution has a score; first-error metrics need all."""
        is_scored: BoolArray = np.bincount(self.solution[np.isnan(self.scores)], minlength=len(self.source)) == 0
        return is_scored


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounts:
    """The size of a table, or of one source in it."""

    n_problems: int
    n_solutions: int
    n_steps: int
    n_correct: int  # steps labelled correct that have a score
    n_error: int  # steps labelled incorrect that have a score
    n_unscored: int  # labelled steps without a score; they count as no prediction at all
    n_unscored_solutions: int  # solutions with a step without a score; first-error metrics leave them out

    @property
    def n_counted(self) -> int:
        return self.n_correct + self.n_error


def step_counts(table: StepTable, source: str | None = None) -> TableCounts:
    """Counts of the whole table, or of one source."""
    is_here = np.full(len(table.source), True) if source is None else table.source == table.sources.index(source)
    steps = is_here[table.solution]
    labels, is_counted = table.labels[steps], table.is_counted[steps]
    return TableCounts(
        n_problems=len(np.unique(table.problem[is_here])),
        n_solutions=int(is_here.sum()),
        n_steps=len(labels),
        n_correct=int((is_counted & (labels == 1)).sum()),
        n_error=int((is_counted & (labels == -1)).sum()),
        n_unscored=int((~is_counted & (labels != 0)).sum()),
        n_unscored_solutions=int((is_here & ~table.is_scored).sum()),
    )


def defined_ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """``part / whole``; nan where the whole is 0."""
    ratio = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def f1_by_class(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """F1 of the correct and of the incorrect class of `hit_counts`; 0 where none is, or is predicted to be, in it."""
    n_error, n_true_error, n_correct, n_true_correct = np.moveaxis(counts, -1, 0)
    n_wrong = n_error - n_true_error + n_correct - n_true_correct
    correct, error = (
        np.divide(2 * hits, 2 * hits + n_wrong, out=np.zeros(np.shape(hits)), where=hits + n_wrong > 0)
        for hits in (n_true_correct, n_true_error)
    )
    return correct, error


def macro_f1(counts: FloatArray) -> FloatArray:
    """Mean of the F1 of both classes, even where one is absent."""
    correct, error = f1_by_class(counts)
    return (correct + error) / 2


def overall_f1(counts_K: FloatArray) -> FloatArray:
    """The paper's overall value: macro-F1 of each source, axis -2, weighted by its number of steps."""
    n_steps = counts_K[..., 0] + counts_K[..., 2]
    return defined_ratio((macro_f1(counts_K) * n_steps).sum(-1), n_steps.sum(-1))


def accuracy(counts: FloatArray) -> FloatArray:
    """Share of right predictions; nan where there are none."""
    return defined_ratio(counts[..., 1] + counts[..., 3], counts[..., 0] + counts[..., 2])


def accuracy_by_class(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share of right predictions for those with an error, and for those without; nan where there are none."""
    return defined_ratio(counts[..., 1], counts[..., 0]), defined_ratio(counts[..., 3], counts[..., 2])


def processbench_f1(counts: FloatArray) -> FloatArray:
    """Harmonic mean of the accuracy on erroneous and on correct solutions; nan where either kind is absent."""
    erroneous, correct = accuracy_by_class(counts)
    total = erroneous + correct
    return np.divide(2 * erroneous * correct, total, out=np.array(total), where=total > 0)


def mean_processbench_f1(counts_K: FloatArray) -> FloatArray:
    """ProcessBench F1, mean over the sources, axis -2, that have both kinds of solutions; nan where none has."""
    f1_K = processbench_f1(counts_K)
    is_defined = ~np.isnan(f1_K)
    return defined_ratio(np.where(is_defined, f1_K, 0).sum(-1), is_defined.sum(-1).astype(np.float64))


def prmscore(counts: FloatArray) -> FloatArray:
    """PRMBench's PRMScore: the mean of both F1; that of correct steps where none is incorrect; nan without steps."""
    n_error, n_correct = counts[..., 0], counts[..., 2]
    values = np.where(n_error > 0, macro_f1(counts), f1_by_class(counts)[0])
    return np.where(n_error + n_correct > 0, values, np.nan)


def calibration_bin(scores: FloatArray) -> IntArray:
    """Index of each score's bin among 15 of equal width; the last one takes 1."""
    return np.minimum((scores * BINS).astype(np.int64), BINS - 1)


def expected_calibration_error(bins: FloatArray) -> FloatArray:
    """Mean distance of a bin's mean score from its share of correct steps, weighted by its number of steps.

    ``bins``, shape (..., 3, B): number of steps, sum of scores, number of correct steps.
    """
    n_steps, scores, correct = np.moveaxis(bins, -2, 0)
    # n / total * |scores / n - correct / n|: the n cancels, and an empty bin gives 0
    return defined_ratio(np.abs(scores - correct).sum(-1), n_steps.sum(-1))


class RankedSteps(NamedTuple):
    """Steps from the lowest to the highest score, sorted once for all draws."""

    order: IntArray
    is_correct: BoolArray
    starts: IntArray  # (G,): where each run of equal scores begins


def rank_steps(scores: FloatArray, is_correct: BoolArray) -> RankedSteps:
    """Steps in the order of their scores."""
    order = np.argsort(scores, kind="stable")
    return RankedSteps(order, is_correct[order], np.flatnonzero(np.diff(scores[order], prepend=-np.inf)))


def ranking_metrics(steps: RankedSteps, weights_D_S: FloatArray) -> dict[str, FloatArray]:
    """AUC, and the average precision of both classes; nan in draws that lack a class.

    ``auc``: probability that a correct step scores above an incorrect one, ties counting half.
    ``ap_error``, ``ap_correct``: mean precision over the recall of the class, equal scores taken together.
    ``weights_D_S``: how often each draw holds each step, in the order of ``steps``.
    """
    if not len(steps.starts):
        return dict.fromkeys(("auc", "ap_error", "ap_correct"), np.full(len(weights_D_S), np.nan))
    correct, wrong = weights_D_S * steps.is_correct, weights_D_S * ~steps.is_correct
    if len(steps.starts) < weights_D_S.shape[1]:
        correct, wrong = (np.add.reduceat(weights, steps.starts, axis=1) for weights in (correct, wrong))
    correct_up_to, wrong_up_to = correct.cumsum(axis=1), wrong.cumsum(axis=1)
    n_correct, n_wrong = correct_up_to[:, -1:], wrong_up_to[:, -1:]
    n_pairs = (n_correct * n_wrong)[:, 0]

    def average_precision(new: FloatArray, hits: FloatArray, misses: FloatArray, n_class: FloatArray) -> FloatArray:
        predicted = hits + misses
        precision = np.divide(hits, predicted, out=np.zeros_like(predicted), where=predicted > 0)
        # undefined too when only this class is there: any order would be perfect
        return defined_ratio((new * precision).sum(axis=1), np.where(n_pairs > 0, n_class[:, 0], 0))

    correct_from, wrong_from = n_correct - correct_up_to + correct, n_wrong - wrong_up_to + wrong
    return {
        "auc": defined_ratio((correct * (wrong_up_to - wrong / 2)).sum(axis=1), n_pairs),
        # errors are looked for from the lowest score upwards, correct steps from the highest downwards
        "ap_error": average_precision(wrong, wrong_up_to, correct_up_to, n_wrong),
        "ap_correct": average_precision(correct, correct_from, wrong_from, n_correct),
    }


class HitRanges(NamedTuple):
    """For each of M steps or solutions, the thresholds t at which it is predicted right: ``above < t <= up_to``."""

    solution: IntArray
    is_error: BoolArray  # (M,): whether the step is incorrect, or the solution has an error
    above: FloatArray
    up_to: FloatArray

    def only(self, is_kept: BoolArray) -> HitRanges:
        return HitRanges(self.solution[is_kept], self.is_error[is_kept], self.above[is_kept], self.up_to[is_kept])


def step_ranges(table: StepTable) -> HitRanges:
    """The ranges of the steps that count: a step is predicted correct when its score is at least the threshold."""
    scores, is_error = table.scores[table.is_counted], table.labels[table.is_counted] == -1
    above, up_to = np.where(is_error, scores, -np.inf), np.where(is_error, np.inf, scores)
    return HitRanges(table.solution[table.is_counted], is_error, above, up_to)


def first_error_ranges(table: StepTable) -> HitRanges:
    """The ranges of the solutions whose steps all have scores.

    The first step below the threshold t is the predicted first error. It is the true one, e, exactly when
    ``score[e] < t`` and every score before it is at least t; a solution without error is predicted as such when its
    lowest score is at least t.
    """
    starts = np.searchsorted(table.solution, np.arange(len(table.source)))
    is_error = table.first_error >= 0
    above = np.where(is_error, table.scores[starts + np.maximum(table.first_error, 0)], -np.inf)
    index = np.arange(len(table.scores)) - starts[table.solution]
    is_before = (index < table.first_error[table.solution]) | ~is_error[table.solution]
    up_to = np.minimum.reduceat(np.where(is_before, table.scores, np.inf), starts)
    return HitRanges(np.arange(len(starts)), is_error, above, up_to).only(table.is_scored)


def hit_counts(ranges: HitRanges, sources: IntArray, thresholds_C: FloatArray) -> FloatArray:
    """Counts of each source at each threshold, shape (C, K, 4).

    The last axis: how many have an error, those of them predicted right; how many have none, those predicted right.
    """
    names = np.unique(sources)
    counts_C_K_4 = np.empty((len(thresholds_C), len(names), 4))
    for k, name in enumerate(names):
        for column, is_kind in ((0, ranges.is_error), (2, ~ranges.is_error)):
            is_here = (sources == name) & is_kind
            is_possible = is_here & (ranges.above < ranges.up_to)
            # sorted once; how many ranges begin and end below each threshold is then a search, not a pass over all
            n_begun, n_ended = (
                np.searchsorted(np.sort(ends[is_possible]), thresholds_C) for ends in (ranges.above, ranges.up_to)
            )
            counts_C_K_4[:, k, column] = is_here.sum()
            counts_C_K_4[:, k, column + 1] = n_begun - n_ended
    return counts_C_K_4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thresholds:
    """The threshold of each problem, for step metrics and for first-error metrics."""

    scheme: Literal["held-out", "test", "fixed"]
    steps: tuple[float, ...]  # of each fold, or a single one; so for ``solutions``, for first-error metrics
    solutions: tuple[float, ...]
    fold: IntArray  # (P,): fold of each problem


def candidate_thresholds(scores: FloatArray) -> FloatArray:
    """The distinct scores to 4 digits, in order; when there are more than 1,000, every (count // 1,000)-th of them.

    As the paper's code takes them. Python's ``round`` is exact; numpy's scales first, and may end one digit away.
    """
    distinct = sorted({round(score, 4) for score in np.unique(scores).tolist()})
    return np.array(distinct[:: max(1, len(distinct) // MAX_CANDIDATES)])


def best_threshold(ranges: HitRanges, sources: IntArray, metric: Callable[[FloatArray], FloatArray]) -> float | None:
    """The lowest candidate with the best metric of its `hit_counts`, up to rounding; None where it is undefined."""
    bounds = np.concatenate([ranges.above, ranges.up_to])
    candidates = candidate_thresholds(bounds[np.isfinite(bounds)])
    values = metric(hit_counts(ranges, sources, candidates))
    if np.isnan(values).all():
        return None
    return float(candidates[np.argmax(values >= values.max() - TOLERANCE)])


def folds_of(problems: tuple[str, ...], *, folds: int, seed: int) -> IntArray:
    """Shape (P,): the fold of each problem, in a seeded random order; folds differ in size by one problem at most."""
    if len(problems) < folds:
        raise ConfigError(f"{len(problems)} problems cannot be split into {folds} folds; {FEWER_FOLDS}")
    # hashes of the keys, not random numbers: the folds do not depend on the order in which solutions are read
    order = sorted(range(len(problems)), key=lambda p: xxhash.xxh3_128_intdigest(problems[p].encode(), seed))
    fold = np.empty(len(problems), dtype=np.int64)
    fold[order] = np.arange(len(problems)) % folds
    return fold


def choose_thresholds(table: StepTable, threshold: Threshold, *, folds: int, seed: int) -> Thresholds:
    """The thresholds of a table's problems.

    ``held-out``: the problems are split into folds; each fold is cut where the other folds are cut best, so that
    every problem is reported once and none helps to choose its own threshold. ``test``: one threshold, chosen on
    all that it is reported on. A number: that one.
    """
    fold = np.zeros(len(table.problems), np.int64)
    if not isinstance(threshold, str):
        return Thresholds(scheme="fixed", steps=(threshold,), solutions=(threshold,), fold=fold)
    masks = [fold == 0]
    if threshold == "held-out":
        fold = folds_of(table.problems, folds=folds, seed=seed)
        masks = [fold != number for number in range(folds)]

    def best(ranges: HitRanges, metric: Callable[[FloatArray], FloatArray]) -> list[float | None]:
        parts = (ranges.only(mask[table.problem[ranges.solution]]) for mask in masks)
        return [best_threshold(part, table.source[part.solution], metric) for part in parts]

    steps = [t for t in best(step_ranges(table), overall_f1) if t is not None]
    if len(steps) < len(masks):
        raise ConfigError(f"some fold holds every labelled step; {FEWER_FOLDS}")
    solutions = best(first_error_ranges(table), mean_processbench_f1)
    # without solutions of both kinds, those of steps
    filled = tuple(t if own is None else own for t, own in zip(steps, solutions, strict=True))
    return Thresholds(scheme=threshold, steps=tuple(steps), solutions=filled, fold=fold)

"""Bootstrap intervals of all metrics of a scored benchmark, and the comparison of two models on the same steps.

A draw of the bootstrap is a weight for each problem: how often the draw holds it. Metrics of many draws are then
products of the weights with counts that each problem adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mprm.evaluation import metrics
from mprm.evaluation.metrics import BINS, BoolArray, FloatArray, IntArray, StepTable, Thresholds
from mprm.evaluation.scores import ScoredSolution

Key = tuple[str | None, str]  # (source, metric); the source is None for all sources together
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
    "prmscore": "PRMScore: mean F1 of both classes, modified solutions",
}
"""Names and what they mean; for one source there is no ``overall``."""
LEVEL = 0.95
MAX_WEIGHTS = 2_000_000  # weights held at once, so that memory does not grow with the draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its 95% interval."""

    value: float | None  # None where it is undefined, as the AUC of steps that are all correct
    low: float | None = None
    high: float | None = None
    n_draws: int = 0  # draws behind the interval: those in which the value is defined


def estimate(value: float, distribution: FloatArray | None) -> Estimate:
    """A value with the percentile interval of its bootstrap distribution; nan counts as undefined in both."""
    if np.isnan(value):
        return Estimate(value=None)
    defined = distribution[~np.isnan(distribution)] if distribution is not None else np.zeros(0)
    if not len(defined):
        return Estimate(value=value)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high), n_draws=len(defined))


def resampled_weights(n: int, *, draws: int, seed: int, n_values: int = 0) -> Iterator[FloatArray]:
    """How often each sample with replacement holds each of n, shape (D, n); some draws at a time, paired by seed.

    ``n_values``: numbers that each draw will take in memory, where they are more than n.
    """
    rng = np.random.default_rng(seed)
    at_once = max(1, MAX_WEIGHTS // max(n, n_values))
    for start in range(0, draws, at_once):
        # one draw after the other, so that the draws do not depend on how many are made at once
        picks = (rng.integers(n, size=n) for _ in range(start, min(start + at_once, draws)))
        yield np.stack([np.bincount(pick, minlength=n) for pick in picks]).astype(np.float64)


def bootstrap_means(values_Q_K: FloatArray, *, draws: int, seed: int) -> FloatArray:
    """Means of K columns over Q rows sampled with replacement, shape (draws, K); paired, row by row."""
    n = len(values_Q_K)
    return np.concatenate([weights @ values_Q_K / n for weights in resampled_weights(n, draws=draws, seed=seed)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitCounts:
    """What the U units, each one problem within one source, add to every metric."""

    sources: tuple[str, ...]
    n_problems: int
    source: IntArray  # (U,): source of each unit, non-decreasing
    problem: IntArray  # (U,): problem of each unit
    steps: FloatArray  # (U, 4): `metrics.hit_counts` of the unit's steps
    modified: FloatArray  # (U, 4): `metrics.hit_counts` of its steps that PRMScore counts
    solutions: FloatArray  # (U, 4): `metrics.hit_counts` of its solutions, for first errors
    bins: FloatArray  # (U, 3 * BINS): see `metrics.expected_calibration_error`
    rankings: tuple[tuple[str | None, metrics.RankedSteps, IntArray], ...]
    """(source, its steps by score, the unit of each of them), and so for all sources together."""

    def by_source(self, counts_U_4: FloatArray, weights_D_P: FloatArray) -> FloatArray:
        """Sums of counts over the units of each source in each draw, shape (D, K, 4)."""
        weights_D_U = weights_D_P[:, self.problem]
        bounds = np.searchsorted(self.source, np.arange(len(self.sources) + 1))
        return np.stack([weights_D_U[:, a:b] @ counts_U_4[a:b] for a, b in pairwise(bounds)], axis=1)


def count_units(table: StepTable, thresholds: Thresholds) -> UnitCounts:
    """The counts of each unit, with the predictions that the thresholds make."""
    units, unit_of_solution = np.unique(np.stack([table.source, table.problem], 1), axis=0, return_inverse=True)
    n_units, unit_of_solution = len(units), unit_of_solution.reshape(-1)

    def hits(ranges: metrics.HitRanges, thresholds_of_folds: tuple[float, ...]) -> FloatArray:
        t = np.array(thresholds_of_folds)[thresholds.fold][table.problem[ranges.solution]]
        is_hit = (ranges.above < t) & (t <= ranges.up_to)
        unit, column = unit_of_solution[ranges.solution], np.where(ranges.is_error, 0, 2)
        shape = (n_units, 4)
        return _summed(unit, column, np.ones(len(t)), shape) + _summed(unit, column + 1, is_hit, shape)

    ranges = metrics.step_ranges(table)
    scores, is_correct = table.scores[table.is_counted], table.labels[table.is_counted] == 1
    solution = table.solution[table.is_counted]
    source, unit, bins = table.source[solution], unit_of_solution[solution], metrics.calibration_bin(scores)
    amounts = (np.ones(len(scores)), scores, is_correct)
    rankings = []
    for k, name in enumerate([*table.sources, None]):
        here = np.arange(len(scores)) if name is None else np.flatnonzero(source == k)
        steps = metrics.rank_steps(scores[here], is_correct[here])
        rankings.append((name, steps, unit[here][steps.order]))
    return UnitCounts(
        sources=table.sources,
        n_problems=len(table.problems),
        source=units[:, 0],
        problem=units[:, 1],
        steps=hits(ranges, thresholds.steps),
        modified=hits(ranges.only(table.is_modified[ranges.solution]), thresholds.steps),
        solutions=hits(metrics.first_error_ranges(table), thresholds.solutions),
        bins=np.concatenate([_summed(unit, bins, amount, (n_units, BINS)) for amount in amounts], 1),
        rankings=tuple(rankings),
    )


def _summed(rows: IntArray, columns: IntArray, amounts: FloatArray | BoolArray, shape: tuple[int, int]) -> FloatArray:
    """A matrix with each amount added at its row and column."""
    flat = np.bincount(rows * shape[1] + columns, weights=amounts, minlength=shape[0] * shape[1])
    return flat.astype(np.float64).reshape(shape)


def compute_metrics(counts: UnitCounts, weights_D_P: FloatArray) -> dict[Key, FloatArray]:
    """Every metric of each source and of all together, shape (D,), nan where undefined; weights of 1 are no draw."""
    kinds = [counts.by_source(kind, weights_D_P) for kind in (counts.steps, counts.solutions, counts.modified)]
    steps_D_K, solutions_D_K, _ = kinds
    values: dict[Key, FloatArray] = {(None, "overall"): metrics.overall_f1(steps_D_K)}
    for name, (steps, solutions, modified) in [
        *((name, [kind[:, k] for kind in kinds]) for k, name in enumerate(counts.sources)),
        (None, [kind.sum(1) for kind in kinds]),
    ]:
        values[name, "macro_f1"] = metrics.macro_f1(steps)
        values[name, "f1_correct"], values[name, "f1_error"] = metrics.f1_by_class(steps)
        values[name, "accuracy"] = metrics.accuracy(steps)
        values[name, "first_error_accuracy"] = metrics.accuracy(solutions)
        by_class = metrics.accuracy_by_class(solutions)
        values[name, "erroneous_accuracy"], values[name, "correct_accuracy"] = by_class
        values[name, "processbench_f1"] = metrics.processbench_f1(solutions)
        values[name, "prmscore"] = metrics.prmscore(modified)
    values[None, "processbench_f1"] = metrics.mean_processbench_f1(solutions_D_K)
    weights_D_U = weights_D_P[:, counts.problem]
    bins = (weights_D_U @ counts.bins).reshape(len(weights_D_P), 3, BINS)
    values[None, "ece"] = metrics.expected_calibration_error(bins)
    for name, ranked, units in counts.rankings:
        ranking = metrics.ranking_metrics(ranked, weights_D_U[:, units])
        values |= {(name, metric): of_draws for metric, of_draws in ranking.items()}
    return values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelResult:
    """The metrics of one model, and those of each bootstrap draw."""

    name: str
    table: StepTable
    thresholds: Thresholds
    counts: UnitCounts
    distribution: dict[Key, FloatArray]
    """Each metric in each draw, shape (draws,), nan where it is undefined; empty without draws."""
    metrics: dict[Key, Estimate]

    def value(self, metric: str, source: str | None = None) -> float | None:
        return self.metrics[source, metric].value


def model_result(
    solutions: Sequence[ScoredSolution],
    threshold: metrics.Threshold = "held-out",
    *,
    folds: int = 5,
    draws: int = 0,
    seed: int = 0,
    name: str = "",
) -> ModelResult:
    """All metrics of a model's scores; with draws, their intervals over problems."""
    table = StepTable.of(solutions)
    thresholds = metrics.choose_thresholds(table, threshold, folds=folds, seed=seed)
    return bootstrap_metrics(table, thresholds, draws=draws, seed=seed, name=name)


def bootstrap_metrics(
    table: StepTable, thresholds: Thresholds, *, draws: int = 0, seed: int = 0, name: str = ""
) -> ModelResult:
    """All metrics at thresholds that are chosen already: predictions are resampled, not made again."""
    counts = count_units(table, thresholds)
    n_values = int(table.is_counted.sum())
    weights = resampled_weights(counts.n_problems, draws=draws, seed=seed, n_values=n_values)
    parts = [compute_metrics(counts, weights_D_P) for weights_D_P in weights]
    distribution = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}
    values = compute_metrics(counts, np.ones((1, counts.n_problems)))
    return ModelResult(
        name=name,
        table=table,
        thresholds=thresholds,
        counts=counts,
        distribution=distribution,
        metrics={key: estimate(float(value[0]), distribution.get(key)) for key, value in values.items()},
    )


def bootstrap_overall(counts: UnitCounts, *, draws: int, seed: int) -> FloatArray:
    """The overall value and that of each draw, shape (1 + draws,): those of `bootstrap_metrics`, in less time."""
    weights = resampled_weights(counts.n_problems, draws=draws, seed=seed)
    parts = (counts.by_source(counts.steps, w) for w in (np.ones((1, counts.n_problems)), *weights))
    return np.concatenate([metrics.overall_f1(steps_D_K) for steps_D_K in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much a metric of one model is above that of another."""

    estimate: Estimate
    p_value: float | None  # two-sided, from the paired bootstrap; None without draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A model against a baseline, on the steps that both scored."""

    model: str
    baseline: str
    differences: dict[Key, Difference]  # model less baseline
    permutation_p: float | None
    """Two-sided, for the overall value: how often a difference as large comes of swapping the two at random."""
    n_permutations: int
    is_exact: bool
    n_left_out: int  # labelled steps that only one of them scored


def compare(model: ModelResult, baseline: ModelResult, *, draws: int, seed: int) -> Comparison:
    """The model against the baseline; both hold the same steps, see `mprm.evaluation.scores.check_same_steps`."""
    is_left_out = np.isnan(model.table.scores) != np.isnan(baseline.table.scores)
    if is_left_out.any():
        tables = (replace(r.table, scores=np.where(is_left_out, np.nan, r.table.scores)) for r in (model, baseline))
        model, baseline = (
            bootstrap_metrics(table, result.thresholds, draws=draws, seed=seed, name=result.name)
            for table, result in zip(tables, (model, baseline), strict=True)
        )
    differences = {}
    for key, own in model.metrics.items():
        difference, p_value, other = Estimate(value=None), None, baseline.metrics[key]
        if own.value is not None and other.value is not None:
            apart = model.distribution[key] - baseline.distribution[key] if draws else None
            difference, p_value = estimate(own.value - other.value, apart), _bootstrap_p(apart)
        differences[key] = Difference(estimate=difference, p_value=p_value)
    p, n, is_exact = permutation_test(model.counts, baseline.counts, draws=draws, seed=seed)
    return Comparison(
        model=model.name,
        baseline=baseline.name,
        differences=differences,
        permutation_p=p,
        n_permutations=n,
        is_exact=is_exact,
        n_left_out=int((is_left_out & (model.table.labels != 0)).sum()),
    )


def _bootstrap_p(apart: FloatArray | None) -> float | None:
    """Two-sided: twice the share of draws on the rarer side of 0; never 0, as draws are finite."""
    defined = apart[~np.isnan(apart)] if apart is not None else np.zeros(0)
    if not len(defined):
        return None
    rarer = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (rarer + 1) / (len(defined) + 1)))


def permutation_test(
    model: UnitCounts, baseline: UnitCounts, *, draws: int, seed: int
) -> tuple[float | None, int, bool]:
    """(p, number of permutations, whether they are all) for equal overall values.

    Were the models alike, their predictions for a problem could be swapped. All ways of swapping are tried where
    there are no more than the draws; else as many at random.
    """
    if not draws:
        return None, 0, False
    n_problems = model.n_problems
    is_exact = n_problems < 63 and 2**n_problems <= draws
    n = 2**n_problems if is_exact else draws
    own, other = (c.by_source(c.steps, np.ones((1, n_problems))) for c in (model, baseline))

    def apart(is_swapped_D_P: FloatArray) -> FloatArray:
        moved = model.by_source(baseline.steps - model.steps, is_swapped_D_P)
        return np.abs(metrics.overall_f1(own + moved) - metrics.overall_f1(other - moved))

    least = apart(np.zeros((1, n_problems)))[0] - metrics.TOLERANCE
    rng = np.random.default_rng(seed)
    n_as_large = 0
    at_once = max(1, MAX_WEIGHTS // n_problems)
    for start in range(0, n, at_once):
        numbers = np.arange(start, min(start + at_once, n))
        if is_exact:
            is_swapped = numbers[:, None] >> np.arange(n_problems) & 1
        else:
            is_swapped = rng.integers(2, size=(len(numbers), n_problems))
        n_as_large += int((apart(is_swapped.astype(np.float64)) >= least).sum())
    # the observed assignment is one more when they are random, and among them when all are tried
    return (n_as_large / n if is_exact else (n_as_large + 1) / (n + 1)), n, is_exact

"""Two models on the same steps: differences of metrics, with paired intervals and tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mprm.errors import DataError
from mprm.evaluation.bootstrap import Estimate, Key, Measured, UnitCounts, estimate, measured, overall_values
from mprm.evaluation.step_table import FloatArray, ScoredBenchmark, StepTable
from mprm.evaluation.thresholds import Thresholds

TOLERANCE = 1e-12
"""Differences that rounding alone can make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much a metric of one model is above that of another."""

    estimate: Estimate
    p_value: float | None
    """Two-sided, from the paired bootstrap; None without draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A model against a baseline, on the steps that both scored."""

    model: str
    baseline: str
    differences: dict[Key, Difference]
    """Model less baseline."""
    permutation_p: float | None
    """Two-sided, for the overall value: how often a difference as large comes of swapping the two at random."""
    n_permutations: int
    is_exact: bool
    """Whether every way of swapping was tried."""
    n_left_out: int
    """Labelled steps that only one of them scored."""


def check_same_steps(first: ScoredBenchmark, other: ScoredBenchmark) -> None:
    """Stop when the two do not hold the same solutions with the same labels, in the same order."""
    for number, (one, two) in enumerate(zip(first.solutions, other.solutions, strict=False), 1):
        for field in ("id", "source", "problem", "labels", "first_error"):
            here, there = getattr(one, field), getattr(two, field)
            if here != there:
                raise DataError(
                    f"solution {number} has {field} {here!r} in {first.name} and {there!r} in {other.name};"
                    " models are compared on the same benchmark, so score it again with both"
                )
    if len(first.solutions) != len(other.solutions):
        raise DataError(
            f"{first.name} has {len(first.solutions):,} solutions and {other.name} {len(other.solutions):,};"
            " models are compared on the same benchmark, so score it again with both"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelResult:
    """A model as a comparison needs it."""

    name: str
    table: StepTable
    thresholds: Thresholds
    measured: Measured


def compare(model: ModelResult, baseline: ModelResult, *, draws: int, seed: int) -> Comparison:
    """Compare two models of the same steps; see `check_same_steps`."""
    one, two, n_left_out = _on_common_steps(model, baseline, draws=draws, seed=seed)
    differences = {}
    for key, value in one.values.items():
        apart = one.drawn[key] - two.drawn[key] if one.drawn else None
        found = estimate(float(value[0] - two.values[key][0]), apart)
        differences[key] = Difference(estimate=found, p_value=None if found.value is None else _bootstrap_p(apart))
    p, n, is_exact = permutation_test(one.counts, two.counts, draws=draws, seed=seed)
    return Comparison(
        model=model.name,
        baseline=baseline.name,
        differences=differences,
        permutation_p=p,
        n_permutations=n,
        is_exact=is_exact,
        n_left_out=n_left_out,
    )


def _on_common_steps(
    model: ModelResult, baseline: ModelResult, *, draws: int, seed: int
) -> tuple[Measured, Measured, int]:
    """Both models measured on the steps that both scored, and how many labelled steps that leaves out."""
    lost = [np.isnan(contender.table.scores) for contender in (model, baseline)]
    if np.array_equal(lost[0], lost[1]):
        return model.measured, baseline.measured, 0
    is_lost = lost[0] | lost[1]
    one, two = (
        measured(
            replace(contender.table, scores=np.where(is_lost, np.nan, contender.table.scores)),
            contender.thresholds,
            draws=draws,
            seed=seed,
        )
        for contender in (model, baseline)
    )
    return one, two, int(((lost[0] != lost[1]) & (model.table.labels != 0)).sum())


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

    Were the models alike, their predictions for a problem could be swapped. All ways of swapping are
    tried where there are no more than the draws; else as many at random.
    """
    if not draws:
        return None, 0, False
    n_problems = model.n_problems
    is_exact = n_problems < 63 and 2**n_problems <= draws
    n = 2**n_problems if is_exact else draws
    observed = abs(_swapped_difference(model, baseline, np.zeros((1, n_problems)))[0])
    rng = np.random.default_rng(seed)
    n_as_large = 0
    at_once = max(1, 2_000_000 // n_problems)
    for start in range(0, n, at_once):
        stop = min(start + at_once, n)
        if is_exact:
            is_swapped = np.arange(start, stop)[:, None] >> np.arange(n_problems) & 1
        else:
            is_swapped = rng.integers(2, size=(stop - start, n_problems))
        apart = np.abs(_swapped_difference(model, baseline, is_swapped.astype(np.float64)))
        n_as_large += int((apart >= observed - TOLERANCE).sum())
    # the order that was seen is one more when orders are drawn, and among them when all are tried
    return (n_as_large / n if is_exact else (n_as_large + 1) / (n + 1)), n, is_exact


def _swapped_difference(model: UnitCounts, baseline: UnitCounts, is_swapped_D_P: FloatArray) -> FloatArray:
    """Difference of the overall values after swapping the two models on some problems."""
    is_swapped = is_swapped_D_P[:, model.problem]
    own, other = [], []
    for units in model.slices:
        one, two = model.confusion[units], baseline.confusion[units]
        moved = is_swapped[:, units] @ (two - one)
        own.append(one.sum(0) + moved)
        other.append(two.sum(0) - moved)
    return overall_values(np.stack(own, axis=1)) - overall_values(np.stack(other, axis=1))

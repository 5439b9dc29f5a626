"""Accuracy of best-of-N: of the reward model's choice, and of what it must beat."""

# ruff: noqa: N803, N815 - names carry their axes

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mprm.errors import ConfigError
from mprm.reranking.aggregate import AGGREGATES, FloatArray
from mprm.reranking.bootstrap import bootstrap_means, interval
from mprm.reranking.expectations import (
    expected_best,
    expected_oracle,
    expected_random,
    expected_vote,
    subsets,
)

METHODS = {
    "prm": "highest PRM score",
    "weighted_vote": "PRM-weighted vote",
    "majority_vote": "majority vote",
    "random": "random candidate",
    "first": "first candidate",
    "oracle": "oracle (pass@N)",
}
RIVALS = ("majority_vote", "random", "first")
"""What the PRM's choice is compared with, question by question."""
Subsets = Literal["all", "first"]
"""Best-of-N over all subsets of N candidates, or among the first N alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that best-of-N needs to know of one question; axis M is its candidates."""

    source: str
    is_correct_M: NDArray[np.bool_]
    is_failed_M: NDArray[np.bool_]
    """The checker could not decide; counted as not correct, and apart."""
    answers_M: NDArray[np.intp]
    """Equal numbers for equal answers, -1 where no answer was found."""
    scores_M: dict[str, FloatArray]
    """Score of each candidate by each aggregate; nan for one without any scored step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over questions with its bootstrap interval."""

    value: float
    low: float
    high: float
    if_failed_correct: float
    """The value if every answer that the checker failed on were correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """Accuracies by method and N, and the PRM's lead by rival and N, over some questions."""

    n_questions: int
    accuracy: dict[str, dict[int, Estimate]]
    lead: dict[str, dict[int, Estimate]]
    by_aggregate: dict[str, dict[int, Estimate]]
    """Accuracy of the PRM's choice for every way to aggregate step scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Best-of-N over all questions, and over those of each source."""

    total: BestOfN
    sources: dict[str, BestOfN]


def powers_of_two(n_candidates: int) -> tuple[int, ...]:
    """1, 2, 4, … up to the number of candidates."""
    return tuple(1 << power for power in range(n_candidates.bit_length()))


def best_of_n(
    outcomes: Sequence[Outcome],
    *,
    ns: Sequence[int],
    aggregate: str = "mean",
    over: Subsets = "all",
    draws: int = 1000,
    seed: int = 0,
    on_question: Callable[[int], None] | None = None,
) -> Measured:
    """Best-of-N over all questions, and over those of each source.

    Parameters
    ----------
    ns
        Each no larger than the number of any question's candidates.
    aggregate
        How step scores make the score of a candidate.
    over
        ``all``: the expectation over all subsets of N candidates, in closed form; for votes, the mean
        over all subsets or over ``draws`` random ones where there are more. ``first``: the first N.
        No votes are held where not a single answer is known.
    draws, seed
        Bootstrap draws over questions, most subsets for votes; seed of both.
    """
    _refuse(outcomes, ns, draws)
    columns = _columns(outcomes, ns)
    lower = np.empty((len(outcomes), len(columns)))
    upper = np.empty_like(lower)
    masks = lru_cache(maxsize=None)(lambda m, n: subsets(m, n, most=draws, seed=seed))
    for number, outcome in enumerate(outcomes):
        right, bound = outcome.is_correct_M, outcome.is_correct_M | outcome.is_failed_M
        lower[number] = [_value(outcome, right, *column, aggregate, over, masks) for column in columns]
        is_same = not outcome.is_failed_M.any()
        upper[number] = (
            lower[number]
            if is_same
            else [_value(outcome, bound, *column, aggregate, over, masks) for column in columns]
        )
        if on_question is not None:
            on_question(1)
    summary = partial(_summary, columns=columns, aggregate=aggregate, draws=draws, seed=seed)
    sources = np.array([outcome.source for outcome in outcomes])
    masks_by_source = {name: sources == name for name in dict.fromkeys(sources.tolist())}
    return Measured(
        total=summary(lower, upper),
        sources={name: summary(lower[mask], upper[mask]) for name, mask in masks_by_source.items()},
    )


Column = tuple[str, int]
"""A method, or an aggregate for the PRM's choice by it; and N."""


def _columns(outcomes: Sequence[Outcome], ns: Sequence[int]) -> list[Column]:
    can_vote = any((outcome.answers_M >= 0).any() for outcome in outcomes)
    methods = [name for name in METHODS if name != "prm" and (can_vote or not name.endswith("_vote"))]
    return [(name, n) for name in [*AGGREGATES, *methods] for n in ns]


def _refuse(outcomes: Sequence[Outcome], ns: Sequence[int], draws: int) -> None:
    if not outcomes:
        raise ConfigError("there are no questions to choose answers for")
    if draws < 1:
        raise ConfigError(f"draws must be 1 or more, got {draws}")
    fewest = min(len(outcome.is_correct_M) for outcome in outcomes)
    wrong = [n for n in ns if not 1 <= n <= fewest]
    if wrong or not ns:
        raise ConfigError(f"N must be from 1 to {fewest}, the fewest candidates of a question; got {list(ns)}")


def _value(
    outcome: Outcome,
    is_right_M: NDArray[np.bool_],
    method: str,
    n: int,
    aggregate: str,
    over: Subsets,
    masks: Callable[[int, int], NDArray[np.bool_]],
) -> float:
    """Expected accuracy on one question."""
    m = n if over == "first" else len(is_right_M)
    right = is_right_M[:m].astype(np.float64)
    if method == "first":
        return float(right[0])
    if method == "random":
        return expected_random(right)
    if method == "oracle":
        return expected_oracle(right, n)
    if method in AGGREGATES:
        return expected_best(outcome.scores_M[method][:m], right, n)
    weights = np.ones(m) if method == "majority_vote" else np.nan_to_num(outcome.scores_M[aggregate][:m])
    return expected_vote(outcome.answers_M[:m], weights, right, masks(m, n))


def _summary(
    lower: FloatArray, upper: FloatArray, columns: Sequence[Column], *, aggregate: str, draws: int, seed: int
) -> BestOfN:
    """Means over questions: the lower and the upper bound of each column."""
    means = bootstrap_means(lower, draws=draws, seed=seed)
    places = {column: place for place, column in enumerate(columns)}

    def estimate(column: Column, rival: Column | None = None) -> Estimate:
        """Of a column, or of its lead over a rival."""
        one, other = places[column], None if rival is None else places[rival]
        value, drawn, bound = (
            array[:, one] - (0 if other is None else array[:, other]) for array in (lower, means, upper)
        )
        low, high = interval(drawn)
        return Estimate(value=float(value.mean()), low=low, high=high, if_failed_correct=float(bound.mean()))

    found: dict[str, dict[int, Estimate]] = {}
    lead: dict[str, dict[int, Estimate]] = {}
    for method, n in columns:
        found.setdefault(method, {})[n] = estimate((method, n))
        if method in RIVALS:
            lead.setdefault(method, {})[n] = estimate((aggregate, n), (method, n))
    by_aggregate = {how: found.pop(how) for how in AGGREGATES}
    accuracy = {"prm": by_aggregate[aggregate], **found}
    return BestOfN(n_questions=len(lower), accuracy=accuracy, lead=lead, by_aggregate=by_aggregate)

"""Accuracy of best-of-N: of the reward model's choice, and of what it must beat.

Of M candidates a question, every subset of N could have been the one that was sampled. Accuracies at N are the mean
over all of these subsets, in closed form where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import combinations
from math import comb
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.charts import Chart, Point, Series
from mprm.errors import ConfigError
from mprm.evaluation.bootstrap import Estimate, bootstrap_means, estimate
from mprm.evaluation.metrics import BoolArray, FloatArray
from mprm.progress import Progress, silent

AggregateName = Literal["mean", "min", "last", "product", "max"]
AGGREGATES: dict[str, Callable[[FloatArray], float]] = {
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "min": lambda scores: float(scores.min()),
    "last": lambda scores: float(scores[-1]),
    "product": lambda scores: float(np.sort(scores).prod()),
    "max": lambda scores: float(scores.max()),
}
"""``mean`` is the paper's: ``S = (1/T) Σ s_t``. None depends on the order of adding: equal scores tie exactly."""
METHODS = {
    "prm": "highest PRM score",
    "weighted_vote": "PRM-weighted vote",
    "majority_vote": "majority vote",
    "random": "random candidate",
    "first": "first candidate",
    "oracle": "oracle (pass@N)",
}
BASELINES = ("majority_vote", "random", "first")  # what the PRM's choice is compared with, question by question
Subsets = Literal["all", "first"]
Column = tuple[str, int]  # a method, or an aggregate for the PRM's choice by it; and N
TIE = 1e-9  # sums of weights that differ by less, relatively, are equal: the order of adding must not decide


def aggregate(step_scores: Sequence[float | None], how: str = "mean") -> float:
    """Score of a candidate, in [0, 1]; steps without one (None or nan) are left out; nan where no step has one."""
    if how not in AGGREGATES:
        raise ConfigError(f"unknown aggregate {how!r}; expected one of {', '.join(AGGREGATES)}")
    scores = np.asarray(step_scores, dtype=np.float64)
    known = scores[~np.isnan(scores)]
    return AGGREGATES[how](known) if len(known) else math.nan


@lru_cache(maxsize=256)
def win_probabilities(m: int, n: int) -> FloatArray:
    """Probability that the r-th best of m, from 0, is the best of n sampled ones, shape (M,).

    It is when it is sampled and the other n - 1 come from those below it: ``C(M-1-r, n-1) / C(M, n)``.
    """
    return np.array([comb(m - 1 - r, n - 1) for r in range(m)], dtype=np.float64) / comb(m, n)


def expected_best(scores_M: FloatArray, correct_M: FloatArray, n: int) -> float:
    """Accuracy of the candidate with the highest score among n; equal scores share, nan ranks below all others."""
    order = np.where(np.isnan(scores_M), np.inf, -scores_M)
    _, group_M, sizes = np.unique(order, return_inverse=True, return_counts=True)
    probabilities = np.add.reduceat(win_probabilities(len(order), n), np.cumsum(sizes) - sizes)
    return float((probabilities * np.bincount(group_M, weights=correct_M) / sizes).sum())


def expected_oracle(correct_M: FloatArray, n: int) -> float:
    """Probability that a correct candidate is among n (pass@n): ``1 - C(M-c, n) / C(M, n)``."""
    m, n_correct = len(correct_M), int(correct_M.sum())
    return 1 - comb(m - n_correct, n) / comb(m, n)


def subsets(m: int, n: int, *, most: int, seed: int) -> BoolArray:
    """Subsets of n out of m as rows of a mask, shape (S, M): all, or ``most`` random ones where there are more."""
    if comb(m, n) <= most:
        chosen = np.array(list(combinations(range(m), n)))
    else:  # the same for every question
        chosen = np.random.default_rng([seed, m, n]).random((most, m)).argpartition(n, axis=1)[:, :n]
    masks = np.zeros((len(chosen), m), dtype=np.bool_)
    np.put_along_axis(masks, chosen, True, axis=1)
    return masks


def expected_vote(
    answers_M: NDArray[np.intp], weights_M: FloatArray, correct_M: FloatArray, masks_S_M: BoolArray
) -> float:
    """Accuracy of the answer with the largest sum of weights, mean over the subsets; see `subsets`.

    Answers with equal sums win with equal probability. An answer whose candidates have different verdicts is as
    correct as they are on average. A candidate whose answer is -1 has no vote; without any vote, nothing is correct.
    """
    n_answers = int(answers_M.max()) + 1
    if n_answers == 0:
        return 0.0
    is_answer_M_A = (answers_M[:, None] == np.arange(n_answers)).astype(np.float64)
    masks = masks_S_M.astype(np.float64)
    n_votes_S_A = masks @ is_answer_M_A
    sums_S_A = masks @ (is_answer_M_A * weights_M[:, None])
    correct_S_A = masks @ (is_answer_M_A * correct_M[:, None])
    sums_S_A[n_votes_S_A == 0] = -np.inf
    wins_S_A = (sums_S_A >= sums_S_A.max(axis=1, keepdims=True) * (1 - TIE)) & (n_votes_S_A > 0)
    shares_S_A = np.where(wins_S_A, correct_S_A / np.maximum(n_votes_S_A, 1), 0.0)
    return float((shares_S_A.sum(axis=1) / np.maximum(wins_S_A.sum(axis=1), 1)).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredQuestion:
    """All that best-of-N needs to know of one question; axis M is its candidates."""

    source: str
    is_correct_M: BoolArray
    is_failed_M: BoolArray  # the checker could not decide; counted as not correct, and apart
    answers_M: NDArray[np.intp]  # equal numbers for equal answers, -1 where the candidate states none
    scores_M: dict[str, FloatArray]  # score of each candidate by each aggregate; nan for one without any scored step


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyEstimate(Estimate):
    """A mean over questions with its bootstrap interval."""

    value: float
    low: float
    high: float
    if_failed_correct: float  # the value if every answer that the checker failed on were correct


ByN = dict[Annotated[int, msgspec.Meta(ge=1)], AccuracyEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """Accuracies by method and N over some questions."""

    n_questions: int
    accuracy: dict[str, ByN]
    lead: dict[str, ByN]  # of the PRM's choice over each baseline
    by_aggregate: dict[str, ByN]  # accuracy of the PRM's choice by every aggregate of step scores


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfNResult:
    """Best-of-N over all questions, and over those of each source."""

    total: BestOfN
    sources: dict[str, BestOfN]


def best_of_n(
    questions: Sequence[ScoredQuestion],
    *,
    ns: Sequence[int],
    aggregate: str = "mean",
    over: Subsets = "all",
    draws: int = 1000,
    seed: int = 0,
    progress: Progress = silent,
) -> BestOfNResult:
    """Best-of-N over all questions, and over those of each source; each of ``ns`` is at most any question's M.

    ``over="all"``: the expectation over all subsets of N candidates, in closed form; for votes, the mean over all
    subsets or over ``draws`` random ones where there are more. ``first``: the first N. Without answers, no votes.
    """
    can_vote = any((question.answers_M >= 0).any() for question in questions)
    methods = [name for name in METHODS if name != "prm" and (can_vote or not name.endswith("_vote"))]
    columns = [(name, n) for name in [*AGGREGATES, *methods] for n in ns]
    masks = lru_cache(maxsize=None)(lambda m, n: subsets(m, n, most=draws, seed=seed))

    def accuracy(question: ScoredQuestion, is_correct_M: BoolArray, method: str, n: int) -> float:
        m = n if over == "first" else len(is_correct_M)
        correct_M = is_correct_M[:m].astype(np.float64)
        if method == "first":
            return float(correct_M[0])
        if method == "random":
            return float(correct_M.mean())
        if method == "oracle":
            return expected_oracle(correct_M, n)
        if method in AGGREGATES:
            return expected_best(question.scores_M[method][:m], correct_M, n)
        weights = np.ones(m) if method == "majority_vote" else np.nan_to_num(question.scores_M[aggregate][:m])
        return expected_vote(question.answers_M[:m], weights, correct_M, masks(m, n))

    lower, upper = np.empty((2, len(questions), len(columns)))
    with progress("best of N", len(questions)) as advance:
        for index, question in enumerate(questions):
            lower[index] = upper[index] = [accuracy(question, question.is_correct_M, *column) for column in columns]
            if question.is_failed_M.any():
                is_possible = question.is_correct_M | question.is_failed_M
                upper[index] = [accuracy(question, is_possible, *column) for column in columns]
            advance(1)
    summary = partial(_summary, columns=columns, aggregate=aggregate, draws=draws, seed=seed)
    sources = np.array([question.source for question in questions])
    masks_by_source = {name: sources == name for name in dict.fromkeys(sources.tolist())}
    return BestOfNResult(
        total=summary(lower, upper),
        sources={name: summary(lower[mask], upper[mask]) for name, mask in masks_by_source.items()},
    )


def best_of_n_chart(name: str, title: str, accuracy: Mapping[str, ByN]) -> Chart:
    """Accuracy against N, a line and its 95% band for each method."""
    series = []
    for method, by_n in accuracy.items():
        points = tuple(Point(x=n, y=by_n[n].value, low=by_n[n].low, high=by_n[n].high) for n in sorted(by_n))
        series.append(Series(name=METHODS.get(method, method), points=points))
    x = "candidates a question (N)"
    return Chart(name=name, title=title, x=x, y="accuracy", series=tuple(series), is_log=True)


def _summary(
    lower_Q_C: FloatArray, upper_Q_C: FloatArray, *, columns: Sequence[Column], aggregate: str, draws: int, seed: int
) -> BestOfN:
    """Means over questions: the lower and the upper bound of each column."""
    means_D_C = bootstrap_means(lower_Q_C, draws=draws, seed=seed)

    def estimated(column: Column, baseline: Column | None = None) -> AccuracyEstimate:
        values, distribution, bounds = (
            array[:, columns.index(column)] - (0 if baseline is None else array[:, columns.index(baseline)])
            for array in (lower_Q_C, means_D_C, upper_Q_C)
        )
        mean = estimate(float(values.mean()), distribution)
        return AccuracyEstimate(**asdict(mean), if_failed_correct=float(bounds.mean()))

    accuracy: dict[str, ByN] = {}
    lead: dict[str, ByN] = {}
    for method, n in columns:
        accuracy.setdefault(method, {})[n] = estimated((method, n))
        if method in BASELINES:
            lead.setdefault(method, {})[n] = estimated((aggregate, n), (method, n))
    by_aggregate = {how: accuracy.pop(how) for how in AGGREGATES}
    accuracy = {"prm": by_aggregate[aggregate], **accuracy}
    return BestOfN(n_questions=len(lower_Q_C), accuracy=accuracy, lead=lead, by_aggregate=by_aggregate)

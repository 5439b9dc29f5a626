"""One score for a candidate, out of the scores of its steps.

Intervals by resampling questions.

Expected accuracy of a choice among N candidates, over all subsets of N out of the M that were sampled.

Accuracy of best-of-N: of the reward model's choice, and of what it must beat.

The candidate that is chosen for each question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mprm.annotation.samplers.sampler import derived_seed
from mprm.answers.grade import Grade, GradedAnswer
from mprm.data.candidate_formats import CandidateSet
from mprm.errors import ConfigError

FloatArray = NDArray[np.float64]
Aggregate = Literal["mean", "min", "last", "product", "max"]

AGGREGATES: dict[str, Callable[[FloatArray], float]] = {
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "min": lambda scores: float(scores.min()),
    "last": lambda scores: float(scores[-1]),
    "product": lambda scores: float(np.sort(scores).prod()),
    "max": lambda scores: float(scores.max()),
}
"""``mean`` is the paper's: ``S = (1/T) Σ s_t``. None depends on the order of adding: equal scores tie exactly."""


def aggregate(step_scores: Sequence[float], how: str = "mean") -> float:
    """Score of a candidate, in [0, 1]; higher is better.

    Steps that truncation cut off (nan) are left out: nothing is known of them, so the candidate is
    judged by what the model saw of it, and ``last`` is the last step that it saw. A candidate without
    any scored step, because it has none or all were cut off, has score nan and ranks below all others.

    Examples
    --------
    >>> aggregate([0.5, 1.0, float("nan")], "mean"), aggregate([0.5, 1.0], "product")
    (0.75, 0.5)
    """
    if how not in AGGREGATES:
        raise ConfigError(f"unknown aggregate {how!r}; expected one of {', '.join(AGGREGATES)}")
    scores = np.asarray(step_scores, dtype=np.float64)
    seen = scores[~np.isnan(scores)]
    return AGGREGATES[how](seen) if len(seen) else float("nan")


BLOCK = 1 << 22
"""Numbers that are held at a time."""


def bootstrap_means(values_Q_K: FloatArray, *, draws: int, seed: int) -> FloatArray:
    """Means of K columns over questions that are drawn with replacement, shape (draws, K).

    All columns see the same questions in a draw, so that differences of columns are paired.
    """
    n_questions = len(values_Q_K)
    rng = np.random.default_rng(seed)
    chances = np.full(n_questions, 1 / n_questions)
    at_a_time = max(1, BLOCK // n_questions)
    blocks = [
        rng.multinomial(n_questions, chances, size=min(at_a_time, draws - start)) @ values_Q_K / n_questions
        for start in range(0, draws, at_a_time)
    ]
    return np.concatenate(blocks)


def interval(means: FloatArray) -> tuple[float, float]:
    """The middle 95% of bootstrap means."""
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@lru_cache(maxsize=256)
def win_chances(m: int, n: int) -> FloatArray:
    """Probability that the r-th best of m, from 0, is the best of n drawn ones, shape (M,).

    It is when it is drawn and the other n - 1 come from those below it: ``C(M-1-r, n-1) / C(M, n)``.
    """
    return np.array([comb(m - 1 - r, n - 1) for r in range(m)], dtype=np.float64) / comb(m, n)


def expected_best(scores_M: FloatArray, correct_M: FloatArray, n: int) -> float:
    """Accuracy of the candidate with the highest score among n.

    Candidates with equal scores share their chances evenly. A score of nan ranks below all others.

    Examples
    --------
    >>> expected_best(np.array([0.9, 0.5, 0.1]), np.array([1.0, 0.0, 0.0]), 2)  # in two subsets of three
    0.6666666666666666
    """
    order = np.where(np.isnan(scores_M), np.inf, -scores_M)
    _, group_M, sizes = np.unique(order, return_inverse=True, return_counts=True)
    first = np.cumsum(sizes) - sizes
    chances = np.add.reduceat(win_chances(len(order), n), first)
    n_correct = np.bincount(group_M, weights=correct_M)
    return float((chances * n_correct / sizes).sum())


def expected_oracle(correct_M: FloatArray, n: int) -> float:
    """Probability that a correct candidate is among n (pass@n): ``1 - C(M-c, n) / C(M, n)``.

    Examples
    --------
    >>> expected_oracle(np.array([1.0, 0.0, 0.0, 0.0]), 2)
    0.5
    """
    m, n_correct = len(correct_M), int(correct_M.sum())
    return 1 - comb(m - n_correct, n) / comb(m, n)


def expected_random(correct_M: FloatArray) -> float:
    """Accuracy of a candidate chosen at random; the same for every n."""
    return float(correct_M.mean())


def subsets(m: int, n: int, *, most: int, seed: int) -> NDArray[np.bool_]:
    """Subsets of n out of m candidates as rows of a mask, shape (S, M).

    All of them where there are no more than ``most``; else ``most`` that are drawn at random, the same
    for every question.
    """
    if comb(m, n) <= most:
        places = np.array(list(combinations(range(m), n)))
    else:
        places = np.random.default_rng([seed, m, n]).random((most, m)).argpartition(n, axis=1)[:, :n]
    masks = np.zeros((len(places), m), dtype=np.bool_)
    np.put_along_axis(masks, places, True, axis=1)
    return masks


TIE = 1e-9
"""Sums of weights that differ by less, relatively, are equal: the order of adding must not decide."""


def expected_vote(
    answers_M: NDArray[np.intp],
    weights_M: FloatArray,
    correct_M: FloatArray,
    masks_S_M: NDArray[np.bool_],
) -> float:
    """Accuracy of the answer with the largest sum of weights, mean over the subsets.

    Parameters
    ----------
    answers_M
        Number of each candidate's answer, from 0; -1 for a candidate without one, which has no vote.
    weights_M
        1 for a majority vote; the candidates' scores for a weighted one.
    masks_S_M
        The subsets, see `subsets`.

    Answers with equal sums win with equal probability. Where candidates of one answer are judged
    differently, the answer is as correct as they are on average. Without any vote, nothing is correct.
    """
    n_answers = int(answers_M.max()) + 1
    if n_answers == 0:
        return 0.0
    is_answer_M_A = (answers_M[:, None] == np.arange(n_answers)).astype(np.float64)
    masks = masks_S_M.astype(np.float64)
    n_votes_S_A = masks @ is_answer_M_A
    sums_S_A = masks @ (is_answer_M_A * weights_M[:, None])
    right_S_A = masks @ (is_answer_M_A * correct_M[:, None])
    sums_S_A[n_votes_S_A == 0] = -np.inf
    wins_S_A = (sums_S_A >= sums_S_A.max(axis=1, keepdims=True) * (1 - TIE)) & (n_votes_S_A > 0)
    shares_S_A = np.where(wins_S_A, right_S_A / np.maximum(n_votes_S_A, 1), 0.0)
    return float((shares_S_A.sum(axis=1) / np.maximum(wins_S_A.sum(axis=1), 1)).mean())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best candidate by one aggregate."""

    candidate: int
    """Its number, from 0."""
    score: float | None
    """None where no candidate has a scored step."""
    n_tied: int
    """Candidates with that score; one of them was drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A line of ``chosen.jsonl``: the question's answer, and what other aggregates would choose."""

    id: str
    source: str
    candidate: int
    score: float | None
    n_tied: int
    verdict: Grade
    answer: str | None
    text: str
    by_aggregate: dict[str, Choice]


def choose(scores_M: FloatArray, *, seed: int) -> Choice:
    """The candidate with the highest score; of several, one that the seed draws.

    Examples
    --------
    >>> choose(np.array([0.2, np.nan, 0.9]), seed=0)
    Choice(candidate=2, score=0.9, n_tied=1)
    """
    ranks = np.where(np.isnan(scores_M), -np.inf, scores_M)
    tied = np.flatnonzero(ranks == ranks.max())
    best = int(tied[seed % len(tied)])
    return Choice(candidate=best, score=None if np.isnan(scores_M[best]) else float(scores_M[best]), n_tied=len(tied))


def chosen_of(
    entry: CandidateSet,
    judged: Sequence[GradedAnswer],
    scores_M: Mapping[str, FloatArray],
    *,
    aggregate: str,
    seed: int,
) -> Chosen:
    """What is chosen for one question."""
    source, id_ = entry.key
    choices = {how: choose(scores, seed=derived_seed(seed, source, id_)) for how, scores in scores_M.items()}
    best = choices[aggregate]
    return Chosen(
        id=id_,
        source=source,
        candidate=best.candidate,
        score=best.score,
        n_tied=best.n_tied,
        verdict=judged[best.candidate].grade,
        answer=judged[best.candidate].answer,
        text=entry.candidates[best.candidate].text,
        by_aggregate=choices,
    )

"""Expected accuracy of a choice among N candidates, over all subsets of N out of the M that were sampled.

With M candidates a question, one could judge best-of-N by the first N alone. The mean over all
subsets of N has the same expectation and a smaller variance, and these have a closed form for it.
Candidates of equal rank are chosen with equal probability. Axis M is a question's candidates.
"""

# ruff: noqa: N803, N806 - names carry their axes

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from mprm.reranking.aggregate import FloatArray


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

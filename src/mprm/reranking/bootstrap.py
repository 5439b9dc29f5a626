"""Intervals by resampling questions."""

# ruff: noqa: N803 - names carry their axes

from __future__ import annotations

import numpy as np

from mprm.reranking.aggregate import FloatArray

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

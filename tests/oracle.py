"""The strategies in ten lines each: what the fast code must agree with."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np

from mprm.selection.strategies import random_order


def labels(scores: list[float], tau: float = 0.0) -> list[int]:
    return [int(score > tau) for score in scores]


def plain_sum(scores: list[float]) -> float:
    """From left to right; Python's sum() compensates from 3.12 on."""
    total = 0.0
    for score in scores:
        total += score
    return total


def bis(scores: list[float], alpha: float, tau: float = 0.0) -> float:
    p_pos = sum(labels(scores, tau)) / len(scores)
    return (p_pos * (1 - p_pos) + alpha) * reliability(scores, tau)


def reliability(scores: list[float], tau: float = 0.0) -> float:
    positive = [score for score in scores if score > tau]
    return plain_sum(positive) / len(positive) if positive else 1.0


def shuffled(source: str, n: int, seed: int) -> list[int]:
    """All rollouts of a source in the seeded random order."""
    order = random_order(seed, source, np.arange(n, dtype=np.uint64))
    return sorted(range(n), key=lambda i: int(order[i]))


def chosen(
    strategy: str,
    source: str,
    rollouts: list[list[float]],
    k: int,
    *,
    alpha: float,
    tau: float,
    seed: int,
    by_file: bool,
    by_length: bool = False,
) -> list[int]:
    """Which rollouts of a source a strategy keeps, in file order."""
    random = shuffled(source, len(rollouts), seed)
    order = list(range(len(rollouts))) if by_file else random
    if strategy == "bis":
        best = sorted(order, key=lambda i: -bis(rollouts[i], alpha, tau))
    elif strategy == "random":
        best = random
    elif strategy == "low-mc":
        best = sorted(order, key=lambda i: plain_sum(rollouts[i]) / len(rollouts[i]))
    elif strategy == "mixed":
        # mixed ones at random; when they are too few, others at random
        best = sorted(random, key=lambda i: len(set(labels(rollouts[i], tau))) == 1)
    elif strategy == "reliable":
        best = sorted(order, key=lambda i: -reliability(rollouts[i], tau))
    if not by_length:
        return sorted(best[:k])
    kept: list[int] = []
    for length in sorted({len(scores) for scores in rollouts}):
        n_until = sum(len(scores) <= length for scores in rollouts)
        share = Fraction(n_until * k, len(rollouts))  # of k, for this length and all below it; halves are rounded up
        kept += [i for i in best if len(rollouts[i]) == length][: floor(share + Fraction(1, 2)) - len(kept)]
    return sorted(kept)

"""The strategies: by what each ranks rollouts, from their label counts alone.

A strategy's rank is a number a rollout, the larger the better; rollouts of equal rank are in
random order, or in file order where the strategy leaves a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mprm.scores.label_counts import Rows

FloatArray = NDArray[np.float64]


def p_pos_of(rows: Rows) -> FloatArray:
    """Fraction of positive steps of each rollout, shape (N,)."""
    p_pos: FloatArray = rows["n_pos"] / rows["n_steps"]
    return p_pos


def R_of(rows: Rows) -> FloatArray:  # noqa: N802 - the paper's symbol
    """Mean score of each rollout's positive steps, 1 where there are none; shape (N,)."""
    R: FloatArray = np.divide(rows["sum_pos"], rows["n_pos"], out=np.ones(len(rows)), where=rows["n_pos"] > 0)
    return R


def mean_mc_of(rows: Rows) -> FloatArray:
    """Mean score of each rollout's steps, shape (N,)."""
    mean_mc: FloatArray = rows["sum_all"] / rows["n_steps"]
    return mean_mc


def is_mixed(rows: Rows) -> NDArray[np.bool_]:
    """Whether each rollout has positive and negative steps, shape (N,)."""
    mixed: NDArray[np.bool_] = (rows["n_pos"] > 0) & (rows["n_pos"] < rows["n_steps"])
    return mixed


def rank_bis(rows: Rows, *, alpha: float) -> FloatArray:
    """``(p_pos * (1 - p_pos) + alpha) * R``: mixed labels and reliable positives first."""
    p_pos = p_pos_of(rows)
    return (p_pos * (1 - p_pos) + alpha) * R_of(rows)


def rank_random(rows: Rows, *, alpha: float) -> FloatArray:  # noqa: ARG001 - one signature for all
    """All alike: the random order decides alone."""
    return np.zeros(len(rows))


def rank_low_mc(rows: Rows, *, alpha: float) -> FloatArray:  # noqa: ARG001
    """Lowest mean score first."""
    return -mean_mc_of(rows)


def rank_mixed(rows: Rows, *, alpha: float) -> FloatArray:  # noqa: ARG001
    """Mixed rollouts first, at random; then the others, at random."""
    return is_mixed(rows).astype(np.float64)


def rank_reliable(rows: Rows, *, alpha: float) -> FloatArray:  # noqa: ARG001
    """Highest R first."""
    return R_of(rows)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to rank rollouts."""

    rank: Callable[..., FloatArray]
    is_random_within_rank: bool
    """Whether the paper draws at random among rollouts of equal rank; file order is then no choice."""
    summary: str


STRATEGIES: dict[str, Strategy] = {
    "bis": Strategy(rank_bis, False, "highest Balanced-Information Score"),
    "random": Strategy(rank_random, True, "at random"),
    "low-mc": Strategy(rank_low_mc, False, "lowest mean MC score"),
    "mixed": Strategy(rank_mixed, True, "mixed labels, filled up at random"),
    "reliable": Strategy(rank_reliable, False, "highest reliability R"),
}

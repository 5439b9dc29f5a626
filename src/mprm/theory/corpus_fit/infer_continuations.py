"""How many continuations lie behind scores whose file does not say: the grid that the scores lie on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mprm.errors import DataError
from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import IntArray

MOST = 64
"""Largest number that is tried: a finer grid fits any score of two decimals."""
TOLERANCE = 1e-6
"""How far a score may be from k/N; files write six digits or more."""
ENOUGH = 10
"""Scores between 0 and 1 that a source must have, to tell its grid: fewer may all lie on a coarser one by chance."""
REMEDY = "name the number of continuations (--continuations N; in Python: continuations=N)"


def grid(scores: FloatArray) -> int | None:
    """The smallest N for which every score is some k/N; None where no N up to `MOST` is.

    Examples
    --------
    >>> grid(np.array([0.25, 0.5, 1.0])), grid(np.array([0.3333333, 0.5])), grid(np.array([0.123]))
    (4, 6, None)
    """
    for N in range(1, MOST + 1):
        if np.all(np.abs(scores * N - np.round(scores * N)) <= TOLERANCE * N):
            return N
    return None


def infer_continuations(
    scores: FloatArray, counts: NDArray[np.int64], sources: Sequence[str], given: int | None = None
) -> IntArray:
    """The number of continuations of each source's steps, from their scores alone; shape (sources,).

    A source with few scores between 0 and 1 takes the grid of all sources together.

    Parameters
    ----------
    scores : shape (kinds,)
        The scores that steps without counts have.
    counts : shape (sources, kinds)
        How many steps have each; a source without any gets 0.
    given
        The number, where the user knows it; every score must lie on its grid.
    """
    is_inner = (scores > 0) & (scores < 1)
    has = counts > 0
    if given is not None:
        if off := _off_grid(scores[has.any(axis=0)], given):
            raise DataError(f"score {off[0]:g} is no k/{given}; the steps do not have {given} continuations each")
        return np.where(has.any(axis=1), given, 0)
    if has.any() and not has[:, is_inner].any():
        raise DataError(
            "all scores are 0 or 1 and no counts are given: hard labels do not tell how success rates vary."
            f" Use the corpus with its MC scores, or {REMEDY}"
        )
    pooled = grid(scores[has.any(axis=0)])
    found = np.zeros(len(sources), np.int64)
    for number, name in enumerate(sources):
        if not has[number].any():
            continue
        own = grid(scores[has[number]]) if counts[number, is_inner].sum() >= ENOUGH else pooled
        if own is None:
            some = ", ".join(f"{score:g}" for score in scores[has[number] & is_inner].tolist()[:3])
            raise DataError(
                f"the scores of {name} lie on no grid k/N with N up to {MOST} (there are {some}): they are no shares"
                f" of continuations, or were rounded; if they are shares, {REMEDY}"
            )
        found[number] = own
    return found


def _off_grid(scores: FloatArray, N: int) -> list[float]:
    return list(scores[np.abs(scores * N - np.round(scores * N)) > 0.5e-2 * N].tolist())

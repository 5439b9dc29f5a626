"""Rollouts of equal label counts as one cell: all that ranking can tell apart, and few of them.

Every strategy ranks by the numbers of steps and positive steps and by the sums of scores. Scores of
k out of 16 take few sums, so a corpus of half a million rollouts has some ten thousand cells. With
the cells of a source's rollouts in random order, which decides between equal ranks, a page can say
of any alpha, rho and strategy exactly what `mprm.select` keeps.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.scores.label_counts import LabelCounts, Rows
from mprm.scores.rank import STRATEGIES
from mprm.selection.keep_top import rows_in_random_order

IntArray = NDArray[np.int64]

MOST_CELLS = 200_000
"""More make a page too large to open with pleasure: nothing can be moved in it then."""
MOST_ORDERED = 1_000_000
"""Rollouts; above, the page holds no random order, and shows tied cells kept in proportion."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceCells:
    """The cells of one source."""

    name: str
    rows: Rows
    """One rollout of each cell, C of them: all of a cell have its numbers of steps and its sums."""
    n_rollouts: IntArray
    """Shape (C,): rollouts of each cell."""
    order: IntArray
    """Shape (N,): the cell of each rollout, in random order."""
    numbers: IntArray
    """Shape (N,): the row of each rollout among the corpus's, in the same order."""

    def ranked(self, strategy: str, *, alpha: float) -> IntArray:
        """Shape (N,): places in `order`, the best rollout first."""
        rank = STRATEGIES[strategy].rank(self.rows, alpha=alpha)
        places: IntArray = np.argsort(-rank[self.order], kind="stable")
        return places

    def n_kept(self, strategy: str, *, alpha: float, n_keep: int) -> IntArray:
        """Shape (C,): rollouts of each cell that are kept."""
        kept = self.order[self.ranked(strategy, alpha=alpha)[:n_keep]]
        return np.bincount(kept, minlength=len(self.rows)).astype(np.int64)


def cells_of(counts: LabelCounts, source: int, *, seed: int) -> SourceCells:
    """The cells of a source, and its rollouts in the random order of the seed."""
    numbers = rows_in_random_order(counts, source, seed=seed)
    rows = counts.rows[numbers]
    keys = [rows[name] for name in ("sum_all", "sum_pos", "n_pos", "n_steps")]
    by_key = np.lexsort(keys)
    is_first = np.zeros(len(rows), np.bool_)
    is_first[:1] = True
    for key in keys:
        is_first[1:] |= key[by_key][1:] != key[by_key][:-1]
    order = np.empty(len(rows), np.int64)
    order[by_key] = np.cumsum(is_first) - 1
    return SourceCells(
        name=counts.sources[source],
        rows=rows[by_key[is_first]],
        n_rollouts=np.bincount(order, minlength=int(is_first.sum())).astype(np.int64),
        order=order,
        numbers=numbers,
    )


def why_not_live(sources: Sequence[SourceCells]) -> str | None:
    """Why a page cannot recompute the selection; None where it can."""
    n_cells = sum(len(cells.rows) for cells in sources)
    if n_cells <= MOST_CELLS:
        return None
    return (
        f"The scores of this corpus take so many values ({n_cells:,} different label counts; {MOST_CELLS:,} at most)"
        " that the page would grow too large: the figures show one selection, and nothing can be moved."
    )


def packed_cells(sources: Sequence[SourceCells]) -> dict[str, Any]:
    """The cells of all sources for a page: columns of numbers, compressed, as text."""
    columns = {
        "n_steps": np.concatenate([cells.rows["n_steps"] for cells in sources]),
        "n_pos": np.concatenate([cells.rows["n_pos"] for cells in sources]),
        "sum_pos": np.concatenate([cells.rows["sum_pos"] for cells in sources]),
        "sum_all": np.concatenate([cells.rows["sum_all"] for cells in sources]),
        "n_rollouts": np.concatenate([cells.n_rollouts for cells in sources]).astype(np.uint32),
    }
    is_ordered = sum(len(cells.order) for cells in sources) <= MOST_ORDERED
    order = np.concatenate([cells.order for cells in sources]).astype(np.uint32) if is_ordered else None
    return {
        "n_cells": [len(cells.rows) for cells in sources],
        "columns": {name: _packed(column) for name, column in columns.items()},
        "order": None if order is None else _packed(order),
    }


def _packed(numbers: NDArray[Any]) -> str:
    """The numbers, little-endian and byte by byte of equal weight, deflated, in base64."""
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    # all first bytes, then all second ones: the zeros and exponents stand together and shrink to nothing
    planes = little.view(np.uint8).reshape(-1, little.dtype.itemsize).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 9)).decode("ascii")

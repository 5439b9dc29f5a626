"""How BIS, R and the mixture are spread, over all rollouts and over those that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mprm.report.label_cells import IntArray, SourceCells
from mprm.scores.rank import FloatArray, R_of, p_pos_of, rank_bis

Quantity = Literal["bis", "R", "mixture"]
TITLES: dict[Quantity, str] = {
    "bis": "Balanced-Information Score",
    "R": "reliability R(x)",
    "mixture": "mixture p_pos (1 − p_pos)",
}
N_BINS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Numbers of rollouts in bins of equal width that begin at 0."""

    source: str | None
    """None for all sources together."""
    quantity: Quantity
    end: float
    """Where the last bin ends."""
    n_all: tuple[int, ...]
    n_kept: tuple[int, ...]

    @property
    def coverage(self) -> tuple[float | None, ...]:
        """Share of each bin's rollouts that is kept; None where there are none."""
        return tuple(kept / every if every else None for kept, every in zip(self.n_kept, self.n_all, strict=True))


def values_of(cells: SourceCells, quantity: Quantity, *, alpha: float) -> FloatArray:
    """The quantity of each cell, shape (C,)."""
    if quantity == "bis":
        return rank_bis(cells.rows, alpha=alpha)
    if quantity == "R":
        return R_of(cells.rows)
    p_pos = p_pos_of(cells.rows)
    mixture: FloatArray = p_pos * (1 - p_pos)
    return mixture


def end_of(quantity: Quantity, *, alpha: float) -> float:
    """The largest value that the quantity can take."""
    return {"bis": 0.25 + alpha, "R": 1.0, "mixture": 0.25}[quantity]


def histograms(sources: Sequence[SourceCells], kept: Sequence[IntArray], *, alpha: float) -> list[Histogram]:
    """For each quantity, the histogram of all sources together and that of each.

    Parameters
    ----------
    kept
        For each source, how many of each cell's rollouts are kept.
    """
    found = []
    for quantity in TITLES:
        end = end_of(quantity, alpha=alpha)
        counts = []
        for cells, n_kept in zip(sources, kept, strict=True):
            places = np.minimum(
                (values_of(cells, quantity, alpha=alpha) / (end / N_BINS)).astype(np.int64), N_BINS - 1
            )
            counts.append([np.bincount(places, weights, N_BINS) for weights in (cells.n_rollouts, n_kept)])
        table = np.array(counts).astype(np.int64)
        names: list[str | None] = [None, *(cells.name for cells in sources)]
        for name, (n_all, n_kept) in zip(names, [table.sum(0), *table], strict=True):
            found.append(
                Histogram(
                    source=name,
                    quantity=quantity,
                    end=end,
                    n_all=tuple(n_all.tolist()),
                    n_kept=tuple(n_kept.tolist()),
                )
            )
    return found

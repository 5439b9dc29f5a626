"""Which rollouts a strategy keeps: the best of each source, ties decided by random or file order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from mprm.scores.label_counts import BLANK, BLOCK_ROWS, ROLLOUT, LabelCounts, Rows, taken
from mprm.scores.random_order import random_order
from mprm.scores.rank import STRATEGIES
from mprm.selection.config import Ties
from mprm.selection.nth_smallest import Keys, nth_smallest, sort_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How rollouts are put in order."""

    strategy: str
    alpha: float
    seed: int
    ties: Ties


class KeptRows:
    """Which rows are kept: one bit each."""

    def __init__(self, n_rows: int) -> None:
        self._bits = np.zeros(-(-n_rows // 8), np.uint8)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Keep these rows, given in order."""
        if not len(rows):
            return
        first, end = int(rows[0]) // 8, int(rows[-1]) // 8 + 1
        mask = np.unpackbits(self._bits[first:end])
        mask[rows - first * 8] = 1
        self._bits[first:end] = np.packbits(mask)

    def between(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of the rows from ``start`` to ``stop`` are kept."""
        first = start // 8
        mask = np.unpackbits(self._bits[first : -(-stop // 8)])
        return mask[start - first * 8 : stop - first * 8].view(np.bool_)


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rollouts of a group, ready to be ranked."""

    rows: NDArray[np.int64]
    """Their numbers."""
    rank: Keys
    """The smaller the better."""
    order: Callable[[], Keys]
    """Decides between equal ranks, the smaller the better; worked out only when needed."""


def keep_top(
    counts: LabelCounts, ranking: Ranking, n_keep: Callable[[str | None, int], int], *, pool: bool = False
) -> KeptRows:
    """Keep the best rollouts of each source, or of all sources together.

    Parameters
    ----------
    n_keep
        How many to keep, from the source (None when pooled) and its number of rollouts.
    pool
        Rank all sources together.
    """
    kept = KeptRows(len(counts.rows))
    for group in [None] if pool else range(len(counts.sources)):
        _keep_of_group(counts, ranking, n_keep, group, kept)
    return kept


def _keep_of_group(
    counts: LabelCounts,
    ranking: Ranking,
    n_keep: Callable[[str | None, int], int],
    group: int | None,
    kept: KeptRows,
) -> None:
    blocks = _GroupBlocks(counts, ranking, group)
    n = n_keep(None if group is None else counts.sources[group], blocks.n_rollouts)
    if n == 0:
        return
    cut, n_tied, n_of_tied = nth_smallest(lambda: blocks.each(lambda block: block.rank), n)
    cut_key = np.uint64(cut)
    last = np.uint64(0)
    if n_of_tied < n_tied:
        value, _, _ = nth_smallest(lambda: blocks.each(lambda block: block.order()[block.rank == cut_key]), n_of_tied)
        last = np.uint64(value)
    for block in blocks:
        good = block.rank < cut_key
        tied = block.rank == cut_key
        if n_of_tied < n_tied:
            tied &= block.order() <= last
        kept.add(block.rows[good | tied])


def rows_in_random_order(counts: LabelCounts, source: int, *, seed: int) -> NDArray[np.int64]:
    """The numbers of a source's rollouts in the order that decides between equal ranks."""
    ranking = Ranking(strategy="random", alpha=0.0, seed=seed, ties="hash")
    blocks = [(block.rows, block.order()) for block in _GroupBlocks(counts, ranking, source)]
    if not blocks:
        return np.empty(0, np.int64)
    rows, order = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    found: NDArray[np.int64] = rows[np.argsort(order, kind="stable")]
    return found


class _GroupBlocks:
    """The rollouts of a source, or of all, block by block; iterate as often as needed."""

    def __init__(self, counts: LabelCounts, ranking: Ranking, group: int | None) -> None:
        self._counts, self._ranking, self._group = counts, ranking, group
        self.n_rollouts = sum(int(self._is_member(rows).sum()) for _, rows in counts.blocks(group))
        # a source of one block is kept at hand, so that it is ranked once
        self._cached = list(self._made()) if self.n_rollouts <= BLOCK_ROWS else None

    def __iter__(self) -> Iterator[_Block]:
        return iter(self._cached) if self._cached is not None else self._made()

    def each(self, keys: Callable[[_Block], Keys]) -> list[Keys] | Iterator[Keys]:
        """Something of each block: a list where the blocks are at hand."""
        return list(map(keys, self._cached)) if self._cached is not None else map(keys, self._made())

    def _is_member(self, rows: Rows) -> NDArray[np.bool_]:
        members: NDArray[np.bool_] = rows["kind"] == ROLLOUT
        return members if self._group is None else members & (rows["source"] == self._group)

    def _made(self) -> Iterator[_Block]:
        strategy = STRATEGIES[self._ranking.strategy]
        by_file = self._ranking.ties == "file-order" and not strategy.is_random_within_rank
        n_before: dict[int, int] = {}
        for start, rows in self._counts.blocks(self._group):
            is_member = self._is_member(rows)
            members = np.flatnonzero(is_member)
            numbers = members + start
            rank = ~sort_key(strategy.rank(taken(rows, is_member), alpha=self._ranking.alpha))
            order: Callable[[], Keys]
            if by_file:
                order = partial(numbers.astype, np.uint64)
            else:
                order = cache(partial(self._random, rows, members, dict(n_before)))
            yield _Block(numbers, rank, order)
            _count_records(rows, n_before)

    def _random(self, rows: Rows, members: NDArray[np.intp], n_before: dict[int, int]) -> Keys:
        """The random order of a block's members, whose sources had ``n_before`` records in earlier blocks."""
        order = np.zeros(len(rows), np.uint64)
        is_record = rows["kind"] != BLANK
        for group in np.unique(rows["source"][members]).tolist():
            places = np.flatnonzero(is_record & (rows["source"] == group))
            index = np.arange(len(places), dtype=np.uint64) + np.uint64(n_before.get(group, 0))
            order[places] = random_order(self._ranking.seed, self._counts.sources[group], index)
        return order[members]


def _count_records(rows: Rows, n_seen: dict[int, int]) -> None:
    """Add up the records of each source: a rollout's number in its source counts the bad ones too."""
    numbers, n_records = np.unique(rows["source"][rows["kind"] != BLANK], return_counts=True)
    for number, n in zip(numbers.tolist(), n_records.tolist(), strict=True):
        n_seen[number] = n_seen.get(number, 0) + n

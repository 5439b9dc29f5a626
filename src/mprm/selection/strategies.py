"""What each strategy ranks rollouts by, the seeded order of ties, and the cut.

To add a strategy: write its rank function, larger is kept first, and an entry in `STRATEGIES` and in
`mprm.config.StrategyName`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mprm.config import StrategyName
from mprm.selection.scan import ROLLOUT
from mprm.selection.stats import BoolArray, FloatArray, LabelCounts, R_of, Rows, bis_of, is_mixed, mean_mc_of


def random_order(seed: int, source: str, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random number for each rollout, shape (N,); no two of one source are equal.

    The SplitMix64 stream that starts at a hash of (seed, source), at the positions ``index``: the same on every
    machine, in every shard order, on any number of cores.

    >>> random_order(0, "ai2d", np.arange(2, dtype=np.uint64)).tolist()
    [651717391976472452, 214633533871704631]
    """
    digest = blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    z = np.uint64(int.from_bytes(digest, "little")) + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


rank_bis = bis_of
"""Mixed labels and reliable positives first."""


def rank_random(rows: Rows, *, alpha: float) -> FloatArray:  # noqa: ARG001 - one signature for all
    """All equal: the random order decides alone."""
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
    """Whether the paper samples at random among rollouts of equal rank; file order is then no choice."""


STRATEGIES: dict[StrategyName, Strategy] = {
    "bis": Strategy(rank_bis, is_random_within_rank=False),
    "random": Strategy(rank_random, is_random_within_rank=True),
    "low-mc": Strategy(rank_low_mc, is_random_within_rank=False),
    "mixed": Strategy(rank_mixed, is_random_within_rank=True),
    "reliable": Strategy(rank_reliable, is_random_within_rank=False),
}


def tie_order(counts: LabelCounts, source: int, *, seed: int) -> NDArray[np.uint64]:
    """The random order of a source's rollouts; a rollout's position in its source counts bad records too."""
    records = counts.records[source]
    order = random_order(seed, counts.sources[source], np.arange(len(records), dtype=np.uint64))
    is_rollout: BoolArray = counts.rows["kind"][records] == ROLLOUT
    return order[is_rollout]


class Kept(NamedTuple):
    """What is kept of a corpus."""

    mask: BoolArray
    """Which rows."""
    n_by_ties: int | None
    """How many of them are of the rank of others that are left out; None where the strategy chooses at random."""


def keep_top(
    counts: LabelCounts,
    strategy: StrategyName,
    n_keep: Callable[[str | None, int], int],
    *,
    alpha: float,
    seed: int,
    by_file_order: bool = False,
    pool: bool = False,
    by_length: bool = False,
) -> Kept:
    """Which rows are kept: the best rollouts of each source, or with ``pool`` of all sources together.

    ``n_keep`` gives how many, from the source (None when pooled) and its number of rollouts. ``by_file_order`` keeps
    the first in the file among equal ranks, as the paper's code does, instead of a random choice. ``by_length`` ranks
    rollouts of equal length among themselves; every length gets its share (`length_strata`).
    """
    kept, n_by_ties = np.zeros(len(counts.rows), np.bool_), 0
    entry = STRATEGIES[strategy]
    numbers = range(len(counts.sources))
    for group in [tuple(numbers)] if pool else [(number,) for number in numbers]:
        members = np.concatenate([counts.rollouts[number] for number in group] or [np.empty(0, np.intp)])
        n = n_keep(None if pool else counts.sources[group[0]], len(members))
        if n == 0:
            continue
        rows = counts.taken(members)
        rank = entry.rank(rows, alpha=alpha)
        if by_file_order and not entry.is_random_within_rank:
            order = members.astype(np.uint64)
        else:
            order = np.concatenate([tie_order(counts, number, seed=seed) for number in group])
        for stratum, n_of_stratum in length_strata(rows["n_steps"], n) if by_length else [(slice(None), n)]:
            ranks = rank[stratum]
            chosen = best(ranks, order[stratum], n_of_stratum)
            kept[members[stratum][chosen]] = True
            last = ranks[chosen].min()
            n_last = int((ranks[chosen] == last).sum())
            n_by_ties += n_last if n_last < (ranks == last).sum() else 0
    return Kept(kept, None if entry.is_random_within_rank else n_by_ties)


def length_strata(n_steps: NDArray[Any], n: int) -> Iterator[tuple[NDArray[np.intp], int]]:
    """The rollouts of each length, and how many of them to keep: ``n`` in all, each length its share.

    Lengths are exact. Wider bins would be filled from their short end, which mixes labels best. Shares are rounded
    along the lengths, so that rare long rollouts together get theirs.

    >>> [(stratum.tolist(), n) for stratum, n in length_strata(np.array([2, 9, 2, 5, 2, 2]), 3)]
    [([0, 2, 4, 5], 2), ([3], 1)]
    """
    by_length = np.argsort(n_steps, kind="stable")
    cuts = np.flatnonzero(np.diff(n_steps[by_length])) + 1
    n_done = 0
    for stratum, end in zip(np.split(by_length, cuts), [*cuts.tolist(), len(n_steps)], strict=True):
        n_until = (2 * end * n + len(n_steps)) // (2 * len(n_steps))
        if n_until > n_done:
            yield stratum, n_until - n_done
        n_done = n_until


def best(rank: FloatArray, order: NDArray[np.uint64], n: int) -> NDArray[np.intp]:
    """Indices of the ``n`` with the largest rank; among equal ranks those with the smallest ``order``.

    >>> best(np.array([0.3, 0.1, 0.1, 0.2]), np.array([7, 9, 5, 1], np.uint64), 3).tolist()
    [0, 3, 2]
    """
    cut = np.partition(rank, len(rank) - n)[len(rank) - n]
    above, tied = np.flatnonzero(rank > cut), np.flatnonzero(rank == cut)
    n_tied = n - len(above)
    if n_tied < len(tied):
        tied = tied[np.argpartition(order[tied], n_tied - 1)[:n_tied]]
    return np.concatenate([above, tied])

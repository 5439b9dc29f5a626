"""A random order that is the same on every machine, in every shard order, on any number of cores.

The strategies: by what each ranks rollouts, from their label counts alone.

Which rollouts to keep: the options of a selection.

The n-th smallest of more numbers than fit in memory.

Which rollouts a strategy keeps: the best of each source, ties decided by random or file order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mprm.errors import ConfigError
from mprm.selection.scan import BLANK, BLOCK_ROWS, ROLLOUT, LabelCounts, Rows, taken

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def random_order(seed: int, source: str, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random number for each rollout, shape (N,); no two of one source are equal.

    The SplitMix64 stream that begins at a hash of (seed, source), at the places ``index``.

    Examples
    --------
    >>> random_order(0, "ai2d", np.arange(2, dtype=np.uint64)).tolist()
    [651717391976472452, 214633533871704631]
    """
    digest = blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    z = start + (index + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


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


StrategyName = Literal["bis", "random", "low-mc", "mixed", "reliable"]
"""The strategies; `mprm.selection.strategies.STRATEGIES` says how each ranks."""
DEFAULT_RHO = 0.10
Ties = Literal["hash", "file-order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectConfig:
    """Which rollouts to keep."""

    strategy: tuple[StrategyName, ...] = ("bis",)
    """How to rank rollouts; several give several subsets from one scan."""
    rho: tuple[float, ...] = ()
    """Fraction kept from each source, in (0, 1]; several give several subsets. A tenth by default."""
    keep: int | None = None
    """Number kept from each source, instead of a fraction."""
    source_rho: Mapping[str, float] = field(default_factory=dict)
    """Fraction for single sources, by name."""
    alpha: float = 0.05
    """BIS smoothing; larger lets in more single-label rollouts."""
    tau: float = 0.0
    """A step is positive when its score is strictly above it."""
    seed: int = 0
    """Seed of the random order."""
    ties: Ties = "hash"
    """Rollouts of equal rank: in seeded random order, or in file order as the paper's code."""
    pool: bool = False
    """Rank all sources together instead of each by itself."""

    def __post_init__(self) -> None:
        for name in self.strategy:
            if name not in get_args(StrategyName):
                raise ConfigError(f"unknown strategy {name!r}; expected one of {', '.join(get_args(StrategyName))}")
        for what, rho in [("rho", rho) for rho in self.rho] + [
            (f"rho of {s}", r) for s, r in self.source_rho.items()
        ]:
            if not 0 < rho <= 1:
                raise ConfigError(f"{what} must be in (0, 1], got {rho}")
        if not self.strategy:
            raise ConfigError("name at least one strategy")
        if self.keep is not None and (self.rho or self.source_rho):
            raise ConfigError("keep and rho both say how many to keep; name one of them")
        if len(set(self.strategy)) < len(self.strategy) or len(set(self.rho)) < len(self.rho):
            raise ConfigError("a strategy or rho is named twice")
        if self.ties not in get_args(Ties):
            raise ConfigError(f"unknown ties {self.ties!r}; expected one of {', '.join(get_args(Ties))}")
        if not isinstance(self.seed, int):
            raise ConfigError(f"seed must be a whole number, got {self.seed!r}")
        if self.keep is not None and self.keep < 1:
            raise ConfigError(f"keep must be at least 1, got {self.keep}")
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha must be 0 or more, got {self.alpha}")
        if not 0 <= self.tau < 1:
            raise ConfigError(f"tau must be in [0, 1), got {self.tau}")
        if self.pool and self.source_rho:
            raise ConfigError("source_rho has no meaning when sources are pooled")

    @property
    def sizes(self) -> tuple[float | None, ...]:
        """The fractions to keep; one None where a number is kept instead."""
        return (None,) if self.keep is not None else self.rho or (DEFAULT_RHO,)

    def n_keep(self, rho: float | None, source: str | None, n_rollouts: int) -> int:
        """How many of a source's rollouts to keep: ``max(1, int(n * rho))``, and none of none."""
        if n_rollouts == 0:
            return 0
        share = self.source_rho.get(source, rho) if source is not None else rho
        if share is None:
            assert self.keep is not None
            return min(self.keep, n_rollouts)
        return max(1, int(n_rollouts * share))


Keys = NDArray[np.uint64]
_SIGN = np.uint64(1 << 63)


def sort_key(values: NDArray[np.float64]) -> Keys:
    """Integers that sort as the floats do, shape (N,).

    Examples
    --------
    >>> keys = sort_key(np.array([-1.0, 0.0, 0.5]))
    >>> bool(keys[0] < keys[1] < keys[2])
    True
    """
    bits = (values + 0.0).view(np.uint64)  # + 0.0 makes one zero of the two
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def nth_smallest(blocks: Callable[[], Sequence[Keys] | Iterator[Keys]], n: int) -> tuple[int, int, int]:
    """(the n-th smallest key, how many equal keys there are, how many of them are among the n smallest).

    Four passes, each counting the keys by 16 of their bits: memory does not grow with their number.
    Keys that are at hand in one block are partitioned instead.

    Parameters
    ----------
    blocks
        Gives all keys, some at a time, the same at every call: a list, or an iterator where they are many.
    n
        From 1 to the number of keys.

    Examples
    --------
    >>> nth_smallest(lambda: [np.array([5, 7], np.uint64), np.array([7, 7, 9], np.uint64)], 3)
    (7, 3, 2)
    """
    keys = blocks()
    if isinstance(keys, Sequence) and len(keys) == 1:
        return _nth_of_one(keys[0], n)
    value, n_equal = 0, 0
    for shift in (48, 32, 16, 0):
        histogram = np.zeros(1 << 16, np.int64)
        for block in blocks():
            wanted = block if shift == 48 else block[block >> np.uint64(shift + 16) == np.uint64(value)]
            digits = (wanted >> np.uint64(shift)) & np.uint64(0xFFFF)
            histogram += np.bincount(digits.astype(np.int64), minlength=1 << 16)
        up_to = np.cumsum(histogram)
        digit = int(np.searchsorted(up_to, n))
        n -= int(up_to[digit - 1]) if digit else 0
        value, n_equal = value << 16 | digit, int(histogram[digit])
    return value, n_equal, n


def _nth_of_one(keys: Keys, n: int) -> tuple[int, int, int]:
    value = np.partition(keys, n - 1)[n - 1]
    return int(value), int((keys == value).sum()), n - int((keys < value).sum())


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

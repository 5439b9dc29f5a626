"""From label counts to what is kept: the counts of a corpus as arrays, what each strategy ranks rollouts by, the cut.

To add a strategy: write its rank function, larger is kept first, and an entry in `STRATEGIES` and in
`mprm.config.StrategyName`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.config import StrategyName
from mprm.data.corpus import Corpus, drop_or_raise
from mprm.data.engine import Engine
from mprm.data.output import Dropped
from mprm.data.records import Chunk
from mprm.progress import Progress, silent
from mprm.selection.scan import BLANK, ROLLOUT, ROW, Counted, start_counting

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Rows = NDArray[np.void]
ROW_TYPE = np.dtype(
    [(name, np.uint32) for name in ("n_steps", "n_pos", "n_words", "n_unsampled", "source", "kind", "n_mc", "unused")]
    + [("sum_pos", np.float64), ("sum_all", np.float64), ("n_bytes", np.uint64)]
)
"""`ROW` as numpy reads it."""
assert ROW_TYPE.itemsize == ROW.size


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one chunk."""

    chunk: Chunk
    first_row: int
    n_rows: int
    first_line: int
    """Line number, from 1, of the chunk's first line in its file."""


@dataclass(frozen=True)
class LabelCounts:
    """One row a line of the corpus, in canonical order."""

    rows: Rows
    parts: list[Part]
    sources: list[str]

    @cached_property
    def records(self) -> list[NDArray[np.intp]]:
        """Indices of the rows of each source, bad records included, blank lines left out; in canonical order."""
        is_record = np.flatnonzero(self.rows["kind"] != BLANK)
        numbers = self.rows["source"][is_record]
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(1, len(self.sources)))
        return np.split(is_record[order], ends)

    def rollouts(self, source: int) -> NDArray[np.intp]:
        """Indices of the rows of a source's usable rollouts."""
        records = self.records[source]
        is_rollout: BoolArray = self.rows["kind"][records] == ROLLOUT
        return records[is_rollout]

    @property
    def n_rollouts(self) -> dict[str, int]:
        """Usable rollouts of each source."""
        return {name: len(self.rollouts(number)) for number, name in enumerate(self.sources)}


def count_corpus(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float = 0.0,
    on_bad: Callable[[Dropped], Any] | None = None,
    progress: Progress = silent,
) -> LabelCounts:
    """Read the corpus once and count the labels of every rollout.

    Parameters
    ----------
    tau
        A step is positive when its score is strictly above it.
    on_bad
        Called with each bad record; None stops at the first one with a `DataError`.
    """
    counting = start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None)
    return gather_counts(corpus, counting, on_bad=on_bad, progress=progress)


def gather_counts(
    corpus: Corpus, counting: Iterator[Counted], *, on_bad: Callable[[Dropped], Any] | None, progress: Progress
) -> LabelCounts:
    """The label counts of all chunks together; see `count_corpus`."""
    buffer, parts = bytearray(), []
    numbers: dict[str, int] = {}
    path, line = "", 1
    with progress("reading", corpus.n_bytes, "bytes") as advance:
        for chunk, counted in zip(corpus.chunks, counting, strict=True):
            if chunk.path != path:
                path, line = chunk.path, 1
            for bad in counted.bad:
                drop_or_raise(Dropped(path, line + bad.index, bad.source, bad.kind, bad.text, bad.line), on_bad)
            renumber = [numbers.setdefault(name, len(numbers)) for name in counted.sources]
            if renumber != list(range(len(renumber))):
                rows = np.frombuffer(counted.rows, ROW_TYPE)
                rows["source"] = np.array(renumber, np.uint32)[rows["source"]]
            n_rows = len(counted.rows) // ROW.size
            parts.append(Part(chunk, len(buffer) // ROW.size, n_rows, line))
            buffer += counted.rows
            line += n_rows
            advance(chunk.n_bytes)
    return LabelCounts(np.frombuffer(buffer, ROW_TYPE), parts, list(numbers))


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


def is_mixed(rows: Rows) -> BoolArray:
    """Whether each rollout has positive and negative steps, shape (N,)."""
    mixed: BoolArray = (rows["n_pos"] > 0) & (rows["n_pos"] < rows["n_steps"])
    return mixed


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function of each state."""
    z = (state ^ (state >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def random_order(seed: int, source: str, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random number for each rollout, shape (N,); no two of one source are equal.

    The SplitMix64 stream that starts at a hash of (seed, source), at the positions ``index``: the same on every
    machine, in every shard order, on any number of cores.

    Examples
    --------
    >>> random_order(0, "ai2d", np.arange(2, dtype=np.uint64)).tolist()
    [651717391976472452, 214633533871704631]
    """
    digest = blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    return splitmix64(start + (index + np.uint64(1)) * _GOLDEN)


def rank_bis(rows: Rows, *, alpha: float) -> FloatArray:
    """``(p_pos * (1 - p_pos) + alpha) * R``: mixed labels and reliable positives first."""
    p_pos = p_pos_of(rows)
    return (p_pos * (1 - p_pos) + alpha) * R_of(rows)


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


def keep_top(
    counts: LabelCounts,
    strategy: StrategyName,
    n_keep: Callable[[str | None, int], int],
    *,
    alpha: float,
    seed: int,
    by_file_order: bool = False,
    pool: bool = False,
) -> BoolArray:
    """Which rows are kept: the best rollouts of each source, or of all sources together.

    Parameters
    ----------
    n_keep
        How many to keep, from the source (None when pooled) and its number of rollouts.
    by_file_order
        Among equal ranks the first in the file are kept, as the paper's code does, instead of a random choice.
    pool
        Rank all sources together.
    """
    kept = np.zeros(len(counts.rows), np.bool_)
    entry = STRATEGIES[strategy]
    numbers = range(len(counts.sources))
    for group in [tuple(numbers)] if pool else [(number,) for number in numbers]:
        members = np.concatenate([counts.rollouts(number) for number in group] or [np.empty(0, np.intp)])
        n = n_keep(None if pool else counts.sources[group[0]], len(members))
        if n == 0:
            continue
        rank = entry.rank(counts.rows[members], alpha=alpha)
        if by_file_order and not entry.is_random_within_rank:
            order = members.astype(np.uint64)
        else:
            order = np.concatenate([tie_order(counts, number, seed=seed) for number in group])
        kept[members[best(rank, order, n)]] = True
    return kept


def best(rank: FloatArray, order: NDArray[np.uint64], n: int) -> NDArray[np.intp]:
    """Indices of the ``n`` with the largest rank; among equal ranks those with the smallest ``order``.

    Examples
    --------
    >>> best(np.array([0.3, 0.1, 0.1, 0.2]), np.array([7, 9, 5, 1], np.uint64), 3).tolist()
    [0, 3, 2]
    """
    cut = np.partition(rank, len(rank) - n)[len(rank) - n]
    above, tied = np.flatnonzero(rank > cut), np.flatnonzero(rank == cut)
    n_tied = n - len(above)
    if n_tied < len(tied):
        tied = tied[np.argpartition(order[tied], n_tied - 1)[:n_tied]]
    return np.concatenate([above, tied])

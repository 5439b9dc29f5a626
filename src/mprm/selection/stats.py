"""The columns of the paper's statistics tables, for any set of rollouts.

The columns of the statistics tables: heads, and how a row fills them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.data.corpus import open_corpus
from mprm.data.engine import EngineName, make_engine
from mprm.data.output import DroppedRecords
from mprm.data.records import Chunk
from mprm.selection.scan import ROLLOUT, LabelCounts, Rows, count_corpus, taken
from mprm.selection.strategies import is_mixed, rank_bis


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Sums over rollouts, and the averages that the paper's tables show."""

    n_rollouts: int = 0
    n_steps: int = 0
    n_words: int = 0
    n_pos: int = 0
    sum_mc: float = 0.0
    n_mixed: int = 0
    n_tied: int = 0
    """Rollouts whose BIS is exactly alpha: all labels alike, and full reliability."""
    n_unsampled: int = 0
    """Steps that were never sampled."""
    n_mc: int = 0
    """Most continuations that were sampled for a step, the paper's N; 0 where the files do not say."""

    @property
    def steps_per_rollout(self) -> float:
        """Average number of steps a rollout."""
        return _ratio(self.n_steps, self.n_rollouts)

    @property
    def words_per_step(self) -> float:
        """Average number of words a step, split at white space."""
        return _ratio(self.n_words, self.n_steps)

    @property
    def error_step_ratio(self) -> float:
        """Share of steps with a negative label."""
        return _ratio(self.n_steps - self.n_pos, self.n_steps)

    @property
    def mean_mc(self) -> float:
        """Average MC score a step."""
        return _ratio(self.sum_mc, self.n_steps)

    @property
    def mean_out_of_n(self) -> float | None:
        """Average number of continuations that succeed, out of N; None where N is unknown."""
        return self.mean_mc * self.n_mc if self.n_mc else None

    @property
    def mixed_share(self) -> float:
        """Share of rollouts with positive and negative steps."""
        return _ratio(self.n_mixed, self.n_rollouts)

    @property
    def tied_share(self) -> float:
        """Share of rollouts whose BIS is exactly alpha, so that ties decide about them."""
        return _ratio(self.n_tied, self.n_rollouts)

    def __add__(self, other: Statistics) -> Statistics:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Statistics(**{**sums, "n_mc": max(self.n_mc, other.n_mc)})

    def as_dict(self) -> dict[str, Any]:
        """All sums and averages, by name."""
        averages = ("steps_per_rollout", "words_per_step", "error_step_ratio", "mean_mc", "mean_out_of_n")
        names = [f.name for f in fields(self)] + [*averages, "mixed_share", "tied_share"]
        return {name: getattr(self, name) for name in names}


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def statistics_of(rows: Rows, *, alpha: float) -> Statistics:
    """The statistics of some rollouts."""
    if not len(rows):
        return Statistics()
    return Statistics(
        n_rollouts=len(rows),
        n_steps=int(rows["n_steps"].sum(dtype=np.int64)),
        n_words=int(rows["n_words"].sum(dtype=np.int64)),
        n_pos=int(rows["n_pos"].sum(dtype=np.int64)),
        sum_mc=float(rows["sum_all"].sum()),
        n_mixed=int(is_mixed(rows).sum()),
        n_tied=int((rank_bis(rows, alpha=alpha) == alpha).sum()),
        n_unsampled=int(rows["n_unsampled"].sum(dtype=np.int64)),
        n_mc=int(rows["n_mc"].max()),
    )


def statistics_by_source(
    counts: LabelCounts, *, alpha: float, is_kept: Callable[[int, int], NDArray[np.bool_]] | None = None
) -> dict[str, Statistics]:
    """Statistics of each source's rollouts, or of those that are kept.

    Parameters
    ----------
    is_kept
        Which of the rows from a first to an end are kept; all when None.
    """
    found = dict.fromkeys(counts.sources, Statistics())
    for number, name in enumerate(counts.sources):
        for start, rows in counts.blocks(number):
            mask = (rows["kind"] == ROLLOUT) & (rows["source"] == number)
            if is_kept is not None:
                mask &= is_kept(start, start + len(rows))
            found[name] += statistics_of(taken(rows, mask), alpha=alpha)
    return found


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of a corpus."""

    sources: dict[str, Statistics]
    """Of each source."""
    total: Statistics
    """Of all together."""
    n_dropped: int
    """Bad records that were left out."""


def total(statistics: dict[str, Statistics]) -> Statistics:
    """The sum over sources."""
    return sum(statistics.values(), Statistics())


def stats(
    paths: Any,
    *,
    alpha: float = 0.05,
    tau: float = 0.0,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> CorpusStatistics:
    """Statistics of a corpus: of each source, and of all together.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    alpha
        Smoothing of BIS, for the share of tied rollouts.
    tau
        A step is positive when its score is strictly above it.
    skip_bad
        Leave bad records out instead of stopping at the first.

    Examples
    --------
    >>> stats([{"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}]).total.error_step_ratio
    0.5
    """
    corpus = open_corpus(paths, format=format, text_only=text_only)
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    dropped = DroppedRecords()
    counts = count_corpus(corpus, worker, tau=tau, on_bad=dropped if skip_bad else None, on_chunk=on_chunk)
    found = statistics_by_source(counts, alpha=alpha)
    return CorpusStatistics(found, total(found), len(dropped))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head and how a row fills it."""

    head: str
    attribute: str
    form: str = "{:,}"

    def cell(self, statistics: Statistics) -> str:
        """The text of one cell."""
        value = getattr(statistics, self.attribute)
        return "–" if value is None else self.form.format(value)


STATISTICS = (
    Column("rollouts", "n_rollouts"),
    Column("steps", "n_steps"),
    Column("steps/rollout", "steps_per_rollout", "{:.2f}"),
    Column("words/step", "words_per_step", "{:.1f}"),
    Column("error steps", "error_step_ratio", "{:.2%}"),
    Column("avg MC", "mean_mc", "{:.4f}"),
    Column("avg out of N", "mean_out_of_n", "{:.4f}"),
    Column("mixed", "mixed_share", "{:.2%}"),
    Column("tied at α", "tied_share", "{:.2%}"),
    Column("never sampled", "n_unsampled"),
)

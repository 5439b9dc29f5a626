"""The label counts of a corpus, as numpy reads them, and what follows from them for each rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

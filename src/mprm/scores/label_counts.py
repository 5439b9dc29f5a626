"""The label counts of a whole corpus, on disk: all that ranking, selecting and statistics need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.engines.engine import Engine
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.corpus import Corpus, bad_record
from mprm.rollouts.dropped import Dropped
from mprm.rollouts.temporary import temporary_file
from mprm.scores.count_labels import BadLine, Counted, start_counting
from mprm.scores.count_rows import BAD, BLANK, ROLLOUT, ROW

Rows = NDArray[np.void]
ROW_TYPE = np.dtype(
    [(name, np.uint32) for name in ("n_steps", "n_pos", "n_words", "n_unsampled", "source", "kind", "n_mc", "unused")]
    + [("sum_pos", np.float64), ("sum_all", np.float64), ("n_bytes", np.uint64)]
)
"""`count_rows.ROW` as numpy reads it."""
assert ROW_TYPE.itemsize == ROW.size

BLOCK_ROWS = 1 << 18
"""Rows looked at together: bounds memory, whatever the corpus's size."""


def taken(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows that the mask takes; the rows themselves where it takes all, as most often it does."""
    return rows if mask.all() else rows[mask]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one chunk."""

    chunk: Chunk
    first_row: int
    n_rows: int
    first_line: int
    """Line number, from 1, of the chunk's first line in its file."""


class LabelCounts:
    """One row a line of the corpus, in canonical order; owns the temporary file they lie in."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.sources: list[str] = []
        self.spans: dict[int, tuple[int, int]] = {}
        """First row and end of the rows among which each source's lie, by the source's number."""
        self._file = temporary_file(self)
        self._n_rows = 0
        self._rows: Rows | None = None

    def add(self, chunk: Chunk, rows: Rows, first_line: int, sources: list[int]) -> None:
        """Append a chunk's rows, which are of these sources."""
        self._file.write(rows.tobytes())
        self.parts.append(Part(chunk, self._n_rows, len(rows), first_line))
        for number in sources:
            places = np.flatnonzero(rows["source"] == number) if len(sources) > 1 else np.arange(len(rows))
            if len(places):
                first, _ = self.spans.get(number, (self._n_rows + int(places[0]), 0))
                self.spans[number] = (first, self._n_rows + int(places[-1]) + 1)
        self._n_rows += len(rows)
        self._rows = None

    @property
    def rows(self) -> Rows:
        """All rows; they stay on disk and are read where they are looked at."""
        if self._rows is None:
            self._file.flush()
            if self._n_rows:
                self._rows = np.asarray(np.memmap(self._file, ROW_TYPE, "r", shape=(self._n_rows,)))
            else:
                self._rows = np.empty(0, ROW_TYPE)
        return self._rows

    def blocks(self, source: int | None = None) -> Iterator[tuple[int, Rows]]:
        """(number of the first row, rows), some at a time: all rows, or those among which a source's lie."""
        first, end = (0, self._n_rows) if source is None else self.spans.get(source, (0, 0))
        for start in range(first, end, BLOCK_ROWS):
            yield start, self.rows[start : min(start + BLOCK_ROWS, end)]

    def n_lines(self, kind: int) -> dict[str, int]:
        """How many lines of that kind each source has."""
        counts = np.zeros(len(self.sources), np.int64)
        for _, rows in self.blocks():
            counts += np.bincount(rows["source"][rows["kind"] == kind], minlength=len(self.sources))
        return dict(zip(self.sources, counts.tolist(), strict=True))


def count_corpus(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float = 0.0,
    on_bad: Callable[[Dropped], Any] | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> LabelCounts:
    """Read the corpus once and count the labels of every rollout.

    Parameters
    ----------
    tau
        A step is positive when its score is strictly above it.
    on_bad
        Called with each bad record; None stops at the first one with a `DataError`.
    on_chunk
        Called after each chunk, for progress.
    """
    counting = start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None)
    return gather_counts(corpus, counting, on_bad=on_bad, on_chunk=on_chunk)


def gather_counts(
    corpus: Corpus,
    counting: Iterator[Counted],
    *,
    on_bad: Callable[[Dropped], Any] | None,
    on_chunk: Callable[[Chunk], Any] | None,
) -> LabelCounts:
    """Put the label counts of all chunks together as they come; see `count_corpus`."""
    counts = LabelCounts()
    numbers: dict[str, int] = {}
    path, line = "", 1
    for chunk, counted in zip(corpus.chunks, counting, strict=True):
        if chunk.path != path:
            path, line = chunk.path, 1
        for bad in counted.bad:
            _drop(chunk, line, bad, on_bad)
        rows = np.frombuffer(counted.rows, ROW_TYPE)
        renumber = [numbers.setdefault(name, len(numbers)) for name in counted.sources]
        if renumber != list(range(len(renumber))):
            rows = rows.copy()
            rows["source"] = np.array(renumber, np.uint32)[rows["source"]]
        counts.add(chunk, rows, line, renumber)
        line += len(rows)
        if on_chunk is not None:
            on_chunk(chunk)
    counts.sources = list(numbers)
    return counts


def _drop(chunk: Chunk, first_line: int, bad: BadLine, on_bad: Callable[[Dropped], Any] | None) -> None:
    line = first_line + bad.number
    if on_bad is None:
        raise bad_record(chunk.path, line, bad.kind, bad.text)
    on_bad(Dropped(chunk.path, line, bad.source, bad.kind, bad.text, bad.line))


__all__ = [
    "BAD",
    "BLANK",
    "BLOCK_ROWS",
    "ROLLOUT",
    "ROW_TYPE",
    "LabelCounts",
    "Part",
    "Rows",
    "count_corpus",
    "gather_counts",
    "taken",
]

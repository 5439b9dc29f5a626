"""Writing a subset: the kept lines, in canonical order, whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from mprm.data.convert import Converted, ConvertTask, Target, check_still_good, convert_lines, open_sink, unpack_spans
from mprm.data.engine import Engine
from mprm.data.records import Chunk, mapped
from mprm.errors import DataError
from mprm.progress import Advance
from mprm.selection.label_counts import BoolArray, LabelCounts, Part, Rows

RUNS_AT_ONCE = 64
"""Runs handed to the system in one call; it takes 1,024."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """What to copy where."""

    chunk: Chunk
    spans: bytes
    """The runs of lines, as `unpack_spans` reads them."""
    out: str
    offset: int
    """Position in ``out`` of the first run; the others follow it."""


def copy_spans(task: CopyTask) -> None:
    """Copy the runs; doing it twice changes nothing.

    A last line without a line end gets none here: the writer leaves room for one.
    """
    with mapped(task.chunk) as data, io.FileIO(task.out, "r+") as out:
        out.seek(task.offset)
        runs = unpack_spans(task.spans)
        with memoryview(data) as view:
            while views := [view[start:end] for start, end in islice(runs, RUNS_AT_ONCE)]:
                try:
                    _write_all(out, views)
                finally:
                    for run in views:
                        run.release()  # a full disk must not be hidden by a view that is still held


def _write_all(out: io.FileIO, views: list[memoryview]) -> None:
    """Write all of the views, straight from the mapped file where the system can."""
    n_bytes = sum(map(len, views))
    n_written = os.writev(out.fileno(), views) if hasattr(os, "writev") else 0
    if n_written < n_bytes:
        rest = memoryview(b"".join(views))[n_written:]
        while rest:
            rest = rest[out.write(rest) or 0 :]


@dataclass(frozen=True, slots=True)
class Piece:
    """The kept lines of one chunk; which they are is worked out when they are written."""

    part: Part
    source: str
    file_offset: int
    """Bytes of the file before the chunk's first line."""
    n_bytes: int
    n_kept: int
    needs_line_end: bool
    """Whether the last kept line is the file's last and has no line end."""


class Pieces:
    """The kept lines of each chunk that has any; of one source, or of all."""

    def __init__(self, counts: LabelCounts, kept: BoolArray, source: str | None = None) -> None:
        self._counts, self._kept = counts, kept
        self._source = None if source is None else counts.sources.index(source)
        self._pieces = list(self._make())

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    @property
    def are_ranges(self) -> bool:
        """Whether every piece can be copied without reading lines."""
        return all(piece.part.chunk.is_range for piece in self)

    def _rows(self, part: Part) -> tuple[Rows, BoolArray]:
        where = slice(part.first_row, part.first_row + part.n_rows)
        rows, mask = self._counts.rows[where], self._kept[where]
        return rows, mask if self._source is None else mask & (rows["source"] == self._source)

    def _make(self) -> Iterator[Piece]:
        path, offset = "", 0
        for part in self._counts.parts:
            if part.chunk.path != path:
                path, offset = part.chunk.path, 0
            rows, mask = self._rows(part)
            n_bytes = int(rows["n_bytes"].sum())
            if mask.any():
                has_last = part.chunk.is_range and bool(mask[-1])
                needs_line_end = has_last and offset + n_bytes == Path(path).stat().st_size and not _ends_line(path)
                n_kept_bytes = int(rows["n_bytes"][mask].sum()) + needs_line_end
                name = part.chunk.source if self._source is None else self._counts.sources[self._source]
                yield Piece(part, name, offset, n_kept_bytes, int(mask.sum()), needs_line_end)
            offset += n_bytes

    def spans(self, piece: Piece) -> bytes:
        """The runs of bytes to copy from a plain local file: neighbouring lines are one run."""
        rows, mask = self._rows(piece.part)
        ends = piece.file_offset + np.cumsum(rows["n_bytes"], dtype=np.int64)
        starts = (ends - rows["n_bytes"].astype(np.int64))[mask]
        ends = ends[mask]
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        runs = np.empty((len(breaks) + 1, 2), np.int64)
        runs[:, 0] = starts[np.concatenate([[0], breaks + 1])]
        runs[:, 1] = ends[np.concatenate([breaks, [len(ends) - 1]])]
        return runs.tobytes()

    def task(self, piece: Piece, target: Target) -> ConvertTask:
        """What to make of the piece's lines."""
        if piece.part.chunk.is_range:
            return ConvertTask(piece.part.chunk, target, None, spans=self.spans(piece))
        return ConvertTask(piece.part.chunk, target, None, is_kept=self._rows(piece.part)[1].tobytes())


def _ends_line(path: str) -> bool:
    with open(path, "rb") as handle:  # noqa: PTH123
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def write_pieces(
    pieces: Pieces, temporary: Path, target: Target, engine: Engine, advance: Advance, *, in_place: bool
) -> list[int]:
    """Write the kept lines to a file; returns how many bytes of lines each piece became.

    Parameters
    ----------
    in_place
        Workers can write to the file themselves: they are on this machine.
    """
    if target.keeps_lines and target.container == "plain" and in_place and pieces.are_ranges:
        _copy_in_place(pieces, temporary, engine, advance)
        return [piece.n_bytes for piece in pieces]
    n_bytes = []
    with open_sink(temporary, target.container) as sink:
        tasks = (pieces.task(piece, target) for piece in pieces)
        for piece, converted in zip(pieces, engine.map(convert_lines, tasks), strict=True):
            _check_unchanged(piece, converted)
            sink.write(converted.data)
            n_bytes.append(len(converted.data))
            advance(piece.part.chunk.n_bytes)
    return n_bytes


def _copy_in_place(pieces: Pieces, temporary: Path, engine: Engine, advance: Advance) -> None:
    offsets, end = [], 0
    with temporary.open("wb") as out:
        for piece in pieces:
            offsets.append(end)
            end += piece.n_bytes
            if piece.needs_line_end:
                out.seek(end - 1)
                out.write(b"\n")
        out.truncate(end)
    tasks = (
        CopyTask(piece.part.chunk, pieces.spans(piece), str(temporary), offset)
        for piece, offset in zip(pieces, offsets, strict=True)
    )
    for piece, _ in zip(pieces, engine.map(copy_spans, tasks), strict=True):
        advance(piece.part.chunk.n_bytes)


def _check_unchanged(piece: Piece, converted: Converted) -> None:
    """Stop when a kept record, which was good, is not what it was."""
    path = piece.part.chunk.path
    check_still_good(path, ((kind, text) for _, kind, text in converted.issues))
    if converted.n_rollouts != piece.n_kept:
        raise DataError(f"{path}: the file changed while it was read; run again")

"""Copying runs of lines from one file into their place in another, byte for byte.

Writing a subset: the kept lines, in canonical order, whole or not at all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.data.convert import Converted, ConvertTask, Target, convert_lines, unpacked
from mprm.data.engine import Engine
from mprm.data.output import open_sink
from mprm.data.records import Chunk, mapped
from mprm.data.validate import CHECK_ONLY, ERRORS
from mprm.errors import DataError
from mprm.selection.scan import LabelCounts, Part, Rows
from mprm.selection.strategies import KeptRows

RUNS_AT_ONCE = 64
"""Runs handed to the system in one call; it takes 1,024."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """What to copy where."""

    chunk: Chunk
    spans: bytes
    """The runs of lines, as `unpacked` reads them."""
    out: str
    offset: int
    """Where in ``out`` the first run begins; the others follow it."""


def copy_spans(task: CopyTask) -> None:
    """Copy the runs; doing it twice changes nothing.

    A last line without a line end gets none here: the writer leaves room for one.
    """
    with mapped(task.chunk) as data, io.FileIO(task.out, "r+") as out:
        out.seek(task.offset)
        runs = unpacked(task.spans)
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

    def __init__(self, counts: LabelCounts, kept: KeptRows, source: str | None = None) -> None:
        self._counts, self._kept = counts, kept
        self._source = None if source is None else counts.sources.index(source)
        self._pieces = list(self._found())

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    @property
    def are_ranges(self) -> bool:
        """Whether every piece can be copied without reading lines."""
        return all(piece.part.chunk.is_range for piece in self)

    def _rows(self, part: Part) -> tuple[Rows, NDArray[np.bool_]]:
        end = part.first_row + part.n_rows
        rows, mask = self._counts.rows[part.first_row : end], self._kept.between(part.first_row, end)
        return rows, mask if self._source is None else mask & (rows["source"] == self._source)

    def _found(self) -> Iterator[Piece]:
        path, offset = "", 0
        for part in self._counts.parts:
            if part.chunk.path != path:
                path, offset = part.chunk.path, 0
            rows, mask = self._rows(part)
            if mask.any():
                is_last = (
                    part.chunk.is_range and bool(mask[-1]) and offset + int(rows["n_bytes"].sum()) == _size(path)
                )
                needs_line_end = is_last and not _ends_line(path)
                n_bytes = int(rows["n_bytes"][mask].sum()) + needs_line_end
                name = part.chunk.source if self._source is None else self._counts.sources[self._source]
                yield Piece(part, name, offset, n_bytes, int(mask.sum()), needs_line_end)
            offset += int(rows["n_bytes"].sum())

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

    def is_kept(self, piece: Piece) -> bytes:
        """One byte a line of the chunk, 1 for those to take."""
        return self._rows(piece.part)[1].tobytes()


def _size(path: str) -> int:
    return os.path.getsize(path)  # noqa: PTH202


def _ends_line(path: str) -> bool:
    with open(path, "rb") as handle:  # noqa: PTH123
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def write_pieces(
    pieces: Pieces,
    temporary: Path,
    target: Target,
    engine: Engine,
    *,
    in_place: bool,
    on_chunk: Callable[[Chunk], Any] | None,
) -> list[int]:
    """Write the kept lines to a file; returns how many bytes of lines each piece became.

    Parameters
    ----------
    in_place
        Workers can write to the file themselves: they are on this machine.
    """
    if target.keeps_lines and target.container == "plain" and in_place and pieces.are_ranges:
        _copy_in_place(pieces, temporary, engine, on_chunk)
        return [piece.n_bytes for piece in pieces]
    n_bytes = []
    sink = open_sink(temporary, target.container)
    try:
        tasks = (_convert_task(pieces, piece, target) for piece in pieces)
        for piece, converted in zip(pieces, engine.map(convert_lines, tasks), strict=True):
            _check_surprise(piece, converted)
            sink.write(converted.data)
            n_bytes.append(len(converted.data))
            if on_chunk is not None:
                on_chunk(piece.part.chunk)
    finally:
        sink.close()
    return n_bytes


def _convert_task(pieces: Pieces, piece: Piece, target: Target) -> ConvertTask:
    chunk = piece.part.chunk
    if chunk.is_range:
        return ConvertTask(chunk, target, None, spans=pieces.spans(piece))
    return ConvertTask(chunk, target, None, is_kept=pieces.is_kept(piece))


def _copy_in_place(pieces: Pieces, temporary: Path, engine: Engine, on_chunk: Callable[[Chunk], Any] | None) -> None:
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
        if on_chunk is not None:
            on_chunk(piece.part.chunk)


def _check_surprise(piece: Piece, converted: Converted) -> None:
    """Every kept record was judged good before: one that is not was changed since."""
    for _, kind, text in converted.problems:
        if kind in ERRORS and kind not in CHECK_ONLY:
            raise DataError(f"{piece.part.chunk.path}: a record changed while it was read: {text}")
    if converted.n_rollouts != piece.n_kept:
        raise DataError(f"{piece.part.chunk.path}: the file changed while it was read; run again")

"""Writing a subset: the kept lines, in canonical order, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprm.engines.engine import Engine
from mprm.errors import DataError
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.convert_lines import Converted, ConvertTask, Target, convert_lines
from mprm.rollouts.problem import CHECK_ONLY, ERRORS
from mprm.rollouts.sink import open_sink
from mprm.scores.label_counts import LabelCounts, Part
from mprm.selection.copy_spans import CopyTask, copy_spans
from mprm.selection.keep_top import KeptRows

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """The kept lines of one chunk."""

    part: Part
    source: str
    spans: Spans
    """Runs of bytes, for a plain local file."""
    is_kept: bytes | None
    """One byte a line, for every other file."""
    n_bytes: int
    n_kept: int
    needs_line_end: bool
    """Whether the last kept line is the file's last and has no line end."""


def pieces_of(counts: LabelCounts, kept: KeptRows, source: str | None = None) -> Iterator[Piece]:
    """The kept lines of each chunk that has any; of one source, or of all."""
    path, file_offset = "", 0
    for part in counts.parts:
        if part.chunk.path != path:
            path, file_offset = part.chunk.path, 0
        rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        ends = file_offset + np.cumsum(rows["n_bytes"], dtype=np.int64)
        mask = kept.between(part.first_row, part.first_row + part.n_rows)
        if source is not None:
            mask = mask & (rows["source"] == counts.sources.index(source))
        file_offset = int(ends[-1]) if len(ends) else file_offset
        if not mask.any():
            continue
        n_bytes = int(rows["n_bytes"][mask].sum())
        spans: Spans = ()
        is_kept, needs_line_end = None, False
        if part.chunk.is_range:
            starts = ends - rows["n_bytes"].astype(np.int64)
            spans = _runs(starts[mask], ends[mask])
            needs_line_end = spans[-1][1] == os.path.getsize(path) and not _ends_line(path)  # noqa: PTH202
        else:
            is_kept = mask.tobytes()
        name = source if source is not None else part.chunk.source
        yield Piece(part, name, spans, is_kept, n_bytes + needs_line_end, int(mask.sum()), needs_line_end)


def _runs(starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Spans:
    """Neighbouring lines as one run of bytes."""
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate([[0], breaks + 1])].tolist()
    lasts = ends[np.concatenate([breaks, [len(ends) - 1]])].tolist()
    return tuple(zip(firsts, lasts, strict=True))


def _ends_line(path: str) -> bool:
    with open(path, "rb") as handle:  # noqa: PTH123
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def write_pieces(
    pieces: list[Piece],
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
    if target.keeps_lines and target.container == "plain" and in_place and all(piece.spans for piece in pieces):
        _copy_in_place(pieces, temporary, engine, on_chunk)
        return [piece.n_bytes for piece in pieces]
    n_bytes = []
    sink = open_sink(temporary, target.container)
    try:
        tasks = (ConvertTask(piece.part.chunk, target, None, piece.is_kept, piece.spans) for piece in pieces)
        for piece, converted in zip(pieces, engine.map(convert_lines, tasks), strict=True):
            _refuse_surprise(piece, converted)
            sink.write(converted.data)
            n_bytes.append(len(converted.data))
            if on_chunk is not None:
                on_chunk(piece.part.chunk)
    finally:
        sink.close()
    return n_bytes


def _copy_in_place(
    pieces: list[Piece], temporary: Path, engine: Engine, on_chunk: Callable[[Chunk], Any] | None
) -> None:
    tasks, offset = [], 0
    with temporary.open("wb") as out:
        for piece in pieces:
            tasks.append(CopyTask(piece.part.chunk, piece.spans, str(temporary), offset))
            offset += piece.n_bytes
            if piece.needs_line_end:
                out.seek(offset - 1)
                out.write(b"\n")
        out.truncate(offset)
    for piece, _ in zip(pieces, engine.map(copy_spans, tasks), strict=True):
        if on_chunk is not None:
            on_chunk(piece.part.chunk)


def _refuse_surprise(piece: Piece, converted: Converted) -> None:
    """Every kept record was judged good before: one that is not was changed since."""
    for _, kind, text in converted.problems:
        if kind in ERRORS and kind not in CHECK_ONLY:
            raise DataError(f"{piece.part.chunk.path}: a record changed while it was read: {text}")
    if converted.n_rollouts != piece.n_kept:
        raise DataError(f"{piece.part.chunk.path}: the file changed while it was read; run again")

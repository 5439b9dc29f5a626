"""Copying runs of lines from one file into their place in another, byte for byte."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from itertools import islice

from mprm.rollouts.chunks import Chunk, mapped
from mprm.rollouts.convert_lines import unpacked

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

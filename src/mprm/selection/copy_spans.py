"""Copying runs of lines from one file into their place in another, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from mprm.rollouts.chunks import Chunk, mapped
from mprm.rollouts.convert_lines import unpacked

WRITE_BYTES = 1 << 20


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
    with mapped(task.chunk) as data, open(task.out, "r+b", buffering=0) as out:  # noqa: PTH123
        out.seek(task.offset)
        gathered: list[bytes] = []
        n_bytes = 0
        for start, end in unpacked(task.spans):
            gathered.append(data[start:end])
            n_bytes += end - start
            if n_bytes >= WRITE_BYTES:
                _write_all(out, b"".join(gathered))
                gathered, n_bytes = [], 0
        _write_all(out, b"".join(gathered))


def _write_all(out: object, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]  # type: ignore[attr-defined]

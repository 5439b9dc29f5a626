"""Where one file holds the rollouts of several sources, because mprm wrote it.

A file that `mprm select` wrote holds the lines of every source, one source after the other. The
manifest beside it says where each begins, so that sources survive being put into one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mprm.rollouts.chunks import Chunk
from mprm.rollouts.files import CorpusFile

MANIFEST_SUFFIX = ".manifest.json"


def bytes_by_source(parts: Iterable[tuple[str, int]]) -> dict[str, int] | None:
    """Bytes of each source in a file, in order, from its parts; None where sources are interleaved."""
    found: dict[str, int] = {}
    last = None
    for source, n_bytes in parts:
        if source != last and source in found:
            return None
        last = source
        found[source] = found.get(source, 0) + n_bytes
    return found


class _Output(msgspec.Struct):
    n_bytes: int
    source_bytes: dict[str, int] | None = None


class _Manifest(msgspec.Struct):
    output: _Output


def source_ranges(file: CorpusFile, piece: Chunk) -> Iterator[Chunk]:
    """The piece, cut where a new source begins, each part with its source."""
    ends = _source_ends(file) if piece.is_range else []
    if not ends:
        yield piece
        return
    start = piece.start
    for source, end in ends:
        stop = min(end, piece.stop)
        if start < stop:
            yield Chunk(piece.path, piece.container, source, start, stop, piece.format)
            start = stop


def _source_ends(file: CorpusFile) -> list[tuple[str, int]]:
    """(source, end of its bytes) in order; empty where no manifest fits the file."""
    path = Path(file.path + MANIFEST_SUFFIX)
    try:
        if Path(file.path).stat().st_mtime_ns > path.stat().st_mtime_ns:
            return []  # written to after its manifest
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, ValueError, msgspec.MsgspecError):
        return []
    output = manifest.output
    if not output.source_bytes or not output.n_bytes == sum(output.source_bytes.values()) == file.n_bytes:
        return []  # the file was changed after mprm wrote it
    ends, end = [], 0
    for source, n_bytes in output.source_bytes.items():
        end += n_bytes
        ends.append((source, end))
    return ends

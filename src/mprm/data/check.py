"""``mprm check``: every issue of a corpus, with file and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from mprm.config import EngineOptions, ImageRoot, InputFormat, TextOnly, takes
from mprm.data.corpus import CountedLines, open_corpus, parse_lines
from mprm.data.engine import make_engine
from mprm.data.records import Chunk, is_blank, lines_of
from mprm.data.validate import ERRORS, Issue, ValidationOptions
from mprm.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class CheckConfig(EngineOptions):
    """Find every issue in a corpus, with file and line. Exits with 1 on errors, with 3 on warnings only."""

    format: InputFormat = None
    image_root: ImageRoot = None
    text_only: TextOnly = False


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    n_files: int
    n_records: int
    n_bad_records: int
    issues: tuple[Issue, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of issue occurred, errors first."""
        counts: dict[str, int] = {}
        for issue in sorted(self.issues, key=lambda issue: not issue.is_error):
            counts[issue.kind] = counts.get(issue.kind, 0) + 1
        return counts

    @property
    def n_errors(self) -> int:
        """Issues that make a record unusable."""
        return sum(issue.is_error for issue in self.issues)

    @property
    def n_warnings(self) -> int:
        """Issues that leave a record usable."""
        return len(self.issues) - self.n_errors


@dataclass(frozen=True, slots=True)
class _Checked:
    n_lines: int
    issues: tuple[tuple[int, str, str], ...]
    """(line within the chunk, kind, text)."""
    digests: bytes
    """16 bytes a line; zeros for blank ones."""


def _check_chunk(task: tuple[Chunk, ValidationOptions]) -> _Checked:
    chunk, options = task
    digests = bytearray()

    def digested() -> Iterator[bytes]:
        for line in lines_of(chunk):
            digests.extend(bytes(16) if is_blank(line) else xxhash.xxh3_128_digest(line.strip()))
            yield line

    lines = CountedLines(digested())
    issues = [(parsed.number, *issue) for parsed in parse_lines(lines, chunk, options) for issue in parsed.issues]
    return _Checked(lines.n_lines, tuple(issues), bytes(digests))


@takes(CheckConfig)
def check(
    paths: Any, config: CheckConfig | None = None, *, progress: Progress = silent, **options: Any
) -> CheckReport:
    """Every issue in a corpus.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    config, options
        See `CheckConfig`. Without ``image_root``, image files are not looked for.

    Examples
    --------
    >>> check([{"prompt": "1+1?", "completions": ["2", " "], "labels": [True, False]}]).counts
    {'empty_step': 1}
    """
    config = CheckConfig.of(config, options)
    corpus = open_corpus(paths, format=config.format, text_only=config.text_only, image_root=config.image_root)
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    issues: list[Issue] = []
    first_lines: list[tuple[str, int, int]] = []  # file, first line, first digest of each chunk
    digests = bytearray()
    n_records_of = dict.fromkeys((file.path for file in corpus.files), 0)
    path, line = "", 1
    tasks = ((chunk, corpus.options) for chunk in corpus.chunks)
    with progress("checking", corpus.n_bytes, "bytes") as advance:
        for chunk, checked in zip(corpus.chunks, engine.map(_check_chunk, tasks), strict=True):
            if chunk.path != path:
                path, line = chunk.path, 1
            issues += [Issue(path, line + index, kind, text) for index, kind, text in checked.issues]
            first_lines.append((path, line, len(digests) // 16))
            digests += checked.digests
            n_records_of[path] += len(checked.digests) // 16 - _n_blank(checked.digests)
            line += checked.n_lines
            advance(chunk.n_bytes)
    n_bad = len({(issue.file, issue.line) for issue in issues if issue.kind in ERRORS})
    issues += _duplicates(digests, first_lines)
    empty = [path for path, n_records in n_records_of.items() if not n_records]
    issues += [Issue(path, 1, "empty_file", "the file holds no record") for path in empty]
    return CheckReport(len(corpus.files), sum(n_records_of.values()), n_bad, tuple(issues))


def _n_blank(digests: bytes) -> int:
    import numpy as np

    return int((np.frombuffer(digests, np.uint64).reshape(-1, 2) == 0).all(axis=1).sum()) if digests else 0


def _duplicates(digests: bytearray, first_lines: list[tuple[str, int, int]]) -> Iterator[Issue]:
    """An issue for each record that is the same as an earlier one."""
    import numpy as np

    if not digests:
        return
    records = np.frombuffer(digests, np.dtype([("high", np.uint64), ("low", np.uint64)]))
    order = np.argsort(records, order=("high", "low"), kind="stable")
    ordered = records[order]
    is_same = np.concatenate([[False], ordered[1:] == ordered[:-1]])
    group_start = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))
    first_digests = np.array([first for _, _, first in first_lines])

    def location(record: int) -> tuple[str, int]:
        file, first_line, first = first_lines[int(np.searchsorted(first_digests, record, side="right")) - 1]
        return file, first_line + record - first

    is_blank_line = (ordered["high"] == 0) & (ordered["low"] == 0)
    repeated = np.flatnonzero(is_same & ~is_blank_line)
    for later, first in sorted(zip(order[repeated].tolist(), order[group_start[repeated]].tolist(), strict=True)):
        file, line = location(later)
        first_file, first_line = location(first)
        yield Issue(file, line, "duplicate", f"the record is the same as {first_file}:{first_line}")

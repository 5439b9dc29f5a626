"""``mprm check``: every issue of a corpus, with file and line."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import xxhash

from mprm.config import EngineOptions, ImageRoot, ReadingOptions, takes
from mprm.data.corpus import CountedLines, open_corpus, parse_lines
from mprm.data.engine import make_engine
from mprm.data.output import unchanged
from mprm.data.records import Chunk, is_blank, lines_of
from mprm.data.types import ERRORS, Issue, ValidationOptions, location
from mprm.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class CheckConfig(ReadingOptions, EngineOptions):
    """Find every issue in a corpus, with file and line. Exits with 1 on errors, with 3 on warnings only."""

    image_root: ImageRoot = None


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
        return dict(Counter(issue.kind for issue in sorted(self.issues, key=lambda issue: not issue.is_error)))

    @property
    def n_errors(self) -> int:
        return sum(issue.is_error for issue in self.issues)

    @property
    def n_warnings(self) -> int:
        return len(self.issues) - self.n_errors


def _check_chunk(task: tuple[Chunk, ValidationOptions]) -> tuple[int, list[tuple[int, str, str]], array[int], bytes]:
    """Number of lines; (line within the chunk, kind, text) of each issue; of each record its line, and 16 bytes."""
    chunk, options = task
    record_lines, digests = array("q"), bytearray()

    def digested() -> Iterator[bytes]:
        for index, line in enumerate(lines_of(chunk)):
            if not is_blank(line):
                record_lines.append(index)
                digests.extend(xxhash.xxh3_128_digest(line.strip()))
            yield line

    lines = CountedLines(digested())
    issues = [(parsed.number, *issue) for parsed in parse_lines(lines, chunk, options) for issue in parsed.issues]
    return lines.n_lines, issues, record_lines, bytes(digests)


@takes(CheckConfig)
def check(
    paths: Any, config: CheckConfig | None = None, *, progress: Progress = silent, **options: Any
) -> CheckReport:
    """Every issue in a corpus, which is whatever `mprm.open_corpus` takes; the options are those of `CheckConfig`.

    Without ``image_root``, image files are not looked for.

    >>> check([{"prompt": "1+1?", "completions": ["2", " "], "labels": [True, False]}]).counts
    {'empty_step': 1}
    """
    config = CheckConfig.of(config, options)
    corpus = open_corpus(paths, image_root=config.image_root, **config.reading())
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    issues: list[Issue] = []
    files = [file.path for file in corpus.files]
    n_records_of = dict.fromkeys(files, 0)
    lines, digests = array("q"), bytearray()
    path, first_line = "", 1
    tasks = ((chunk, corpus.options) for chunk in corpus.chunks)
    with unchanged(corpus.files), progress("checking", corpus.n_bytes, "bytes") as advance:
        for chunk, checked in zip(corpus.chunks, engine.map(_check_chunk, tasks), strict=True):
            n_lines, found, records, digests_of_chunk = checked
            if chunk.path != path:
                path, first_line = chunk.path, 1
            issues += [Issue(path, first_line + index, kind, text) for index, kind, text in found]
            lines.extend(first_line + index for index in records)
            digests += digests_of_chunk
            n_records_of[path] += len(records)
            first_line += n_lines
            advance(chunk.n_bytes)
    n_bad = len({(issue.file, issue.line) for issue in issues if issue.kind in ERRORS})
    file_ends = list(accumulate(n_records_of.values()))
    for later, first in _duplicates(digests):
        file, first_file = (files[bisect_right(file_ends, record)] for record in (later, first))
        issues.append(
            Issue(file, lines[later], "duplicate", f"the record is the same as {location(first_file, lines[first])}")
        )
    empty = [path for path, n_records in n_records_of.items() if not n_records]
    issues += [Issue(path, 1, "empty_file", "the file holds no record") for path in empty]
    return CheckReport(len(files), len(lines), n_bad, tuple(issues))


def _duplicates(digests: bytearray) -> Iterator[tuple[int, int]]:
    """(record, first record with the same digest) of each record that is not the first."""
    import numpy as np

    records = np.frombuffer(digests, np.dtype([("high", np.uint64), ("low", np.uint64)]))
    _, firsts, group = np.unique(records, return_index=True, return_inverse=True)
    first = firsts[group]
    for later in np.flatnonzero(first != np.arange(len(records))).tolist():
        yield later, int(first[later])

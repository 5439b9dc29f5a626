"""``mprm check``: every problem of a corpus, with file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mprm.data.corpus import CountedLines, Judgement, is_blank, open_corpus, rollouts_of
from mprm.data.engine import EngineName, make_engine
from mprm.data.records import Chunk, lines_of
from mprm.data.validate import ERRORS, Problem, Report


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found."""

    n_files: int
    n_records: int
    n_bad_records: int
    problems: tuple[Problem, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of problem was found, errors first."""
        counts: dict[str, int] = {}
        for problem in sorted(self.problems, key=lambda problem: not problem.is_error):
            counts[problem.kind] = counts.get(problem.kind, 0) + 1
        return counts

    @property
    def n_errors(self) -> int:
        """Problems that make a record unusable."""
        return sum(problem.is_error for problem in self.problems)

    @property
    def n_warnings(self) -> int:
        """Problems that leave a record usable."""
        return len(self.problems) - self.n_errors


@dataclass(frozen=True, slots=True)
class CheckTask:
    """What to check."""

    chunk: Chunk
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a chunk."""

    n_lines: int
    problems: tuple[tuple[int, str, str], ...]
    """(line within the chunk, kind, text)."""
    digests: bytes
    """16 bytes a line; zeros for blank ones."""


def check_chunk(task: CheckTask) -> Checked:
    """Look at every record of a chunk."""
    problems: list[tuple[int, str, str]] = []
    digests = bytearray()

    def digested() -> Iterator[bytes]:
        for line in lines_of(task.chunk):
            digests.extend(bytes(16) if is_blank(line) else xxhash.xxh3_128_digest(line.strip()))
            yield line

    def report_at(number: int) -> Report:
        return lambda kind, text: problems.append((number, kind, text))

    lines = CountedLines(digested())
    for _ in rollouts_of(lines, task.chunk, task.judgement, report_at):
        pass
    return Checked(lines.n_lines, tuple(problems), bytes(digests))


def check(
    paths: Any,
    *,
    image_root: str | Path | None = None,
    format: str | None = None,
    text_only: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> CheckReport:
    """Find every problem in a corpus.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    image_root
        Folder that must hold every image; without it, image files are not looked for.
    text_only
        Accept records without an image.

    Examples
    --------
    >>> check([{"prompt": "1+1?", "completions": ["2", " "], "labels": [True, False]}]).counts
    {'empty_step': 1}
    """
    corpus = open_corpus(paths, format=format, text_only=text_only, image_root=image_root)
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    problems: list[Problem] = []
    places: list[tuple[str, int, int]] = []  # file, first line, first record of each chunk
    digests = bytearray()
    n_in = dict.fromkeys((file.path for file in corpus.files), 0)
    path, line = "", 1
    tasks = (CheckTask(chunk, corpus.judgement) for chunk in corpus.chunks)
    for chunk, checked in zip(corpus.chunks, worker.map(check_chunk, tasks), strict=True):
        if chunk.path != path:
            path, line = chunk.path, 1
        problems += [Problem(path, line + number, kind, text) for number, kind, text in checked.problems]
        places.append((path, line, len(digests) // 16))
        digests += checked.digests
        n_in[path] += len(checked.digests) // 16 - _n_blank(checked.digests)
        line += checked.n_lines
        if on_chunk is not None:
            on_chunk(chunk)
    n_records = sum(n_in.values())
    n_bad = len({(problem.file, problem.line) for problem in problems if problem.kind in ERRORS})
    problems += _duplicates(digests, places)
    problems += [
        Problem(file.path, 1, "empty_file", "the file holds no record")
        for file in corpus.files
        if not n_in[file.path]
    ]
    return CheckReport(len(corpus.files), n_records, n_bad, tuple(problems))


def _n_blank(digests: bytes | bytearray) -> int:
    import numpy as np

    return int((np.frombuffer(digests, np.uint64).reshape(-1, 2) == 0).all(axis=1).sum()) if digests else 0


def _duplicates(digests: bytearray, places: list[tuple[str, int, int]]) -> Iterator[Problem]:
    """A problem for each record that is the same as an earlier one."""
    import numpy as np

    if not digests:
        return
    records = np.frombuffer(digests, np.dtype([("high", np.uint64), ("low", np.uint64)]))
    order = np.argsort(records, order=("high", "low"), kind="stable")
    ordered = records[order]
    is_same = np.concatenate([[False], ordered[1:] == ordered[:-1]])
    group_start = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))
    first_records = np.array([first for _, _, first in places])

    def place(record: int) -> tuple[str, int]:
        file, first_line, first_record = places[int(np.searchsorted(first_records, record, side="right")) - 1]
        return file, first_line + record - first_record

    is_blank_record = (ordered["high"] == 0) & (ordered["low"] == 0)
    found = np.flatnonzero(is_same & ~is_blank_record)
    for later, first in sorted(zip(order[found].tolist(), order[group_start[found]].tolist(), strict=True)):
        file, line = place(later)
        first_file, first_line = place(first)
        yield Problem(file, line, "duplicate", f"the record is the same as {first_file}:{first_line}")

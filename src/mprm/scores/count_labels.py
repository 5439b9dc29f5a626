"""Counting the labels of each rollout in a chunk: the one pass over a corpus's text."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from mprm.engines.engine import Engine
from mprm.errors import ConfigError
from mprm.rollouts.chunks import Chunk, lines_of, mapped, range_start
from mprm.rollouts.convert_lines import check_tau
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.format import Format
from mprm.rollouts.formats import FORMATS
from mprm.rollouts.problem import Problems
from mprm.rollouts.read import Judgement, is_blank, read_line, record_of
from mprm.scores.count_rows import BAD, BLANK, ROW, Odd, count_rows, pack_row

BLOCK_BYTES = 1 << 20
FAST = {"visualprm-raw": False, "vl-prm": True}
"""Formats that `count_rows` knows, and whether their records name the source."""


@dataclass(frozen=True, slots=True)
class CountTask:
    """What to count."""

    chunk: Chunk
    tau: float
    judgement: Judgement
    stop_at_bad: bool


@dataclass(frozen=True, slots=True)
class BadLine:
    """A record that cannot be used, whole, so that nothing is lost."""

    number: int
    """Place in the chunk, from 0."""
    kind: str
    text: str
    line: bytes
    source: str


@dataclass(frozen=True, slots=True)
class Counted:
    """The label counts of a chunk."""

    rows: bytearray
    """One `ROW` a line, bad and blank ones too."""
    sources: tuple[str, ...]
    """Names that the rows' source numbers stand for."""
    bad: tuple[BadLine, ...]


def start_counting(corpus: Corpus, engine: Engine, *, tau: float, stop_at_bad: bool) -> Iterator[Counted]:
    """Set the engine to work on every chunk; the label counts come in the chunks' order."""
    return engine.map(count_labels, count_tasks(corpus, tau=tau, stop_at_bad=stop_at_bad))


def count_tasks(corpus: Corpus, *, tau: float, stop_at_bad: bool) -> Iterator[CountTask]:
    """What to count of each chunk; refuses, at once, a corpus whose records are not one rollout each."""
    check_tau(tau)
    for path, fmt in corpus.formats.items():
        if fmt.many:
            raise ConfigError(
                f"{path}: {fmt.title} keeps several rollouts in one record, or one in several; convert it first:"
                f" mprm convert {path} --to {'visualprm-raw' if fmt.labels == 'mc' else 'trl'} --out FILE.jsonl,"
                " and read that with --text-only"
            )
    return (CountTask(chunk, tau, corpus.judgement, stop_at_bad) for chunk in corpus.chunks)


def count_labels(task: CountTask) -> Counted:
    """Count the labels of every rollout that begins in the chunk; with ``stop_at_bad``, up to a bad one."""
    counter = _Counter(task)
    if task.chunk.is_range and task.chunk.format in FAST:
        with mapped(task.chunk) as data:
            counter.count_fast(data, range_start(data, task.chunk.start), task.chunk.stop)
    else:
        for block in _blocks(task.chunk):
            if counter.is_stopped:
                break
            counter.count(block)
    return Counted(counter.rows, tuple(counter.sources), tuple(counter.bad))


def _blocks(chunk: Chunk) -> Iterator[list[bytes]]:
    """The chunk's lines, about a megabyte at a time."""
    block, n_bytes = [], 0
    for line in lines_of(chunk):
        block.append(line)
        n_bytes += len(line)
        if n_bytes >= BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    yield block


class _Counter:
    """The rows made so far, and the bad lines."""

    def __init__(self, task: CountTask) -> None:
        self.task = task
        self.fmt: Format = FORMATS[task.chunk.format]
        self.rows = bytearray()
        self.bad: list[BadLine] = []
        self.sources: dict[str, int] = {} if FAST.get(task.chunk.format) else {task.chunk.source: 0}

    @property
    def is_stopped(self) -> bool:
        return bool(self.bad) and self.task.stop_at_bad

    def count(self, lines: list[bytes]) -> None:
        """Count some lines of any format."""
        if self.fmt.name in FAST:
            data = b"".join(lines)
            self.count_fast(data, 0, len(data))
        else:
            ends = list(accumulate(map(len, lines), initial=0))
            odd = [(number, ends[number], ends[number + 1]) for number in range(len(lines))]
            self._look_closer(b"".join(lines), odd, bytearray(ROW.size * len(lines)))

    def count_fast(self, data: bytes | mmap.mmap, place: int, stop: int) -> None:
        """Count the plain lines of a big format; the others get a closer look."""
        judgement = self.task.judgement
        sources = self.sources if FAST[self.fmt.name] else None
        rows, odd = count_rows(
            data, place, stop, not judgement.text_only, self.task.tau, sources, _suspicious(judgement.forbids)
        )
        self._look_closer(data, odd, rows)

    def _look_closer(self, data: bytes | mmap.mmap, odd: Odd, rows: bytearray) -> None:
        first = len(self.rows) // ROW.size
        for number, start, end in odd:
            line = data[start:end]
            rows[number * ROW.size : (number + 1) * ROW.size] = self._row(first + number, line)
            if self.is_stopped:
                break
        self.rows += rows

    def _named(self, line: bytes) -> str:
        """The source that a record names, even a bad one; else the chunk's."""
        record = record_of(line, _ignore) if self.fmt.labels == "mc" else None
        named = record.get("source") if record is not None else None
        return named if isinstance(named, str) and named else self.task.chunk.source

    def _row(self, number: int, line: bytes) -> bytes:
        if is_blank(line):
            return ROW.pack(0, 0, 0, 0, 0, BLANK, 0, 0, 0.0, 0.0, len(line))
        problems = Problems()
        rollouts = read_line(line, self.fmt, self.task.judgement, problems)
        error = problems.first_error()
        source = next((rollout.source for rollout in rollouts if rollout.source), None) or self._named(line)
        source_number = self.sources.setdefault(source, len(self.sources))
        if error is not None:
            self.bad.append(BadLine(number, *error, line, source))
            return ROW.pack(0, 0, 0, 0, source_number, BAD, 0, 0, 0.0, 0.0, len(line))
        (rollout,) = rollouts
        return pack_row(
            [step.text for step in rollout.steps],
            list(rollout.scores),
            [step.n_total for step in rollout.steps],
            tau=self.task.tau,
            source=source_number,
            n_bytes=len(line),
        )


def _ignore(_kind: str, _text: str) -> None:
    pass


def _suspicious(forbids: str | None) -> bytes:
    """What a line holds that holds the forbidden text, unless its letters are written as escapes."""
    return b"" if forbids is None else forbids.strip().encode()

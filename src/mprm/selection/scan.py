"""Label counts of v1.1-Raw and VL-PRM300K lines, as fast as they can be read.

Counting the labels of each rollout in a chunk: the one pass over a corpus's text.

The label counts of a whole corpus, on disk: all that ranking, selecting and statistics need.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.convert import check_tau
from mprm.data.corpus import Corpus, Judgement, bad_record, is_blank, read_line, record_of
from mprm.data.engine import Engine
from mprm.data.format import Format
from mprm.data.output import Dropped, temporary_file
from mprm.data.records import Chunk, lines_of, mapped, range_start
from mprm.data.rollout_formats import FORMATS
from mprm.data.types import Count
from mprm.data.validate import Problems
from mprm.errors import ConfigError

ROW = Struct("=IIIIIIIIddQ")
"""n_steps, n_pos, n_words, n_unsampled, source, kind, n_mc, unused, sum_pos, sum_all, n_bytes."""
ROLLOUT, BLANK, BAD = 0, 1, 2
"""Kinds of line; a line that is handed back as odd counts as bad until Python has looked at it."""

Odd = list[tuple[int, int, int]]
"""(row, first byte, end) of each line that needs a closer look."""


def pack_row(
    texts: list[str],
    scores: list[float],
    n_totals: list[int | None],
    *,
    tau: float,
    source: int,
    n_bytes: int,
) -> bytes:
    """The row of one rollout.

    Sums run from left to right in float64, as the reference adds; Python's own ``sum`` does not
    from 3.12 on, and with N other than a power of two the last bit decides ties.
    """
    n_pos, sum_pos, sum_all = 0, 0.0, 0.0
    for score in scores:
        sum_all += score
        if score > tau:
            n_pos += 1
            sum_pos += score
    n_words = sum([len(text.split()) for text in texts])
    n_mc = max([n_total or 0 for n_total in n_totals], default=0)
    return ROW.pack(
        len(scores), n_pos, n_words, n_totals.count(0), source, ROLLOUT, n_mc, 0, sum_pos, sum_all, n_bytes
    )


class _Step(msgspec.Struct, gc=False):
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    step: str
    num_mc_correct: Count | None = None
    num_mc_total: Count | None = None

    @property
    def is_consistent(self) -> bool:
        if self.num_mc_correct is None or self.num_mc_total is None:
            return True
        expected = self.num_mc_correct / self.num_mc_total if self.num_mc_total else 0.0
        return self.num_mc_correct <= self.num_mc_total and abs(self.score - expected) < 1e-6


@lru_cache
def _decoder(with_source: bool) -> msgspec.json.Decoder[Any]:
    """Decodes what a row needs and skips the rest of the line."""
    fields: list[Any] = [
        ("steps_with_score", list[_Step]),
        ("question", str),
        ("image", str | list[str] | None, None),
        ("source", str, "") if with_source else ("source", msgspec.UnsetType, msgspec.UNSET),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("FastRecord", fields, gc=False, kw_only=True))


def count_rows_python(
    data: bytes | mmap.mmap,
    place: int,
    stop: int,
    needs_image: bool,
    tau: float,
    sources: dict[str, int] | None,
    mark: bytes,
    /,
) -> tuple[bytearray, Odd]:
    """One row for each line that begins in [place, stop); what is not plainly right is handed back.

    Parameters
    ----------
    data
        Whole lines; ``place`` is the first byte of one.
    needs_image
        Hand back records without an image.
    tau
        A step is positive when its score is strictly above it.
    sources
        Number of each source seen so far, added to; None where the file is the source, and a
        record that names one is handed back.
    mark
        Hand back lines that hold these bytes, if any, or that hide letters as escapes.
    """
    rows, odd = bytearray(), []
    decode = _decoder(sources is not None).decode
    n_rows = 0
    while place < min(stop, len(data)):
        end = data.find(b"\n", place) + 1 or len(data)
        line = data[place:end]
        row = (
            _row(line, decode, needs_image, tau, sources)
            if not mark or not (mark in line or b"\\u00" in line)
            else None
        )
        if row is None and not line.strip(b" \t\r\n"):
            row = ROW.pack(0, 0, 0, 0, 0, BLANK, 0, 0, 0.0, 0.0, len(line))
        if row is None:
            row = ROW.pack(0, 0, 0, 0, 0, BAD, 0, 0, 0.0, 0.0, len(line))
            odd.append((n_rows, place, end))
        rows += row
        n_rows += 1
        place = end
    return rows, odd


def _row(line: bytes, decode: Any, needs_image: bool, tau: float, sources: dict[str, int] | None) -> bytes | None:
    try:
        line.decode()
        record = decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    steps, image = record.steps_with_score, record.image
    texts = [step.step for step in steps]
    if (
        not steps
        or not all(map(str.strip, texts))
        or not all(step.is_consistent for step in steps)
        or not record.question.strip()
        or (needs_image and not image)
        or (isinstance(image, list) and not (image and all(image)))
        or (sources is not None and not record.source)
    ):
        return None
    source = 0 if sources is None else sources.setdefault(record.source, len(sources))
    scores = [step.score for step in steps]
    n_totals = [step.num_mc_total for step in steps]
    return pack_row(texts, scores, n_totals, tau=tau, source=source, n_bytes=len(line))


try:
    from mprm.selection._scan import count_rows as count_rows
except ImportError:  # installed without a compiler: the same rows, several times slower
    count_rows = count_rows_python
    IS_COMPILED = False
else:
    IS_COMPILED = True


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


Rows = NDArray[np.void]
ROW_TYPE = np.dtype(
    [(name, np.uint32) for name in ("n_steps", "n_pos", "n_words", "n_unsampled", "source", "kind", "n_mc", "unused")]
    + [("sum_pos", np.float64), ("sum_all", np.float64), ("n_bytes", np.uint64)]
)
"""`count_rows.ROW` as numpy reads it."""
assert ROW_TYPE.itemsize == ROW.size

BLOCK_ROWS = 1 << 18
"""Rows looked at together: bounds memory, whatever the corpus's size."""


def taken(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows that the mask takes; the rows themselves where it takes all, as most often it does."""
    return rows if mask.all() else rows[mask]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one chunk."""

    chunk: Chunk
    first_row: int
    n_rows: int
    first_line: int
    """Line number, from 1, of the chunk's first line in its file."""


class LabelCounts:
    """One row a line of the corpus, in canonical order; owns the temporary file they lie in."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.sources: list[str] = []
        self.spans: dict[int, tuple[int, int]] = {}
        """First row and end of the rows among which each source's lie, by the source's number."""
        self._file = temporary_file(self)
        self._n_rows = 0
        self._rows: Rows | None = None

    def add(self, chunk: Chunk, rows: Rows, first_line: int, sources: list[int]) -> None:
        """Append a chunk's rows, which are of these sources."""
        self._file.write(rows.tobytes())
        self.parts.append(Part(chunk, self._n_rows, len(rows), first_line))
        for number in sources:
            places = np.flatnonzero(rows["source"] == number) if len(sources) > 1 else np.arange(len(rows))
            if len(places):
                first, _ = self.spans.get(number, (self._n_rows + int(places[0]), 0))
                self.spans[number] = (first, self._n_rows + int(places[-1]) + 1)
        self._n_rows += len(rows)
        self._rows = None

    @property
    def rows(self) -> Rows:
        """All rows; they stay on disk and are read where they are looked at."""
        if self._rows is None:
            self._file.flush()
            if self._n_rows:
                self._rows = np.asarray(np.memmap(self._file, ROW_TYPE, "r", shape=(self._n_rows,)))
            else:
                self._rows = np.empty(0, ROW_TYPE)
        return self._rows

    def blocks(self, source: int | None = None) -> Iterator[tuple[int, Rows]]:
        """(number of the first row, rows), some at a time: all rows, or those among which a source's lie."""
        first, end = (0, self._n_rows) if source is None else self.spans.get(source, (0, 0))
        for start in range(first, end, BLOCK_ROWS):
            yield start, self.rows[start : min(start + BLOCK_ROWS, end)]

    def n_lines(self, kind: int) -> dict[str, int]:
        """How many lines of that kind each source has."""
        counts = np.zeros(len(self.sources), np.int64)
        for _, rows in self.blocks():
            counts += np.bincount(rows["source"][rows["kind"] == kind], minlength=len(self.sources))
        return dict(zip(self.sources, counts.tolist(), strict=True))


def count_corpus(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float = 0.0,
    on_bad: Callable[[Dropped], Any] | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> LabelCounts:
    """Read the corpus once and count the labels of every rollout.

    Parameters
    ----------
    tau
        A step is positive when its score is strictly above it.
    on_bad
        Called with each bad record; None stops at the first one with a `DataError`.
    on_chunk
        Called after each chunk, for progress.
    """
    counting = start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None)
    return gather_counts(corpus, counting, on_bad=on_bad, on_chunk=on_chunk)


def gather_counts(
    corpus: Corpus,
    counting: Iterator[Counted],
    *,
    on_bad: Callable[[Dropped], Any] | None,
    on_chunk: Callable[[Chunk], Any] | None,
) -> LabelCounts:
    """Put the label counts of all chunks together as they come; see `count_corpus`."""
    counts = LabelCounts()
    numbers: dict[str, int] = {}
    path, line = "", 1
    for chunk, counted in zip(corpus.chunks, counting, strict=True):
        if chunk.path != path:
            path, line = chunk.path, 1
        for bad in counted.bad:
            _drop(chunk, line, bad, on_bad)
        rows = np.frombuffer(counted.rows, ROW_TYPE)
        renumber = [numbers.setdefault(name, len(numbers)) for name in counted.sources]
        if renumber != list(range(len(renumber))):
            rows = rows.copy()
            rows["source"] = np.array(renumber, np.uint32)[rows["source"]]
        counts.add(chunk, rows, line, renumber)
        line += len(rows)
        if on_chunk is not None:
            on_chunk(chunk)
    counts.sources = list(numbers)
    return counts


def _drop(chunk: Chunk, first_line: int, bad: BadLine, on_bad: Callable[[Dropped], Any] | None) -> None:
    line = first_line + bad.number
    if on_bad is None:
        raise bad_record(chunk.path, line, bad.kind, bad.text)
    on_bad(Dropped(chunk.path, line, bad.source, bad.kind, bad.text, bad.line))

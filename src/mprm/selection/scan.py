"""One pass over a corpus's text: the label counts of every rollout, a row of 64 bytes a line.

The paper's strategies rank by n, n_pos and the sum of scores alone, and the statistics need little more; others ask
for details, the score of every step and a number for each problem. Lines of v1.1-Raw and VL-PRM300K are counted by
compiled code (`_scan.c`), which hands back every line that is not plainly right; Python then looks at it again and
says what is wrong. `count_rows_python` is its twin and gives the same rows.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any

import msgspec

from mprm.data.corpus import Corpus, parse_line
from mprm.data.engine import Engine
from mprm.data.output import Dropped
from mprm.data.records import Chunk, decode_record, is_blank, is_deep, lines_of, mapped, range_start
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.types import BEFORE_FIRST_STEP, Issues, Step, ValidationOptions

ROW = Struct("=IIIIIIIIddQQ")
"""n_steps, n_pos, n_words, n_unsampled, source, kind, n_mc, n_leading, sum_pos, sum_all, n_bytes, problem.

n_leading: positive steps before the first negative one; problem: see `problem_number`, 0 without details."""
FNV_BASIS, FNV_PRIME, GOLDEN, MASK = 0xCBF29CE484222325, 0x100000001B3, 0x9E3779B97F4A7C15, 2**64 - 1
ROLLOUT, BLANK, BAD = 0, 1, 2
"""Kinds of line; a line that is handed back as odd counts as bad until Python has looked at it."""

Odd = list[tuple[int, int, int]]
"""(row, first byte, end) of each line that needs a closer look."""


def problem_number(question: str, images: Iterable[str]) -> int:
    """A number for each problem, by its question without white space and its images: FNV-1a, as in `_scan.c`."""
    hashes = []
    for data in ("".join(question.split()).encode(errors="surrogatepass"), _joined(images)):
        hash_ = FNV_BASIS
        for byte in data:
            hash_ = (hash_ ^ byte) * FNV_PRIME & MASK
        hashes.append(hash_)
    return hashes[0] ^ (hashes[1] * GOLDEN & MASK)


def _joined(images: Iterable[str]) -> bytes:
    return b"".join(image.encode(errors="surrogatepass") + b"\xff" for image in images if image)


def pack_row(
    texts: list[str],
    scores: Sequence[float],
    n_totals: list[int | None],
    *,
    tau: float,
    source: int,
    n_bytes: int,
    problem: int = 0,
) -> bytes:
    """The row of one rollout.

    Sums run from left to right in float64, as the reference adds; Python's own ``sum`` does not
    from 3.12 on, and with N other than a power of two the last bit decides ties.
    """
    n_pos, n_leading, sum_pos, sum_all = 0, 0, 0.0, 0.0
    for j, score in enumerate(scores):
        sum_all += score
        if score > tau:
            n_leading += n_pos == j
            n_pos += 1
            sum_pos += score
    n_words = sum([len(text.split()) for text in texts])
    n_mc = max([n_total or 0 for n_total in n_totals], default=0)
    counts = len(scores), n_pos, n_words, n_totals.count(0), source, ROLLOUT, n_mc, n_leading
    return ROW.pack(*counts, sum_pos, sum_all, n_bytes, problem)


def pack_empty(kind: int, line: bytes, source: int = 0) -> bytes:
    """The row of a line that is no rollout."""
    return ROW.pack(0, 0, 0, 0, source, kind, 0, 0, 0.0, 0.0, len(line), 0)


def _is_consistent(step: Step) -> bool:
    if step.n_correct is None or step.n_total is None:
        return True
    expected = step.n_correct / step.n_total if step.n_total else 0.0
    return step.n_correct <= step.n_total and abs(step.score - expected) < 1e-6


@lru_cache
def _decoder(with_source: bool) -> msgspec.json.Decoder[Any]:
    """Decodes what a row needs and skips the rest of the line."""
    fields: list[Any] = [
        ("steps_with_score", list[Step]),
        ("question", str),
        ("question_orig", Any, None),
        ("image", str | list[str] | None, None),
        ("source", str, "") if with_source else ("source", msgspec.UnsetType, msgspec.UNSET),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("FastRecord", fields, gc=False, kw_only=True))


def count_rows_python(
    data: bytes | mmap.mmap,
    start: int,
    stop: int,
    needs_image: bool,
    tau: float,
    sources: dict[str, int] | None,
    mark: bytes,
    with_details: bool,
    /,
) -> tuple[bytearray, Odd, bytearray]:
    """One row for each line that begins in [start, stop), a first byte; what is not plainly right is handed back.

    ``sources`` numbers the sources seen so far and is added to; None where the file is the source, and a record that
    names one is handed back. So are lines that hold the ``mark``, if any, or that hide letters as escapes. Last come
    the scores of the steps of all good lines, as float64, where details are asked for.
    """
    rows, odd, details = bytearray(), [], bytearray()
    decode = _decoder(sources is not None).decode
    while start < min(stop, len(data)):
        end = data.find(b"\n", start) + 1 or len(data)
        line = data[start:end]
        is_marked = mark and (mark in line or b"\\u00" in line)
        row = None if is_marked else _row(line, decode, needs_image, tau, sources, details if with_details else None)
        if row is None and is_blank(line):
            row = pack_empty(BLANK, line)
        elif row is None:
            row = pack_empty(BAD, line)
            odd.append((len(rows) // ROW.size, start, end))
        rows += row
        start = end
    return rows, odd, details


def _row(
    line: bytes,
    decode: Any,
    needs_image: bool,
    tau: float,
    sources: dict[str, int] | None,
    details: bytearray | None,
) -> bytes | None:
    if is_deep(line):
        return None
    try:
        line.decode()
        record = decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    steps, image, original = record.steps_with_score, record.image, record.question_orig
    texts = [step.text for step in steps]
    if (
        not steps
        or not all(map(str.strip, texts))
        or not all(map(_is_consistent, steps))
        or not record.question.strip()
        or (needs_image and not image)
        or (isinstance(image, list) and not (image and all(image)))
        or (sources is not None and not record.source)
        or (details is not None and not isinstance(original, str | None))
    ):
        return None
    source = 0 if sources is None else sources.setdefault(record.source, len(sources))
    scores = [step.score for step in steps]
    n_totals = [step.n_total for step in steps]
    problem = 0
    if details is not None:
        details += _packed(scores)
        images = image if isinstance(image, list) else [image or ""]
        problem = problem_number(original if original and original.strip() else record.question, images)
    return pack_row(texts, scores, n_totals, tau=tau, source=source, n_bytes=len(line), problem=problem)


def _packed(scores: Sequence[float]) -> bytes:
    return array("d", scores).tobytes()


try:
    from mprm.selection._scan import count_rows as count_rows
except ImportError:  # installed without a compiler: the same rows, several times slower
    count_rows = count_rows_python
IS_COMPILED = count_rows is not count_rows_python

COMPILED_FORMATS = {"visualprm-raw": False, "vl-prm": True}
"""Formats that `count_rows` knows, and whether their records name the source."""


@dataclass(frozen=True, slots=True)
class CountTask:
    """A chunk to count."""

    chunk: Chunk
    tau: float
    options: ValidationOptions
    stop_at_bad: bool
    with_details: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """The label counts of a chunk."""

    rows: bytearray
    """One `ROW` a line, bad and blank ones too."""
    sources: tuple[str, ...]
    """Names of the rows' source numbers."""
    bad: tuple[Dropped, ...]
    """Bad records; their ``line`` is that within the chunk, from 0."""
    scores: bytearray
    """Of all steps of the good rows, float64; empty without details."""


def count_labels(task: CountTask) -> Counted:
    """Count the labels of every rollout that begins in the chunk; with ``stop_at_bad``, up to a bad one."""
    counter, chunk = _Counter(task), task.chunk
    if chunk.is_range and chunk.format in COMPILED_FORMATS:
        with mapped(chunk) as data:
            counter.count_fast(data, range_start(data, chunk.start), chunk.stop)
    else:
        for line in lines_of(chunk):
            counter.count(line)
            if counter.is_stopped:
                break
    return Counted(counter.rows, tuple(counter.sources), tuple(counter.bad), counter.scores)


class _Counter:
    """The rows made so far, and the bad lines."""

    def __init__(self, task: CountTask) -> None:
        self.task, self.fmt = task, ROLLOUT_FORMATS[task.chunk.format]
        # a line that holds the forbidden text is not plain, nor one whose letters are written as escapes
        forbids = task.options.forbids or ""
        self.mark = forbids.strip().encode()
        self.first_mark = BEFORE_FIRST_STEP.get(forbids, "").replace("\n", "\\n").encode()
        self.rows, self.scores = bytearray(), bytearray()
        self.bad: list[Dropped] = []
        self.sources: dict[str, int] = {} if COMPILED_FORMATS.get(self.fmt.name) else {task.chunk.source: 0}

    @property
    def is_stopped(self) -> bool:
        return bool(self.bad) and self.task.stop_at_bad

    def count(self, line: bytes) -> None:
        if self.fmt.name in COMPILED_FORMATS:
            self.count_fast(line, 0, len(line))
        else:
            row, scores = self._row(len(self.rows) // ROW.size, line)
            self.rows += row
            self.scores += scores

    def count_fast(self, data: bytes | mmap.mmap, start: int, stop: int) -> None:
        """Count the plain lines of a big format; the others get a closer look."""
        sources = self.sources if COMPILED_FORMATS[self.fmt.name] else None
        needs_image = not self.task.options.text_only
        rows, odd, scores = count_rows(
            data, start, stop, needs_image, self.task.tau, sources, self.mark, self.task.with_details
        )
        if self.first_mark and data.find(self.first_mark, start) >= 0:
            ends = accumulate((n_bytes for *_, n_bytes, _ in ROW.iter_unpack(rows)), initial=start)
            spans = ((index, *span) for index, span in enumerate(pairwise(ends)))
            odd = sorted({*odd, *(span for span in spans if data.find(self.first_mark, *span[1:]) >= 0)})
        first, n_scored, n_seen = len(self.rows) // ROW.size, 0, 0
        for index, begin, end in odd:
            at = slice(index * ROW.size, (index + 1) * ROW.size)
            if self.task.with_details:  # where the line's scores belong, behind those of the lines before it
                n_scored += sum(row[0] for row in ROW.iter_unpack(rows[n_seen * ROW.size : at.start]))
                n_before, n_seen = ROW.unpack(rows[at])[0], index
            rows[at], own = self._row(first + index, data[begin:end])
            if self.task.with_details:
                scores[n_scored * 8 : (n_scored + n_before) * 8] = own
            if self.is_stopped:
                break
        self.rows += rows
        self.scores += scores

    def _row(self, index: int, line: bytes) -> tuple[bytes, bytes]:
        """The row of a line, and the scores of its steps where details are asked for."""
        if is_blank(line):
            return pack_empty(BLANK, line), b""
        issues = Issues()
        rollouts = parse_line(line, self.fmt, self.task.options, issues)
        source = next((rollout.source for rollout in rollouts if rollout.source), None) or self._named_source(line)
        source_number = self.sources.setdefault(source, len(self.sources))
        error = issues.first_error()
        if error is not None:
            self.bad.append(Dropped(self.task.chunk.path, index, source, *error, line))
            return pack_empty(BAD, line, source_number), b""
        (rollout,), wanted = rollouts, self.task.with_details
        row = pack_row(
            [step.text for step in rollout.steps],
            rollout.scores,
            [step.n_total for step in rollout.steps],
            tau=self.task.tau,
            source=source_number,
            n_bytes=len(line),
            problem=problem_number(rollout.question, rollout.images) if wanted else 0,
        )
        return row, _packed(rollout.scores) if wanted else b""

    def _named_source(self, line: bytes) -> str:
        """The source that a record names, even a bad one; else the chunk's."""
        data = decode_record(line) if self.fmt.labels == "mc" else None
        named = data.get("source") if isinstance(data, dict) else None
        return named if isinstance(named, str) and named else self.task.chunk.source


def start_counting(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float,
    stop_at_bad: bool,
    with_details: bool = False,
    count: Callable[[CountTask], Any] = count_labels,
) -> Iterator[Any]:
    """Set the engine to work on the chunks of a `flattened` corpus; what ``count`` makes of each comes in order."""
    tasks = (CountTask(chunk, tau, corpus.options, stop_at_bad, with_details) for chunk in corpus.chunks)
    return engine.map(count, tasks)

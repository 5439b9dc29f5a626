"""Turning some lines of a chunk into records of another format, or taking them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress
from mmap import mmap

import msgspec

from mprm.errors import ConfigError, DataError
from mprm.rollouts.chunks import Chunk, lines_of, mapped
from mprm.rollouts.corpus import CountedLines, rollouts_of
from mprm.rollouts.files import DATA_FILE, Container
from mprm.rollouts.format import Format
from mprm.rollouts.formats import FORMATS, WRITABLE
from mprm.rollouts.mm_prm import append_mm_prm, dump_hard
from mprm.rollouts.problem import ERRORS, Report
from mprm.rollouts.read import Judgement, read_line
from mprm.rollouts.rollout import Rollout

RAW_STEPS = ("visualprm-raw", "vl-prm")
"""Formats whose lines `append_mm_prm` reads."""
TARGETS = (*WRITABLE, "parquet")
"""What ``--to`` takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """What records are turned into."""

    format: str | None
    """Name of the output format; None leaves lines as they are."""
    container: Container
    tau: float = 0.0

    @property
    def needs_mc(self) -> bool:
        """Whether the records must have MC scores."""
        return self.format is not None and FORMATS[self.format].writes == "mc"

    @property
    def keeps_lines(self) -> bool:
        """Whether lines are copied byte for byte."""
        return self.format is None and self.container != "parquet"


def target_for(to: str | None, container: Container, tau: float) -> Target:
    """The target that ``--to`` and the output's name ask for."""
    if to is not None and to not in TARGETS:
        raise ConfigError(f"unknown output format {to!r}; expected one of {', '.join(TARGETS)}")
    if to == "parquet" or container == "parquet":
        if container != "parquet":
            raise ConfigError("Parquet output goes into a file whose name ends in .parquet")
        if to not in (None, "parquet", "visualprm-raw"):
            raise ConfigError(f"Parquet holds records in v1.1-Raw columns; {to} goes into a .jsonl file")
        return Target("visualprm-raw", "parquet", tau)
    return Target(to, container, tau)


def refuse_name(out: str) -> None:
    """Stop when the output's name does not say how it is packed."""
    if not DATA_FILE.search(out):
        raise ConfigError(f"{out}: the name must end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


def output_forbids(to: str | None) -> str | None:
    """Text that no rollout may hold, because the output format ends a step with it."""
    return FORMATS[to].forbids if to in FORMATS else None


def check_tau(tau: float) -> None:
    """Stop when no score could be above tau, or every one is."""
    if not 0 <= tau < 1:
        raise ConfigError(f"tau must be in [0, 1), got {tau}")


def refuse_unholdable(formats: Iterable[tuple[str, Format]], target: Target) -> None:
    """Stop when the target needs MC scores that a file does not have."""
    if not target.needs_mc:
        return
    for path, fmt in formats:
        if fmt.labels == "binary":
            assert target.format is not None
            raise no_mc_scores(path, fmt, target.format)


def no_mc_scores(path: str, fmt: Format, to: str) -> ConfigError:
    """The error for labels that cannot become scores."""
    binary = ", ".join(name for name in WRITABLE if FORMATS[name].writes == "binary")
    unsure = (
        f" (Every score in it is 0 or 1; if they are MC scores, say --format {fmt.name}-soft.)"
        if fmt.labels == "either"
        else ""
    )
    return ConfigError(
        f"{path}: {fmt.title} has binary labels and no MC scores, which {to} needs; it can become {binary}.{unsure}"
    )


@dataclass(frozen=True, slots=True)
class ConvertTask:
    """Some lines of a chunk, and what to make of them."""

    chunk: Chunk
    target: Target
    judgement: Judgement | None
    """None for lines that were judged before."""
    is_kept: bytes | None = None
    """One byte a line, 1 for those to take; None takes all."""
    spans: bytes = b""
    """Instead of ``is_kept`` for a range: the runs of lines to take, as `unpacked` reads them."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the lines."""

    data: bytes
    n_lines: int
    """Lines of the chunk, or of what was taken of it."""
    n_records: int
    """Lines that are not blank."""
    n_rollouts: int
    problems: tuple[tuple[int, str, str], ...] = ()
    """(line within the chunk, kind, text); not looked for when lines are copied as they are."""
    bad_lines: dict[int, bytes] = field(default_factory=dict)
    """The lines that could not be converted."""
    has_soft: bool = False
    """Whether any score lies between 0 and 1; looked at only where the format leaves it open."""


def convert_lines(task: ConvertTask) -> Converted:
    """Take the lines, converted if that was asked for."""
    if task.spans and task.judgement is None and task.target.format == "mm-prm" and task.chunk.format in RAW_STEPS:
        return _mm_prm_lines(task)
    lines = CountedLines(_taken(task))
    if task.target.keeps_lines:
        kept = [line if line.endswith(b"\n") else line + b"\n" for line in lines]
        return Converted(b"".join(kept), lines.n_lines, lines.n_lines, len(kept))
    problems: list[tuple[int, str, str]] = []
    bad_lines: dict[int, bytes] = {}
    is_unknown, has_soft = FORMATS[task.chunk.format].labels == "either", False

    def report_at(number: int) -> Report:
        def report(kind: str, text: str) -> None:
            problems.append((number, kind, text))
            if kind in ERRORS and number == lines.n_lines - 1:
                bad_lines[number] = lines.current

        return report

    def watched() -> Iterator[tuple[Rollout, str | None]]:
        nonlocal has_soft
        for _, rollout in rollouts_of(lines, task.chunk, task.judgement, report_at):
            if is_unknown and not has_soft:
                has_soft = any(0 < step.score < 1 for step in rollout.steps)
            yield rollout, rollout.source or task.chunk.source

    data, n_rollouts = _encoded(watched(), task.target)
    return Converted(
        data, lines.n_lines, lines.n_lines - lines.n_blank, n_rollouts, tuple(problems), bad_lines, has_soft
    )


def _taken(task: ConvertTask) -> Iterator[bytes]:
    if task.is_kept is not None:
        yield from compress(lines_of(task.chunk), task.is_kept)
    elif task.spans:
        with mapped(task.chunk) as data:
            for start, end in _line_spans(data, task.spans):
                yield data[start:end]
    else:
        yield from lines_of(task.chunk)


def unpacked(spans: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of each run, from two 64-bit numbers a run."""
    numbers = memoryview(spans).cast("q")
    return zip(numbers[::2], numbers[1::2], strict=True)


def _line_spans(data: bytes | mmap, spans: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of each line of the runs."""
    for start, end in unpacked(spans):
        place = start
        while place < end:
            line_end = data.find(b"\n", place, end) + 1 or end
            yield place, line_end
            place = line_end


def _mm_prm_lines(task: ConvertTask) -> Converted:
    """Good lines of the big corpora as MM-PRM records, without a Python object for each step."""
    fmt, tau = FORMATS[task.chunk.format], task.target.tau
    records, n_lines, n_rollouts = bytearray(), 0, 0
    with mapped(task.chunk) as data:
        for start, end in _line_spans(data, task.spans):
            n_lines += 1
            if append_mm_prm is not None and append_mm_prm(data, start, end, tau, records):
                n_rollouts += 1
                continue
            for rollout in read_line(data[start:end], fmt, None, _surprise(task.chunk.path)):
                records += msgspec.json.encode(dump_hard(rollout, tau)) + b"\n"
                n_rollouts += 1
    return Converted(bytes(records), n_lines, n_lines, n_rollouts)


def _surprise(path: str) -> Report:
    """Raises: the lines were judged good before."""

    def report(kind: str, text: str) -> None:
        if kind in ERRORS:
            raise DataError(f"{path}: a record changed while it was read: {text}")

    return report


def _encoded(rollouts: Iterable[tuple[Rollout, str | None]], target: Target) -> tuple[bytes, int]:
    if target.container == "parquet":
        return _arrow(rollouts)
    assert target.format is not None
    dump = FORMATS[target.format].dump
    assert dump is not None
    encode_into = msgspec.json.Encoder().encode_into
    # one buffer for all records: many small ones would make the memory grow and shrink all the time
    lines, n_rollouts, tau = bytearray(), 0, target.tau
    for rollout, _ in rollouts:
        encode_into(dump(rollout, tau), lines, -1)
        lines += b"\n"
        n_rollouts += 1
    return bytes(lines), n_rollouts


def _arrow(rollouts: Iterable[tuple[Rollout, str | None]]) -> tuple[bytes, int]:
    import pyarrow as pa

    from mprm.rollouts.frames import arrow_batches, arrow_schema

    buffer, n_rollouts = pa.BufferOutputStream(), 0
    with pa.ipc.new_stream(buffer, arrow_schema()) as stream:
        for batch in arrow_batches(rollouts):
            stream.write_batch(batch)
            n_rollouts += batch.num_rows
    return buffer.getvalue().to_pybytes(), n_rollouts

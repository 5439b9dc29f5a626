"""Turning some lines of a chunk into records of another format, or taking them as they are.

``mprm convert``: a corpus in another format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress
from mmap import mmap
from typing import Any

import msgspec

from mprm.data.corpus import (
    Corpus,
    CountedLines,
    InputHashes,
    Judgement,
    bad_record,
    bytes_by_source,
    check_inputs_kept,
    check_unchanged,
    hash_file,
    open_corpus,
    read_line,
    rollouts_of,
    write_manifest,
)
from mprm.data.engine import EngineName, make_engine
from mprm.data.format import Format
from mprm.data.output import Dropped, DroppedRecords, Sink, atomic_write, check_overwrite, dropped_path, open_sink
from mprm.data.records import DATA_FILE, Chunk, Container, container_of, lines_of, mapped
from mprm.data.rollout_formats import FORMATS, WRITABLE, append_mm_prm, dump_hard
from mprm.data.types import Rollout
from mprm.data.validate import CHECK_ONLY, ERRORS, WARNINGS, Report
from mprm.errors import ConfigError, DataError

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


def check_output_name(out: str) -> None:
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


def check_labels_fit(formats: Iterable[tuple[str, Format]], target: Target) -> None:
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

    from mprm.data.corpus import arrow_batches, arrow_schema

    buffer, n_rollouts = pa.BufferOutputStream(), 0
    with pa.ipc.new_stream(buffer, arrow_schema()) as stream:
        for batch in arrow_batches(rollouts):
            stream.write_batch(batch)
            n_rollouts += batch.num_rows
    return buffer.getvalue().to_pybytes(), n_rollouts


@dataclass(frozen=True, slots=True)
class ConvertSummary:
    """What a conversion read, wrote and left out."""

    out: str
    manifest: str
    n_records: int
    n_rollouts: int
    n_dropped: int
    warnings: dict[str, int]
    """How often each kind of warning was met."""
    dropped_to: str | None


def convert(
    paths: Any,
    out: str,
    *,
    to: str | None = None,
    tau: float = 0.0,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    force: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> ConvertSummary:
    """Write the corpus's rollouts to ``out`` in another format.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    to
        Name of the output format; ``parquet``, or an ``out`` that ends in .parquet, means v1.1-Raw columns.
    tau
        Where the output has binary labels: positive when the score is strictly above it.
    skip_bad
        Write bad records to ``OUT.dropped.jsonl`` instead of stopping at the first.
    """
    out = str(out)
    check_tau(tau)
    check_output_name(out)
    target = target_for(to, container_of(out), tau)
    if target.format is None:
        raise ConfigError("name the output format with --to")
    check_overwrite(out, force=force)
    corpus = open_corpus(paths, format=format, text_only=text_only, forbids=output_forbids(target.format))
    check_labels_fit(corpus.formats.items(), target)
    check_inputs_kept(corpus, [out, dropped_path(out)])
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    hashes = InputHashes(corpus, worker)
    dropped = DroppedRecords()
    progress = _Progress(corpus, dropped if skip_bad else None)
    tasks = (ConvertTask(chunk, target, corpus.judgement) for chunk in corpus.chunks)
    with atomic_write(out) as temporary:
        sink: Sink = open_sink(temporary, target.container)
        try:
            for chunk, converted in zip(corpus.chunks, worker.map(convert_lines, tasks), strict=True):
                progress.add(chunk, converted)
                sink.write(converted.data)
                if on_chunk is not None:
                    on_chunk(chunk)
        finally:
            sink.close()
        progress.check_soft_labels(target)
        check_unchanged(corpus)
        dropped_to = None
        if len(dropped):
            dropped_to = dropped_path(out)
            check_overwrite(dropped_to, force=force)
            dropped.write(dropped_to)
        manifest = write_manifest(
            out,
            command="convert",
            config={
                "to": target.format,
                "tau": tau,
                "skip_bad": skip_bad,
                "text_only": corpus.judgement.text_only,
            },
            inputs=hashes.entries(),
            sources=progress.by_source(),
            output={
                "path": out,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "n_rollouts": progress.n_rollouts,
                "source_bytes": bytes_by_source(progress.sizes) if target.container == "plain" else None,
            },
        )
    return ConvertSummary(
        out, manifest, progress.n_records, progress.n_rollouts, len(dropped), progress.warnings, dropped_to
    )


class _Progress:
    """Counts what the chunks gave, and knows the line number of every problem."""

    def __init__(self, corpus: Corpus, dropped: DroppedRecords | None) -> None:
        self.n_records = self.n_rollouts = 0
        self.warnings: dict[str, int] = {}
        self.sizes: list[tuple[str, int]] = []
        """(source, bytes written) of each chunk."""
        self._corpus, self._dropped = corpus, dropped
        self._path, self._line = "", 1
        self._soft: dict[str, bool] = {}
        self._counted: list[tuple[str, int, int]] = []

    def add(self, chunk: Chunk, converted: Converted) -> None:
        if chunk.path != self._path:
            self._path, self._line = chunk.path, 1
        told: set[int] = set()
        for number, kind, text in converted.problems:
            if kind in WARNINGS:
                self.warnings[kind] = self.warnings.get(kind, 0) + 1
            elif kind not in CHECK_ONLY and number not in told:
                told.add(number)
                self._drop(chunk, self._line + number, kind, text, converted.bad_lines.get(number, b""))
        self._line += converted.n_lines
        self.sizes.append((chunk.source, len(converted.data)))
        self._counted.append((chunk.source, converted.n_records, converted.n_rollouts))
        self.n_records += converted.n_records
        self.n_rollouts += converted.n_rollouts
        self._soft[chunk.path] = self._soft.get(chunk.path, False) or converted.has_soft

    def by_source(self) -> dict[str, dict[str, Any]]:
        """Of the files of each source: records read and dropped, and rollouts written."""
        found: dict[str, dict[str, Any]] = {}
        for source, n_records, n_rollouts in self._counted:
            entry = found.setdefault(source, {"read": 0, "rollouts": 0, "dropped": 0, "reasons": {}})
            entry["read"] += n_records
            entry["rollouts"] += n_rollouts
        for source, kinds in (self._dropped.counts if self._dropped is not None else {}).items():
            found[source].update(dropped=sum(kinds.values()), reasons=kinds)
        return found

    def _drop(self, chunk: Chunk, line: int, kind: str, text: str, record: bytes) -> None:
        if self._dropped is None:
            raise bad_record(chunk.path, line, kind, text)
        self._dropped(Dropped(chunk.path, line, chunk.source, kind, text, record))

    def check_soft_labels(self, target: Target) -> None:
        """Stop when MC scores were asked for and a file turned out to hold only 0 and 1."""
        if not target.needs_mc:
            return
        for path, fmt in self._corpus.formats.items():
            if fmt.labels == "either" and not self._soft.get(path, False):
                assert target.format is not None
                raise no_mc_scores(path, fmt, target.format)

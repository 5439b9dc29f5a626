"""``mprm convert``: a corpus in another format. `convert_lines` and `copy_spans` also write what `mprm select` keeps.

Workers of `mprm select` need nothing but this file, which loads without numpy.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress, islice
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec

from mprm.config import OUTPUT_FORMATS, CorpusOptions, EngineOptions, Force, Option, Tau, nearest, takes
from mprm.data.corpus import (
    CountedLines,
    arrow_batches,
    arrow_schema,
    bytes_by_source,
    drop_or_raise,
    open_corpus,
    parse_line,
    parse_lines,
)
from mprm.data.engine import make_engine
from mprm.data.output import (
    MANIFEST_SUFFIX,
    Dropped,
    DroppedRecords,
    InputHashes,
    Outputs,
    check_not_inputs,
    check_output_name,
    dropped_path,
    output_entry,
    unchanged,
    writing,
)
from mprm.data.records import Chunk, Container, container_of, lines_of, mapped
from mprm.data.rollout_formats import ROLLOUT_FORMATS, WRITABLE, RolloutFormat, append_mm_prm, write_mm_prm
from mprm.data.types import CHECK_ONLY, ERRORS, WARNINGS, Issues, Rollout, ValidationOptions, location
from mprm.errors import ConfigError, DataError
from mprm.progress import Progress, silent

RAW_STEPS = ("visualprm-raw", "vl-prm")
"""Formats whose lines `append_mm_prm` reads."""


@dataclass(frozen=True, slots=True)
class Target:
    """What records are converted to."""

    format: str | None
    """Name of the output format; None leaves lines as they are."""
    container: Container
    tau: float = 0.0

    @property
    def needs_mc(self) -> bool:
        """Whether the records must have MC scores."""
        return self.format is not None and ROLLOUT_FORMATS[self.format].labels == "mc"

    @property
    def keeps_lines(self) -> bool:
        """Whether lines are copied byte for byte."""
        return self.format is None and self.container != "parquet"


def target_for(to: str | None, container: Container, tau: float) -> Target:
    """The target that ``--to`` and the output's name ask for."""
    if to is not None and to not in OUTPUT_FORMATS:
        raise ConfigError(f"unknown output format {to!r}; {nearest(to, OUTPUT_FORMATS)}")
    if to == "parquet" or container == "parquet":
        if container != "parquet":
            raise ConfigError("Parquet output goes into a file whose name ends in .parquet")
        if to not in (None, "parquet", "visualprm-raw"):
            raise ConfigError(f"Parquet holds records in v1.1-Raw columns; {to} goes into a .jsonl file")
        return Target("visualprm-raw", "parquet", tau)
    return Target(to, container, tau)


def output_forbids(to: str | None) -> str | None:
    """Text that no rollout may hold, because the output format ends a step with it."""
    return ROLLOUT_FORMATS[to].forbids if to in ROLLOUT_FORMATS else None


def output_needs_image(to: str | None) -> bool:
    """Whether every rollout must have an image, because the output format is one of images."""
    return to == "parquet" or (to is not None and ROLLOUT_FORMATS[to].has_images)


def check_labels_fit(formats: Iterable[tuple[str, RolloutFormat]], target: Target) -> None:
    """Stop when the target needs MC scores that a file does not have."""
    for path, fmt in formats if target.needs_mc else ():
        if fmt.labels == "binary":
            raise no_mc_scores(path, fmt, target)


def no_mc_scores(path: str, fmt: RolloutFormat, target: Target) -> ConfigError:
    """The error for labels that cannot become scores."""
    binary = ", ".join(name for name in WRITABLE if ROLLOUT_FORMATS[name].labels != "mc")
    hint = f" (Every score in it is 0 or 1; if they are MC scores, say --format {fmt.name}-soft.)"
    return ConfigError(
        f"{location(path)}: {fmt.name} has binary labels and no MC scores, which {target.format} needs; it can"
        f" become {binary}.{hint if fmt.labels == 'either' else ''}"
    )


@dataclass(frozen=True, slots=True)
class ConvertTask:
    """Some lines of a chunk, and what to make of them."""

    chunk: Chunk
    target: Target
    options: ValidationOptions | None
    """None for lines that were validated before."""
    is_kept: bytes | None = None
    """One byte a line, 1 for those to take; None takes all."""
    spans: bytes = b""
    """Instead of ``is_kept`` for a range: the runs of lines to take, as `unpack_spans` reads them."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the lines."""

    data: bytes
    n_lines: int
    """Lines of the chunk, or of what was taken of it."""
    n_records: int
    """Lines that are not blank."""
    n_rollouts: int
    issues: tuple[tuple[int, str, str], ...] = ()
    """(line within the chunk, kind, text); not looked for when lines are copied as they are."""
    bad_lines: dict[int, bytes] = field(default_factory=dict)
    """The lines that could not be converted."""
    has_soft: bool = False
    """Whether any score lies between 0 and 1; looked at only where the format leaves it open."""


def convert_lines(task: ConvertTask) -> Converted:
    """The task's lines, converted if that was asked for."""
    chunk, target = task.chunk, task.target
    if task.spans and task.options is None and target.format == "mm-prm" and chunk.format in RAW_STEPS:
        return _mm_prm_lines(task)
    lines = CountedLines(_lines_of_task(task))
    if target.keeps_lines:
        kept = [line if line.endswith(b"\n") else line + b"\n" for line in lines]
        return Converted(b"".join(kept), lines.n_lines, lines.n_lines, len(kept))
    issues: list[tuple[int, str, str]] = []
    bad_lines: dict[int, bytes] = {}
    is_unknown, has_soft = ROLLOUT_FORMATS[chunk.format].labels == "either", False

    def rollouts() -> Iterator[tuple[Rollout, str | None]]:
        nonlocal has_soft
        for parsed in parse_lines(lines, chunk, task.options):
            issues.extend((parsed.number, *issue) for issue in parsed.issues)
            if parsed.issues.first_error() is not None:
                bad_lines[parsed.number] = parsed.raw
            for rollout in parsed.rollouts:
                if is_unknown and not has_soft:
                    has_soft = any(0 < step.score < 1 for step in rollout.steps)
                yield rollout, rollout.source or chunk.source

    data, n_rollouts = _encode(rollouts(), target)
    n_records = lines.n_lines - lines.n_blank
    return Converted(data, lines.n_lines, n_records, n_rollouts, tuple(issues), bad_lines, has_soft)


def _lines_of_task(task: ConvertTask) -> Iterator[bytes]:
    if task.is_kept is not None:
        yield from compress(lines_of(task.chunk), task.is_kept)
    elif task.spans:
        with mapped(task.chunk) as data:
            for start, end in _line_spans(data, task.spans):
                yield data[start:end]
    else:
        yield from lines_of(task.chunk)


def unpack_spans(spans: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of each run, from two 64-bit numbers a run."""
    numbers = memoryview(spans).cast("q")
    return zip(numbers[::2], numbers[1::2], strict=True)


def _line_spans(data: bytes | mmap, spans: bytes) -> Iterator[tuple[int, int]]:
    """First byte and end of each line of the runs."""
    for start, end in unpack_spans(spans):
        while start < end:
            line_end = data.find(b"\n", start, end) + 1 or end
            yield start, line_end
            start = line_end


RUNS_AT_ONCE = 64
"""Runs handed to the system in one call; it takes 1,024."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """What to copy where."""

    chunk: Chunk
    spans: bytes
    """The runs of lines, as `unpack_spans` reads them."""
    out: str
    offset: int
    """Position in ``out`` of the first run; the others follow it."""


def copy_spans(task: CopyTask) -> None:
    """Copy the runs; doing it twice changes nothing.

    A last line without a line end gets none here: the writer leaves room for one.
    """
    with mapped(task.chunk) as data, writing(task.out), io.FileIO(task.out, "r+") as out:
        out.seek(task.offset)
        runs = unpack_spans(task.spans)
        with memoryview(data) as view:
            while views := [view[start:end] for start, end in islice(runs, RUNS_AT_ONCE)]:
                try:
                    _write_all(out, views)
                finally:
                    for run in views:
                        run.release()  # a full disk must not be hidden by a view that is still held


def _write_all(out: io.FileIO, views: list[memoryview]) -> None:
    """Write all of the views, straight from the mapped file where the system can."""
    n_bytes = sum(map(len, views))
    n_written = os.writev(out.fileno(), views) if hasattr(os, "writev") else 0
    if n_written < n_bytes:
        rest = memoryview(b"".join(views))[n_written:]
        while rest:
            rest = rest[out.write(rest) or 0 :]


def _mm_prm_lines(task: ConvertTask) -> Converted:
    """Good lines of the big corpora as MM-PRM records, without a Python object for each step."""
    fmt, tau = ROLLOUT_FORMATS[task.chunk.format], task.target.tau
    records, n_lines, n_rollouts = bytearray(), 0, 0
    with mapped(task.chunk) as data:
        for start, end in _line_spans(data, task.spans):
            n_lines += 1
            if append_mm_prm is not None and append_mm_prm(data, start, end, tau, records):
                n_rollouts += 1
                continue
            issues = Issues()
            for rollout in parse_line(data[start:end], fmt, None, issues):
                records += msgspec.json.encode(write_mm_prm(rollout, tau)) + b"\n"
                n_rollouts += 1
            check_still_good(task.chunk.path, issues)
    return Converted(bytes(records), n_lines, n_lines, n_rollouts)


def check_still_good(path: str, issues: Iterable[tuple[str, str]]) -> None:
    """Stop when a record that was validated before has an error: the file was changed since."""
    for kind, text in issues:
        if kind in ERRORS and kind not in CHECK_ONLY:
            raise DataError(f"{path}: a record changed while it was read: {text}")


def _encode(rollouts: Iterable[tuple[Rollout, str | None]], target: Target) -> tuple[bytes, int]:
    """(the rollouts as JSON lines, or as an Arrow stream for Parquet; their number)."""
    n_rollouts = 0
    if target.container == "parquet":
        import pyarrow as pa

        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, arrow_schema()) as stream:
            for batch in arrow_batches(rollouts):
                stream.write_batch(batch)
                n_rollouts += batch.num_rows
        return buffer.getvalue().to_pybytes(), n_rollouts
    write = ROLLOUT_FORMATS[target.format or ""].write
    assert write is not None
    encode_into = msgspec.json.Encoder().encode_into
    # one buffer for all records: many small ones would make the memory grow and shrink all the time
    lines, tau = bytearray(), target.tau
    for rollout, _ in rollouts:
        encode_into(write(rollout, tau), lines, -1)
        lines += b"\n"
        n_rollouts += 1
    return bytes(lines), n_rollouts


@contextmanager
def open_sink(path: Path, container: Container) -> Iterator[Any]:
    """A file to ``write`` what `convert_lines` makes to, in order: JSON lines, or Arrow streams for Parquet."""
    with ExitStack() as stack:
        if container == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            writer = stack.enter_context(pq.ParquetWriter(path, arrow_schema(), compression="zstd"))
            yield SimpleNamespace(write=lambda data: data and writer.write_table(pa.ipc.open_stream(data).read_all()))
            return
        out: Any = stack.enter_context(path.open("wb"))
        if container == "gz":
            import gzip

            # no name and no time in the header: the same records give the same bytes
            out = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0))
        elif container == "zst":
            import zstandard

            out = stack.enter_context(zstandard.ZstdCompressor().stream_writer(out, closefd=False))
        yield out


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(CorpusOptions, EngineOptions):
    """Convert a corpus to another format."""

    to: Annotated[
        str | None,
        Option(
            f"Output format: {', '.join(OUTPUT_FORMATS)}. A name that ends in .parquet means parquet.",
            "FORMAT",
            group="output",
        ),
    ] = None
    tau: Tau = 0.0
    force: Force = False


@dataclass(frozen=True, slots=True)
class ConvertSummary:
    """What a conversion read, wrote and dropped."""

    out: str
    manifest: str
    n_records: int
    n_rollouts: int
    n_dropped: int
    warnings: dict[str, int]
    """How often each kind of warning occurred."""
    dropped_to: str | None


@takes(ConvertConfig)
def convert(
    paths: Any, out: str, config: ConvertConfig | None = None, *, progress: Progress = silent, **options: Any
) -> ConvertSummary:
    """Write the corpus's rollouts to ``out`` in another format.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    out
        File whose name ends in .jsonl, .jsonl.gz, .jsonl.zst or .parquet (v1.1-Raw columns).
    config, options
        See `ConvertConfig`. With ``skip_bad``, bad records go to ``OUT.dropped.jsonl``.
    """
    config = ConvertConfig.of(config, options)
    out = str(out)
    check_output_name(out)
    target = target_for(config.to, container_of(out), config.tau)
    if target.format is None:
        raise ConfigError("name the output format with --to")
    with Outputs(out, force=config.force) as outputs:
        corpus = open_corpus(
            paths,
            format=config.format,
            map=config.map,
            text_only=config.text_only,
            forbids=output_forbids(target.format),
            needs_image=output_needs_image(target.format),
        )
        check_labels_fit(corpus.formats.items(), target)
        check_not_inputs([file.path for file in corpus.files], [out, out + MANIFEST_SUFFIX, dropped_path(out)])
        engine = make_engine(config, n_bytes=corpus.n_bytes)
        hashes = InputHashes(corpus.files, engine)
        dropped = DroppedRecords()
        totals = _Totals(dropped if config.skip_bad else None)
        tasks = (ConvertTask(chunk, target, corpus.options) for chunk in corpus.chunks)
        temporary = outputs.add(out)
        with (
            unchanged(corpus.files),
            progress("converting", corpus.n_bytes, "bytes") as advance,
            open_sink(temporary, target.container) as sink,
        ):
            for chunk, converted in zip(corpus.chunks, engine.map(convert_lines, tasks), strict=True):
                totals.add(chunk, converted)
                sink.write(converted.data)
                advance(chunk.n_bytes)
        for path, fmt in corpus.formats.items() if target.needs_mc else ():
            if fmt.labels == "either" and path not in totals.soft_files:
                raise no_mc_scores(path, fmt, target)
        dropped_to = dropped.write_beside(out, outputs)
        output = output_entry(out, temporary, totals.total("rollouts"))
        output["source_bytes"] = bytes_by_source(totals.sizes) if target.container == "plain" else None
        manifest = outputs.add_manifest(
            out,
            command="convert",
            config={
                "to": target.format,
                "tau": config.tau,
                "skip_bad": config.skip_bad,
                "map": config.map,
                "text_only": corpus.options.text_only,
            },
            inputs=corpus.manifest_entries(hashes),
            sources=totals.sources,
            output=output,
        )
    n_records, n_rollouts = totals.total("read"), totals.total("rollouts")
    return ConvertSummary(out, manifest, n_records, n_rollouts, len(dropped), totals.warnings, dropped_to)


class _Totals:
    """Adds up what the chunks gave, and knows the line number of every issue."""

    def __init__(self, dropped: DroppedRecords | None) -> None:
        self.warnings: dict[str, int] = {}
        self.sizes: list[tuple[str, int]] = []
        """(source, bytes written) of each chunk."""
        self.sources: dict[str, dict[str, Any]] = {}
        """Of the files of each source: records read and dropped, and rollouts written."""
        self.soft_files: set[str] = set()
        """Files with a score between 0 and 1."""
        self._dropped = dropped
        self._path, self._line = "", 1

    def add(self, chunk: Chunk, converted: Converted) -> None:
        if chunk.path != self._path:
            self._path, self._line = chunk.path, 1
        entry = self.sources.setdefault(chunk.source, {"read": 0, "rollouts": 0, "dropped": 0, "reasons": {}})
        entry["read"] += converted.n_records
        entry["rollouts"] += converted.n_rollouts
        bad: set[int] = set()
        for index, kind, text in converted.issues:
            if kind in WARNINGS:
                self.warnings[kind] = self.warnings.get(kind, 0) + 1
            elif kind not in CHECK_ONLY and index not in bad:
                bad.add(index)
                line = converted.bad_lines.get(index, b"")
                drop_or_raise(Dropped(chunk.path, self._line + index, chunk.source, kind, text, line), self._dropped)
                entry["dropped"] += 1
                entry["reasons"][kind] = entry["reasons"].get(kind, 0) + 1
        self._line += converted.n_lines
        self.sizes.append((chunk.source, len(converted.data)))
        if converted.has_soft:
            self.soft_files.add(chunk.path)

    def total(self, key: str) -> int:
        return sum(entry[key] for entry in self.sources.values())

"""``mprm convert``: a corpus in another format. `convert_lines` and `copy_spans` also write what `mprm select` keeps.

Workers of `mprm select` need nothing but this file, which loads without numpy.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress, islice
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec

from mprm.config import OUTPUT_FORMATS, CorpusOptions, Force, ScanOptions, Tau, nearest, output, takes
from mprm.data.corpus import (
    Corpus,
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
from mprm.data.types import WARNINGS, Issues, Rollout, ValidationOptions, location
from mprm.errors import ConfigError
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


def open_for(to: str | None, paths: Any, config: CorpusOptions) -> Corpus:
    """The corpus, to be validated also by what rollouts in the format ``to`` need and must not hold."""
    fmt = ROLLOUT_FORMATS.get("visualprm-raw" if to == "parquet" else to or "")
    return open_corpus(
        paths,
        **config.reading(),
        forbids=None if fmt is None else fmt.forbids,
        needs_image=fmt is not None and fmt.has_images,
    )


def check_labels_fit(
    formats: Mapping[str, RolloutFormat], target: Target, soft_files: set[str] | None = None
) -> None:
    """Stop when the target needs MC scores that a file does not have.

    ``soft_files`` have a score between 0 and 1; None before the files are read.
    """
    for path, fmt in formats.items() if target.needs_mc else ():
        is_hard = fmt.labels == "either" and soft_files is not None and path not in soft_files
        if is_hard or fmt.labels == "binary":
            binary = ", ".join(name for name in WRITABLE if ROLLOUT_FORMATS[name].labels != "mc")
            hint = f" (Every score in it is 0 or 1; if they are MC scores, say --format {fmt.name}-soft.)"
            raise ConfigError(
                f"{location(path)}: {fmt.name} has binary labels and no MC scores, which {target.format} needs; it"
                f" can become {binary}.{hint if is_hard else ''}"
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
    n_rollouts: int
    n_blank: int = 0
    bad: Sequence[tuple[int, str, str, bytes]] = ()
    """(line within the chunk, kind, text, line itself) of each record that cannot be used."""
    warnings: Counter[str] = field(default_factory=Counter)
    """How often each kind of warning occurred."""
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
        return Converted(b"".join(kept), lines.n_lines, len(kept))
    bad: list[tuple[int, str, str, bytes]] = []
    warnings = Counter[str]()
    is_unknown, has_soft = ROLLOUT_FORMATS[chunk.format].labels == "either", False

    def rollouts() -> Iterator[tuple[Rollout, str | None]]:
        nonlocal has_soft
        for parsed in parse_lines(lines, chunk, task.options):
            for kind, _ in parsed.issues:
                if kind in WARNINGS:
                    warnings[kind] += 1
            error = parsed.issues.first_error()
            if error is not None:
                bad.append((parsed.number, *error, parsed.raw))
            for rollout in parsed.rollouts:
                if is_unknown and not has_soft:
                    has_soft = any(0 < step.score < 1 for step in rollout.steps)
                yield rollout, rollout.source or chunk.source

    data, n_rollouts = _encode(rollouts(), target)
    return Converted(data, lines.n_lines, n_rollouts, lines.n_blank, bad, warnings, has_soft)


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


def copy_spans(task: tuple[Chunk, bytes, str, int]) -> None:
    """Copy the runs of a chunk, as `unpack_spans` reads them, to a position in a file, one after the other.

    Doing it twice changes nothing. A last line without a line end gets none here: the writer leaves room for one.
    """
    chunk, spans, path, offset = task
    with mapped(chunk) as data, writing(path), io.FileIO(path, "r+") as out:
        out.seek(offset)
        runs = unpack_spans(spans)
        with memoryview(data) as view:
            while views := [view[start:end] for start, end in islice(runs, 64)]:  # the system takes 1,024 in a call
                try:
                    _write_all(out, views)
                finally:
                    for run in views:
                        run.release()  # a full disk must not be hidden by a view that is still held


def _write_all(out: io.FileIO, views: list[memoryview]) -> None:
    """Write all of the views, straight from the mapped file as far as the system takes them."""
    n_written = os.writev(out.fileno(), views)
    if n_written < sum(map(len, views)):
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
            rollouts = parse_line(data[start:end], fmt, None, issues)
            for rollout in rollouts if issues.first_error() is None else ():
                records += msgspec.json.encode(write_mm_prm(rollout, tau)) + b"\n"
                n_rollouts += 1
    return Converted(bytes(records), n_lines, n_rollouts)


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
class ConvertConfig(ScanOptions):
    """Convert a corpus to another format."""

    to: Annotated[
        str | None,
        output(f"Output format: {', '.join(OUTPUT_FORMATS)}. A name that ends in .parquet means parquet.", "FORMAT"),
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
    """Write the rollouts of a corpus, which is whatever `mprm.open_corpus` takes, to ``out`` in another format.

    Its name ends in .jsonl, .jsonl.gz, .jsonl.zst or .parquet (v1.1-Raw columns). The options are those of
    `ConvertConfig`; with ``skip_bad``, bad records go to ``OUT.dropped.jsonl``.
    """
    config, out = ConvertConfig.of(config, options), str(out)
    check_output_name(out)
    target = target_for(config.to, container_of(out), config.tau)
    if target.format is None:
        raise ConfigError("name the output format with --to")
    dropped, warnings, sizes = DroppedRecords(), Counter[str](), list[tuple[str, int]]()
    n_records, n_rollouts = Counter[str](), Counter[str]()  # of each source
    soft_files: set[str] = set()
    n_lines = Counter[str]()  # read of each file
    with Outputs(out, force=config.force) as outputs:
        corpus = open_for(target.format, paths, config)
        check_labels_fit(corpus.formats, target)
        check_not_inputs([file.path for file in corpus.files], [out, out + MANIFEST_SUFFIX, dropped_path(out)])
        engine = make_engine(config, n_bytes=corpus.n_bytes)
        hashes = InputHashes(corpus.files, engine)
        tasks = (ConvertTask(chunk, target, corpus.options) for chunk in corpus.chunks)
        temporary = outputs.add(out)
        with (
            unchanged(corpus.files),
            progress("converting", corpus.n_bytes, "bytes") as advance,
            open_sink(temporary, target.container) as sink,
        ):
            for chunk, converted in zip(corpus.chunks, engine.map(convert_lines, tasks), strict=True):
                for index, kind, text, line in converted.bad:
                    number = n_lines[chunk.path] + 1 + index
                    bad = Dropped(chunk.path, number, chunk.source, kind, text, line)
                    drop_or_raise(bad, dropped if config.skip_bad else None)
                n_lines[chunk.path] += converted.n_lines
                n_records[chunk.source] += converted.n_lines - converted.n_blank
                n_rollouts[chunk.source] += converted.n_rollouts
                warnings += converted.warnings
                sizes.append((chunk.source, len(converted.data)))
                if converted.has_soft:
                    soft_files.add(chunk.path)
                sink.write(converted.data)
                advance(chunk.n_bytes)
        check_labels_fit(corpus.formats, target, soft_files)
        dropped_to = dropped.write_beside(out, outputs)
        entry = output_entry(out, temporary, n_rollouts=n_rollouts.total())
        entry["source_bytes"] = bytes_by_source(sizes) if target.container == "plain" else None
        manifest = outputs.add_manifest(
            out,
            command="convert",
            config={
                "to": target.format,
                **config.as_dict("tau", "skip_bad", "map"),
                "text_only": corpus.options.text_only,
            },
            inputs=corpus.manifest_entries(hashes),
            sources={
                source: {"read": n_read, "rollouts": n_rollouts[source], **dropped.reasons(source)}
                for source, n_read in n_records.items()
            },
            output=entry,
        )
    return ConvertSummary(
        out, manifest, n_records.total(), n_rollouts.total(), len(dropped), dict(warnings), dropped_to
    )

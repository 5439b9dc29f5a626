"""``mprm convert``: a corpus in another format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mprm.engines.engine import EngineName, make_engine
from mprm.errors import ConfigError
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.convert_lines import (
    Converted,
    ConvertTask,
    Target,
    check_tau,
    convert_lines,
    no_mc_scores,
    output_forbids,
    refuse_name,
    refuse_unholdable,
    target_for,
)
from mprm.rollouts.corpus import Corpus, bad_record, open_corpus
from mprm.rollouts.dropped import Dropped, DroppedRecords, dropped_path
from mprm.rollouts.files import container_of
from mprm.rollouts.manifest import InputHashes, hash_file, refuse_changed, refuse_input_as_output, write_manifest
from mprm.rollouts.problem import CHECK_ONLY, WARNINGS
from mprm.rollouts.sink import Sink, open_sink
from mprm.rollouts.source_ranges import bytes_by_source


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
    refuse_name(out)
    target = target_for(to, container_of(out), tau)
    if target.format is None:
        raise ConfigError("name the output format with --to")
    refuse_existing(out, force=force)
    corpus = open_corpus(paths, format=format, text_only=text_only, forbids=output_forbids(target.format))
    refuse_unholdable(corpus.formats.items(), target)
    refuse_input_as_output(corpus, [out, dropped_path(out)])
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
        progress.refuse_hard_labels(target)
        refuse_changed(corpus)
        dropped_to = None
        if len(dropped):
            dropped_to = dropped_path(out)
            refuse_existing(dropped_to, force=force)
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

    def refuse_hard_labels(self, target: Target) -> None:
        """Stop when MC scores were asked for and a file turned out to hold only 0 and 1."""
        if not target.needs_mc:
            return
        for path, fmt in self._corpus.formats.items():
            if fmt.labels == "either" and not self._soft.get(path, False):
                assert target.format is not None
                raise no_mc_scores(path, fmt, target.format)

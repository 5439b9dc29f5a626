"""The subsets chosen from a corpus, and writing them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from mprm.config import StrategyName
from mprm.data.convert import (
    Converted,
    ConvertTask,
    CopyTask,
    Target,
    check_labels_fit,
    check_still_good,
    convert_lines,
    copy_spans,
    no_mc_scores,
    open_sink,
    target_for,
)
from mprm.data.corpus import Corpus, arrow_table, as_pandas, bytes_by_source, parse_lines
from mprm.data.engine import Engine
from mprm.data.output import (
    DroppedRecords,
    InputHashes,
    atomic_write,
    check_not_inputs,
    check_output_name,
    check_overwrite,
    check_unchanged,
    dropped_path,
    output_entry,
    write_manifest,
)
from mprm.data.records import Container, container_of, is_url, lines_of
from mprm.data.types import Rollout
from mprm.errors import ConfigError, DataError
from mprm.progress import Advance, Progress, silent
from mprm.selection.scan import BLANK, ROLLOUT
from mprm.selection.select import SelectConfig
from mprm.selection.stats import BoolArray, LabelCounts, Part, Rows, Statistics, statistics_by_source, total
from mprm.selection.strategies import keep_top

STORED_OPTIONS = (
    "strategy",
    "rho",
    "keep",
    "source_rho",
    "alpha",
    "tau",
    "seed",
    "ties",
    "pool",
    "to",
    "skip_bad",
    "map",
)
"""Options that a subset depends on, and its manifest holds."""


@dataclass(frozen=True, slots=True)
class Subset:
    """What one strategy keeps at one rho."""

    strategy: StrategyName
    rho: float | None
    keep: int | None
    kept: BoolArray
    """Which rows of the label counts are kept."""
    statistics: dict[str, Statistics]
    """Of the kept rollouts, by source."""

    @property
    def name(self) -> str:
        """Strategy and size: the file's name under ``--out-dir``."""
        return f"{self.strategy}-{self.rho if self.rho is not None else self.keep}"


@dataclass(frozen=True, slots=True)
class Written:
    """One written subset."""

    subset: Subset = field(repr=False)
    paths: tuple[str, ...]
    manifest: str


class Selection:
    """The subsets chosen from a corpus, ready to be looked at or written."""

    def __init__(
        self, corpus: Corpus, counts: LabelCounts, config: SelectConfig, dropped: DroppedRecords, engine: Engine
    ) -> None:
        self.corpus, self.counts, self.config, self.dropped = corpus, counts, config, dropped
        self._engine = engine
        self._hashes = InputHashes(corpus.files, engine)  # set to work here: the workers have nothing else to do now
        self.dropped_to: str | None = None
        """Where the bad records were written, once they were."""
        self.statistics = statistics_by_source(counts, alpha=config.alpha)
        """Of all good rollouts, by source."""
        self.subsets = tuple(self._choose())

    def _choose(self) -> Iterator[Subset]:
        config = self.config
        for source in config.rho_of_source():
            if source not in self.counts.sources:
                raise ConfigError(f"source_rho names {source!r}; the sources are {', '.join(self.counts.sources)}")
        for strategy, rho in itertools.product(config.strategy, config.rho if config.keep is None else (None,)):

            def n_keep(source: str | None, n: int, rho: float | None = rho) -> int:
                return config.n_keep(rho, source, n)

            kept = keep_top(
                self.counts,
                strategy,
                n_keep,
                alpha=config.alpha,
                seed=config.seed,
                by_file_order=config.ties == "file-order",
                pool=config.pool,
            )
            statistics = statistics_by_source(self.counts, alpha=config.alpha, is_kept=kept)
            yield Subset(strategy, rho, config.keep, kept, statistics)

    @property
    def n_read(self) -> int:
        """Records read, good and bad."""
        return total(self.statistics).n_rollouts + len(self.dropped)

    def __repr__(self) -> str:
        kept = ", ".join(f"{s.name}: {total(s.statistics).n_rollouts:,}" for s in self.subsets)
        return f"Selection({kept} of {self.n_read:,} read, {len(self.dropped):,} dropped)"

    def __len__(self) -> int:
        return sum(total(subset.statistics).n_rollouts for subset in self.subsets)

    @property
    def indices(self) -> NDArray[np.intp]:
        """Row numbers of the kept rollouts of the only subset, from 0, in corpus order.

        Every record counts, the bad ones too, and blank lines do not: a corpus that came as a frame is cut down by
        ``frame.iloc[selection.indices]``.
        """
        is_record = self.counts.rows["kind"] != BLANK
        return np.flatnonzero(self._only_subset("indices").kept[is_record])

    def to_pandas(self) -> Any:
        """The kept rollouts of the only subset as a pandas frame, as `mprm.Corpus.to_pandas` makes one."""
        return as_pandas(arrow_table(self._kept_rollouts(self._only_subset("to_pandas"))))

    def _only_subset(self, wanted: str) -> Subset:
        if len(self.subsets) != 1:
            names = ", ".join(subset.name for subset in self.subsets)
            raise ConfigError(
                f"{wanted} is of one subset, and there are {len(self.subsets)}: {names}; select with one strategy and"
                " one rho, or look at selection.subsets"
            )
        return self.subsets[0]

    def _kept_rollouts(self, subset: Subset) -> Iterator[tuple[Rollout, str]]:
        """The kept rollouts with their sources; only their lines are parsed."""
        for part in self.counts.parts:
            is_kept = subset.kept[part.first_row : part.first_row + part.n_rows]
            if is_kept.any():
                lines = itertools.compress(lines_of(part.chunk), is_kept)
                for parsed in parse_lines(lines, part.chunk, None):
                    yield from ((rollout, rollout.source or part.chunk.source) for rollout in parsed.rollouts)

    def by_source(self, subset: Subset) -> dict[str, dict[str, Any]]:
        """For each source, how many records were read, kept, left and dropped, and why."""
        accounts = {}
        for source in self.counts.sources:
            n_good, n_kept = self.statistics[source].n_rollouts, subset.statistics[source].n_rollouts
            accounts[source] = self.dropped.account(source, n_kept=n_kept, n_left=n_good - n_kept)
        return accounts

    def write(self, out: str, *, force: bool = False, progress: Progress = silent) -> Written:
        """Write the one subset to a file, with its manifest and what was dropped beside it.

        The name says how it is packed: .jsonl, .jsonl.gz, .jsonl.zst or .parquet.
        """
        if len(self.subsets) != 1:
            raise ConfigError(f"there are {len(self.subsets)} subsets; write them to a folder with write_all")
        out = str(out)
        check_output_name(out)
        self._check_outputs([out], dropped_path(out), container_of(out), force=force)
        with progress("writing", self.corpus.n_bytes, "bytes") as advance:
            written = self._write_file(self.subsets[0], out, advance)
        self._write_dropped(dropped_path(out))
        return written

    def write_all(
        self, folder: str, *, by_source: bool = False, force: bool = False, progress: Progress = silent
    ) -> list[Written]:
        """Write every subset to ``folder``, one file each, or one folder each with a file a source."""
        folder, suffix = str(folder).rstrip("/"), ".parquet" if self.config.to == "parquet" else ".jsonl"
        outs = [f"{folder}/{subset.name}" + ("" if by_source else suffix) for subset in self.subsets]
        files = [f"{out}/{_file_name(s)}{suffix}" for out in outs for s in self.counts.sources] if by_source else outs
        self._check_outputs(files, f"{folder}/dropped.jsonl", container_of(suffix), force=force)
        written = []
        with progress("writing", self.corpus.n_bytes * len(outs), "bytes") as advance:
            for subset, out in zip(self.subsets, outs, strict=True):
                if by_source:
                    written.append(self._write_sources(subset, out, suffix, advance))
                else:
                    written.append(self._write_file(subset, out, advance))
        self._write_dropped(f"{folder}/dropped.jsonl")
        return written

    def _check_outputs(self, outs: list[str], dropped_to: str, container: Container, *, force: bool) -> None:
        """Stop at what cannot be written, before anything is."""
        target = target_for(self.config.to, container, self.config.tau)
        check_not_inputs([file.path for file in self.corpus.files], [*outs, dropped_to])
        check_labels_fit(self.corpus.formats.items(), target)
        if target.needs_mc:
            self._check_soft_labels(target)
        for out in [*outs, *([dropped_to] if len(self.dropped) else [])]:
            check_overwrite(out, force=force)

    def _check_soft_labels(self, target: Target) -> None:
        """Stop when MC scores are asked for and a file turned out to hold only 0 and 1."""
        soft = {path: fmt.labels != "either" for path, fmt in self.corpus.formats.items()}
        for part in self.counts.parts:
            if not soft.get(part.chunk.path, True):
                rows = self.counts.rows[part.first_row : part.first_row + part.n_rows]
                # scores of 1 add up to their number, and nothing below tau adds anything
                is_soft = (rows["sum_pos"] != rows["n_pos"]) | (rows["sum_all"] != rows["sum_pos"])
                soft[part.chunk.path] = bool((is_soft & (rows["kind"] == ROLLOUT)).any())
        for path, is_soft in soft.items():
            if not is_soft:
                raise no_mc_scores(path, self.corpus.formats[path], target)

    def _write_dropped(self, path: str) -> None:
        """Write the bad records; where there are none, remove those of a run whose output was replaced."""
        if len(self.dropped):
            self.dropped.write(path)
            self.dropped_to = path
        elif not is_url(path):
            Path(path).expanduser().unlink(missing_ok=True)

    def _write_file(self, subset: Subset, out: str, advance: Advance) -> Written:
        with atomic_write(out) as temporary:
            entry = self._write_pieces(subset, None, temporary, out, advance)
            # before the file gets its name: where the file exists, its manifest does
            manifest = self._write_manifest(subset, out, entry)
        return Written(subset, (out,), manifest)

    def _write_sources(self, subset: Subset, folder: str, suffix: str, advance: Advance) -> Written:
        entries = []
        for source, statistics in subset.statistics.items():
            if statistics.n_rollouts:
                out = f"{folder}/{_file_name(source)}{suffix}"
                with atomic_write(out) as temporary:
                    entries.append(self._write_pieces(subset, source, temporary, out, advance))
        manifest = self._write_manifest(subset, folder, {"path": folder, "files": entries})
        return Written(subset, tuple(entry["path"] for entry in entries), manifest)

    def _write_pieces(
        self, subset: Subset, source: str | None, temporary: Path, out: str, advance: Advance
    ) -> dict[str, Any]:
        """Write what is kept, of one source or of all; returns the file's entry in the manifest."""
        target = target_for(self.config.to, container_of(out), self.config.tau)
        pieces = Pieces(self.counts, subset.kept, source)
        in_place = self.config.engine == "local" and not is_url(out)
        sizes = write_pieces(pieces, temporary, target, self._engine, advance, in_place=in_place)
        check_unchanged(self.corpus.files)
        entry = output_entry(out, temporary, sum(piece.n_kept for piece in pieces))
        if target.container == "plain":
            sources = (piece.source for piece in pieces)
            entry["source_bytes"] = bytes_by_source(zip(sources, sizes, strict=True))
        return entry

    def _write_manifest(self, subset: Subset, out: str, output: dict[str, Any]) -> str:
        config = {
            **{name: getattr(self.config, name) for name in STORED_OPTIONS},
            "strategy": subset.strategy,
            "rho": subset.rho,
            "source_rho": self.config.rho_of_source(),
            "to": self.config.to or "same",
            "text_only": self.corpus.options.text_only,
        }
        return write_manifest(
            out,
            command="select",
            config=config,
            inputs=self.corpus.manifest_entries(self._hashes),
            sources=self.by_source(subset),
            output=output,
        )


def _file_name(source: str) -> str:
    """A file's name for a source: its own, with what no file name or only a special one may hold written as %.."""
    name = "".join(quote(letter, safe="") if letter in "/\\\0%" else letter for letter in source)
    if name == "dropped":  # the folder's file of bad records
        return "%64ropped"
    return name.replace(".", "%2E", 1) if name.startswith(".") else name


# Writing: the kept lines, in canonical order, whole or not at all.


@dataclass(frozen=True, slots=True)
class Piece:
    """The kept lines of one chunk; which they are is worked out when they are written."""

    part: Part
    source: str
    file_offset: int
    """Bytes of the file before the chunk's first line."""
    n_bytes: int
    n_kept: int
    needs_line_end: bool
    """Whether the last kept line is the file's last and has no line end."""


class Pieces:
    """The kept lines of each chunk that has any; of one source, or of all."""

    def __init__(self, counts: LabelCounts, kept: BoolArray, source: str | None = None) -> None:
        self._counts, self._kept = counts, kept
        self._source = None if source is None else counts.sources.index(source)
        self._pieces = list(self._make())

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    @property
    def are_ranges(self) -> bool:
        return all(piece.part.chunk.is_range for piece in self)

    def _rows(self, part: Part) -> tuple[Rows, BoolArray]:
        where = slice(part.first_row, part.first_row + part.n_rows)
        rows, mask = self._counts.rows[where], self._kept[where]
        return rows, mask if self._source is None else mask & (rows["source"] == self._source)

    def _make(self) -> Iterator[Piece]:
        path, offset = "", 0
        for part in self._counts.parts:
            if part.chunk.path != path:
                path, offset = part.chunk.path, 0
            rows, mask = self._rows(part)
            n_bytes = int(rows["n_bytes"].sum())
            if mask.any():
                has_last = part.chunk.is_range and bool(mask[-1])
                needs_line_end = has_last and offset + n_bytes == Path(path).stat().st_size and not _ends_line(path)
                n_kept_bytes = int(rows["n_bytes"][mask].sum()) + needs_line_end
                name = part.chunk.source if self._source is None else self._counts.sources[self._source]
                yield Piece(part, name, offset, n_kept_bytes, int(mask.sum()), needs_line_end)
            offset += n_bytes

    def spans(self, piece: Piece) -> bytes:
        """The runs of bytes to copy from a plain local file: neighbouring lines are one run."""
        rows, mask = self._rows(piece.part)
        n_bytes = rows["n_bytes"].astype(np.int64)  # contiguous, as the rows' own column is not
        ends = piece.file_offset + np.cumsum(n_bytes)
        starts = (ends - n_bytes)[mask]
        ends = ends[mask]
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        runs = np.empty((len(breaks) + 1, 2), np.int64)
        runs[:, 0] = starts[np.concatenate([[0], breaks + 1])]
        runs[:, 1] = ends[np.concatenate([breaks, [len(ends) - 1]])]
        return runs.tobytes()

    def task(self, piece: Piece, target: Target) -> ConvertTask:
        if piece.part.chunk.is_range:
            return ConvertTask(piece.part.chunk, target, None, spans=self.spans(piece))
        return ConvertTask(piece.part.chunk, target, None, is_kept=self._rows(piece.part)[1].tobytes())


def _ends_line(path: str) -> bool:
    with open(path, "rb") as handle:  # noqa: PTH123
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def write_pieces(
    pieces: Pieces, temporary: Path, target: Target, engine: Engine, advance: Advance, *, in_place: bool
) -> list[int]:
    """Write the kept lines to a file; returns how many bytes of lines each piece became.

    Parameters
    ----------
    in_place
        Workers can write to the file themselves: they are on this machine.
    """
    if target.keeps_lines and target.container == "plain" and in_place and pieces.are_ranges:
        _copy_in_place(pieces, temporary, engine, advance)
        return [piece.n_bytes for piece in pieces]
    n_bytes = []
    with open_sink(temporary, target.container) as sink:
        tasks = (pieces.task(piece, target) for piece in pieces)
        for piece, converted in zip(pieces, engine.map(convert_lines, tasks), strict=True):
            _check_unchanged(piece, converted)
            sink.write(converted.data)
            n_bytes.append(len(converted.data))
            advance(piece.part.chunk.n_bytes)
    return n_bytes


def _copy_in_place(pieces: Pieces, temporary: Path, engine: Engine, advance: Advance) -> None:
    offsets, end = [], 0
    with temporary.open("wb") as out:
        for piece in pieces:
            offsets.append(end)
            end += piece.n_bytes
            if piece.needs_line_end:
                out.seek(end - 1)
                out.write(b"\n")
        out.truncate(end)
    tasks = (
        CopyTask(piece.part.chunk, pieces.spans(piece), str(temporary), offset)
        for piece, offset in zip(pieces, offsets, strict=True)
    )
    for piece, _ in zip(pieces, engine.map(copy_spans, tasks), strict=True):
        advance(piece.part.chunk.n_bytes)


def _check_unchanged(piece: Piece, converted: Converted) -> None:
    """Stop when a kept record, which was good, is not what it was."""
    path = piece.part.chunk.path
    check_still_good(path, ((kind, text) for _, kind, text in converted.issues))
    if converted.n_rollouts != piece.n_kept:
        raise DataError(f"{path}: the file changed while it was read; run again")

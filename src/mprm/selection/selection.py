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
from mprm.data.corpus import Corpus, Tabular, arrow_table, bytes_by_source, parse_lines
from mprm.data.engine import Engine
from mprm.data.output import (
    MANIFEST_SUFFIX,
    DroppedRecords,
    InputHashes,
    Outputs,
    check_not_inputs,
    check_output_name,
    dropped_path,
    output_entry,
    unchanged,
)
from mprm.data.records import Container, container_of, is_url, lines_of
from mprm.data.types import Rollout
from mprm.errors import ConfigError, DataError
from mprm.progress import Advance, Progress, silent
from mprm.selection.scan import BLANK, ROLLOUT
from mprm.selection.select import SelectConfig
from mprm.selection.stats import BoolArray, LabelCounts, Part, Statistics, label_warnings, statistics_by_source, total
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
    "stratify",
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
    warnings: list[str]
    """What is degenerate about the kept rollouts; see `mprm.selection.stats.label_warnings`."""

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


class Selection(Tabular):
    """The subsets chosen from a corpus, ready to be looked at or written; iterate over it for the kept rollouts."""

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
                by_length=config.stratify == "length",
            )
            statistics = statistics_by_source(self.counts, alpha=config.alpha, is_kept=kept.mask)
            warnings = label_warnings(
                self.counts, self.statistics, kept=kept.mask, subset=statistics, n_by_ties=kept.n_by_ties
            )
            yield Subset(strategy, rho, config.keep, kept.mask, statistics, warnings)

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

    def __iter__(self) -> Iterator[Rollout]:
        return (rollout for rollout, _ in self._kept_rollouts(self._only_subset("iteration")))

    def to_arrow(self) -> Any:
        """The kept rollouts of the only subset as a table, as `mprm.Corpus.to_arrow` makes one."""
        return arrow_table(self._kept_rollouts(self._only_subset("the table")))

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
        check_output_name(str(out))
        [written] = self._write([str(out)], None, dropped_path(str(out)), force=force, progress=progress)
        return written

    def write_all(
        self, folder: str, *, by_source: bool = False, force: bool = False, progress: Progress = silent
    ) -> list[Written]:
        """Write every subset to ``folder``, one file each, or one folder each with a file a source."""
        folder = str(folder).rstrip("/")
        if not folder:
            raise ConfigError("the folder for the subsets has no name")
        outs = self.config.outputs(folder, by_source=by_source)
        suffix = (".parquet" if self.config.to == "parquet" else ".jsonl") if by_source else None
        return self._write(outs, suffix, f"{folder}/dropped.jsonl", force=force, progress=progress)

    def _write(
        self, outs: list[str], suffix: str | None, dropped_to: str, *, force: bool, progress: Progress
    ) -> list[Written]:
        """Write each subset to its file, or to a folder with a file of that suffix for each source."""
        paths = [_paths(subset, out, suffix) for subset, out in zip(self.subsets, outs, strict=True)]
        files = [path for entries in paths for _, path in entries]
        self._check_outputs(files, [*(out + MANIFEST_SUFFIX for out in outs), dropped_to], container_of(files[0]))
        written = []
        with (
            Outputs(*outs, force=force) as outputs,
            progress("writing", self.corpus.n_bytes * len(outs), "bytes") as advance,
        ):
            for path in [*files, *([dropped_to] if len(self.dropped) else [])]:
                outputs.check(path)
            if len(self.dropped):
                self.dropped.copy_to(outputs.add(dropped_to))
                self.dropped_to = dropped_to
            for subset, out, of_subset in zip(self.subsets, outs, paths, strict=True):
                entries = [self._write_pieces(subset, source, outputs, path, advance) for source, path in of_subset]
                entry = entries[0] if suffix is None else {"path": out, "files": entries}
                names = [*(path for _, path in of_subset), *([dropped_to] if len(self.dropped) else [])]
                manifest = self._add_manifest(outputs, subset, out, entry, names)
                written.append(Written(subset, tuple(path for _, path in of_subset), manifest))
        return written

    def _check_outputs(self, outs: list[str], beside: list[str], container: Container) -> None:
        """Stop at what cannot be written, before anything is."""
        target = target_for(self.config.to, container, self.config.tau)
        check_not_inputs([file.path for file in self.corpus.files], [*outs, *beside])
        check_labels_fit(self.corpus.formats.items(), target)
        if target.needs_mc:
            self._check_soft_labels(target)

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

    def _write_pieces(
        self, subset: Subset, source: int | None, outputs: Outputs, out: str, advance: Advance
    ) -> dict[str, Any]:
        """Write what is kept, of one source or of all; returns the file's entry in the manifest."""
        temporary = outputs.add(out)
        target = target_for(self.config.to, container_of(out), self.config.tau)
        pieces = Pieces(self.counts, subset.kept, source)
        in_place = self.config.engine == "local" and not is_url(out)
        with unchanged(self.corpus.files):
            sizes = write_pieces(pieces, temporary, target, self._engine, advance, in_place=in_place)
        entry = output_entry(out, temporary, sum(piece.n_kept for piece in pieces))
        if target.container == "plain":
            sources = (piece.source for piece in pieces)
            entry["source_bytes"] = bytes_by_source(zip(sources, sizes, strict=True))
        return entry

    def _add_manifest(
        self, outputs: Outputs, subset: Subset, out: str, output: dict[str, Any], files: list[str]
    ) -> str:
        config = {
            **{name: getattr(self.config, name) for name in STORED_OPTIONS},
            "strategy": subset.strategy,
            "rho": subset.rho,
            "source_rho": self.config.rho_of_source(),
            "to": self.config.to or "same",
            "text_only": self.corpus.options.text_only,
        }
        return outputs.add_manifest(
            out,
            command="select",
            config=config,
            inputs=self.corpus.manifest_entries(self._hashes),
            sources=self.by_source(subset),
            output=output,
            warnings=subset.warnings,
            files=files,
        )


def _paths(subset: Subset, out: str, suffix: str | None) -> list[tuple[int | None, str]]:
    """The number of each source of which something is kept, and its file; without a suffix, one file for all."""
    if suffix is None:
        return [(None, out)]
    sources = enumerate(subset.statistics.items())
    return [(number, f"{out}/{_file_name(name)}{suffix}") for number, (name, kept) in sources if kept.n_rollouts]


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

    index: int
    """Of its chunk."""
    part: Part
    source: str
    file_start: int
    """Bytes of the corpus before the file."""
    n_bytes: int
    n_kept: int
    needs_line_end: bool
    """Whether the last kept line is the file's last and has no line end."""


class Pieces:
    """The kept lines of each chunk that has any; of one source, or of all."""

    def __init__(self, counts: LabelCounts, kept: BoolArray, source: int | None = None) -> None:
        self._counts = counts
        members = None if source is None else counts.rollouts[source]
        rows = np.flatnonzero(kept) if members is None else members[kept[members]]
        cuts = np.searchsorted(rows, [part.first_row for part in counts.parts[1:]])
        self._rows = np.split(rows, cuts)
        """The kept rows of each chunk."""
        self._name = None if source is None else counts.sources[source]
        self._pieces = list(self._make())

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    @property
    def are_ranges(self) -> bool:
        return all(piece.part.chunk.is_range for piece in self)

    def _make(self) -> Iterator[Piece]:
        path, file_start, ends = "", 0, self._counts.line_ends
        for index, (part, rows) in enumerate(zip(self._counts.parts, self._rows, strict=True)):
            if part.chunk.path != path:
                path, file_start = part.chunk.path, int(ends[part.first_row])
            if len(rows):
                file_end, last = int(ends[part.first_row + part.n_rows]), int(ends[rows[-1] + 1])
                is_at_end = part.chunk.is_range and last == file_end == file_start + Path(path).stat().st_size
                needs_line_end = is_at_end and not _ends_line(path)
                n_bytes = int(self._counts.rows["n_bytes"][rows].sum()) + needs_line_end
                yield Piece(
                    index, part, self._name or part.chunk.source, file_start, n_bytes, len(rows), needs_line_end
                )

    def spans(self, piece: Piece) -> bytes:
        """The runs of bytes to copy from a plain local file: neighbouring lines are one run."""
        rows = self._rows[piece.index]
        is_first = np.append(True, np.diff(rows) != 1)
        runs = np.empty((int(is_first.sum()), 2), np.int64)
        runs[:, 0] = self._counts.line_ends[rows[is_first]]
        runs[:, 1] = self._counts.line_ends[rows[np.roll(is_first, -1)] + 1]
        return (runs - piece.file_start).tobytes()

    def task(self, piece: Piece, target: Target) -> ConvertTask:
        if piece.part.chunk.is_range:
            return ConvertTask(piece.part.chunk, target, None, spans=self.spans(piece))
        is_kept = np.zeros(piece.part.n_rows, np.bool_)
        is_kept[self._rows[piece.index] - piece.part.first_row] = True
        return ConvertTask(piece.part.chunk, target, None, is_kept=is_kept.tobytes())


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

"""The subsets chosen from a corpus, and writing them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.config import name_of_strategy
from mprm.data.convert import ConvertTask, Target, check_labels_fit, convert_lines, copy_spans, open_sink, target_for
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
    hash_file,
    output_entry,
    unchanged,
)
from mprm.data.records import container_of, lines_of
from mprm.data.types import Rollout
from mprm.errors import ConfigError, DataError
from mprm.progress import Advance, Progress, silent
from mprm.selection.scan import BLANK, ROLLOUT
from mprm.selection.score_table import read_columns
from mprm.selection.select import SelectConfig
from mprm.selection.stats import (
    BoolArray,
    LabelCounts,
    Part,
    Statistics,
    label_warnings,
    statistics_by_source,
    total,
)
from mprm.selection.strategies import keep_top

NOT_STORED = ("format", "engine", "processes", "ray_address")
"""Options that a subset does not depend on: its manifest holds the others, and each file's format."""


@dataclass(frozen=True, slots=True)
class Subset:
    """What one strategy keeps at one rho."""

    strategy: str
    rho: float | None
    keep: int | None
    kept: BoolArray = field(repr=False)
    """Which rows of the label counts are kept."""
    statistics: dict[str, Statistics] = field(repr=False)
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
        self.hashes = InputHashes(corpus.files, engine)  # set to work here: the workers have nothing else to do now
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
        columns = None if config.columns is None else read_columns(config.columns, self.corpus, self.counts)
        for strategy, rho in itertools.product(config.strategy, config.rho if config.keep is None else (None,)):
            kept = keep_top(
                self.counts,
                strategy,
                partial(config.n_keep, rho),
                alpha=config.alpha,
                seed=config.seed,
                tau=config.tau,
                by_file_order=config.ties == "file-order",
                pool=config.pool,
                by_length=config.stratify == "length",
                columns=columns,
            )
            statistics = statistics_by_source(self.counts, alpha=config.alpha, is_kept=kept.mask)
            warnings = label_warnings(
                self.counts,
                self.statistics,
                kept=kept.mask,
                subset=statistics,
                n_by_ties=kept.n_by_ties,
                n_unqualified=kept.n_unqualified,
            )
            yield Subset(name_of_strategy(strategy), rho, config.keep, kept.mask, statistics, warnings)

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
                " one rho, or look at selection.subsets, or write them to a folder with write_all"
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

    def write(
        self, out: str, *, force: bool = False, outputs: Outputs | None = None, progress: Progress = silent
    ) -> Written:
        """Write the one subset to a file, with its manifest and what was dropped beside it.

        The name says how it is packed: .jsonl, .jsonl.gz, .jsonl.zst or .parquet. ``outputs`` that were opened before
        are written with it, when their block ends.
        """
        self._only_subset("the file")
        check_output_name(str(out))
        with nullcontext(outputs) if outputs else Outputs(str(out), force=force) as outputs:
            [written] = self._write([str(out)], None, dropped_path(str(out)), outputs, progress)
        return written

    def write_all(
        self,
        folder: str,
        *,
        by_source: bool = False,
        force: bool = False,
        outputs: Outputs | None = None,
        progress: Progress = silent,
    ) -> list[Written]:
        """Write every subset to ``folder``, one file each, or one folder each with a file a source."""
        folder = str(folder).rstrip("/")
        if not folder:
            raise ConfigError("the folder for the subsets has no name")
        outs = self.config.outputs(folder, by_source=by_source)
        suffix = self.config.suffix if by_source else None
        with nullcontext(outputs) if outputs else Outputs(*outs, force=force) as outputs:
            return self._write(outs, suffix, f"{folder}/dropped.jsonl", outputs, progress)

    def _write(
        self, outs: list[str], suffix: str | None, dropped_to: str, outputs: Outputs, progress: Progress
    ) -> list[Written]:
        """Write each subset to its file, or to a folder with a file of that suffix for each source."""
        paths = [_paths(subset, out, suffix) for subset, out in zip(self.subsets, outs, strict=True)]
        files = [path for of_subset in paths for path in of_subset.values()]
        beside = [*(out + MANIFEST_SUFFIX for out in outs), dropped_to]
        table = [] if self.config.columns is None else [self.config.columns]
        check_not_inputs([*(file.path for file in self.corpus.files), *table], [*files, *beside])
        target = target_for(self.config.to, container_of(files[0]), self.config.tau)
        check_labels_fit(self.corpus.formats, target, self._soft_files() if target.needs_mc else None)
        dropped, written = [dropped_to] if len(self.dropped) else [], []
        for path in [*files, *dropped]:
            outputs.check(path)
        for path in dropped:
            self.dropped.copy_to(outputs.add(path))
            self.dropped_to = path
        with progress("writing", self.corpus.n_bytes * len(outs), "bytes") as advance:
            for subset, out, of_subset in zip(self.subsets, outs, paths, strict=True):
                entries = [self._write_file(subset, *item, outputs, advance) for item in of_subset.items()]
                manifest = outputs.add_manifest(
                    out,
                    command="select",
                    config=self._stored_config(subset),
                    inputs=self.corpus.manifest_entries(self.hashes),
                    sources=self.by_source(subset),
                    statistics={source: entry.as_dict() for source, entry in subset.statistics.items()},
                    output=entries[0] if suffix is None else {"path": out, "files": entries},
                    warnings=subset.warnings,
                    files=[*of_subset.values(), *dropped],
                )
                written.append(Written(subset, tuple(of_subset.values()), manifest))
        return written

    def _soft_files(self) -> set[str]:
        """Files with a score between 0 and 1."""
        rows = self.counts.rows
        # scores of 1 add up to their number, and nothing below tau adds anything
        is_soft = (rows["sum_pos"] != rows["n_pos"]) | (rows["sum_all"] != rows["sum_pos"])
        is_soft &= rows["kind"] == ROLLOUT
        return {part.chunk.path for part in self.counts.parts if is_soft[part.first_row :][: part.n_rows].any()}

    def _stored_config(self, subset: Subset) -> dict[str, Any]:
        columns = self.config.columns
        return {
            **{name: value for name, value in self.config.as_dict().items() if name not in NOT_STORED},
            "strategy": subset.strategy,
            "rho": subset.rho,
            "source_rho": self.config.rho_of_source(),
            "columns": columns and {"path": columns, "xxh3_128": hash_file(columns)},
            "to": self.config.to or "same",
            "text_only": self.corpus.options.text_only,
        }

    def _write_file(
        self, subset: Subset, source: int | None, out: str, outputs: Outputs, advance: Advance
    ) -> dict[str, Any]:
        """Write what is kept, of one source or of all; returns the file's entry in the manifest."""
        temporary = outputs.add(out)
        target = target_for(self.config.to, container_of(out), self.config.tau)
        pieces = list(kept_pieces(self.counts, subset.kept, source))
        is_copy = target.keeps_lines and target.container == "plain" and self.config.engine == "local"
        with unchanged(self.corpus.files):
            if is_copy and all(piece.part.chunk.is_range for piece in pieces):
                sizes = copy_pieces(pieces, temporary, self._engine, advance)
            else:
                sizes = convert_pieces(pieces, temporary, target, self._engine, advance)
        entry = output_entry(out, temporary, n_rollouts=sum(len(piece.rows) for piece in pieces))
        if target.container == "plain":
            sources = (piece.source for piece in pieces)
            entry["source_bytes"] = bytes_by_source(zip(sources, sizes, strict=True))
        return entry


def _paths(subset: Subset, out: str, suffix: str | None) -> dict[int | None, str]:
    """The file of each source of which something is kept, by its number; without a suffix, one file for all."""
    if suffix is None:
        return {None: out}
    sources = enumerate(subset.statistics.items())
    return {number: f"{out}/{_file_name(name)}{suffix}" for number, (name, kept) in sources if kept.n_rollouts}


def _file_name(source: str) -> str:
    """A file's name for a source: its own, with what no file name or only a special one may hold written as %..

    ``dropped`` is such a name, of the folder's file of bad records.
    """
    return re.sub(r"[/\\\0%]|^\.|^d(?=ropped\Z)", lambda letter: f"%{ord(letter[0]):02X}", source)


# Writing: the kept lines, in canonical order, whole or not at all.


@dataclass(frozen=True, slots=True)
class Piece:
    """The kept lines of one chunk."""

    part: Part
    source: str
    rows: NDArray[np.intp]
    """Which rows of the label counts they are."""
    line_ends: NDArray[np.int64]
    """Of all lines of the corpus."""
    file_start: int
    """Bytes of the corpus before the file."""
    n_bytes: int
    needs_line_end: bool
    """Whether the last kept line is the file's last and has no line end."""

    def spans(self) -> bytes:
        """The runs of bytes to copy from a plain local file: neighbouring lines are one run."""
        is_first = np.append(True, np.diff(self.rows) != 1)
        starts = self.line_ends[self.rows[is_first]]
        ends = self.line_ends[self.rows[np.roll(is_first, -1)] + 1]
        return (np.column_stack([starts, ends]) - self.file_start).tobytes()

    def task(self, target: Target) -> ConvertTask:
        if self.part.chunk.is_range:
            return ConvertTask(self.part.chunk, target, None, spans=self.spans())
        is_kept = np.zeros(self.part.n_rows, np.bool_)
        is_kept[self.rows - self.part.first_row] = True
        return ConvertTask(self.part.chunk, target, None, is_kept=is_kept.tobytes())


def kept_pieces(counts: LabelCounts, kept: BoolArray, source: int | None = None) -> Iterator[Piece]:
    """The kept lines of each chunk that has any; of one source, or of all."""
    rows = np.flatnonzero(kept) if source is None else counts.rollouts[source][kept[counts.rollouts[source]]]
    cuts = np.searchsorted(rows, [part.first_row for part in counts.parts[1:]])
    path, file_start, ends = "", 0, counts.line_ends
    for part, own in zip(counts.parts, np.split(rows, cuts), strict=True):
        if part.chunk.path != path:
            path, file_start = part.chunk.path, int(ends[part.first_row])
        if len(own):
            file_end, last = int(ends[part.first_row + part.n_rows]), int(ends[own[-1] + 1])
            is_at_end = part.chunk.is_range and last == file_end == file_start + Path(path).stat().st_size
            needs_line_end = is_at_end and not _ends_line(path)
            n_bytes = int(counts.rows["n_bytes"][own].sum()) + needs_line_end
            name = part.chunk.source if source is None else counts.sources[source]
            yield Piece(part, name, own, ends, file_start, n_bytes, needs_line_end)


def _ends_line(path: str) -> bool:
    with open(path, "rb") as handle:  # noqa: PTH123
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def convert_pieces(
    pieces: list[Piece], temporary: Path, target: Target, engine: Engine, advance: Advance
) -> list[int]:
    """Write the kept lines as the target asks; returns how many bytes of lines each piece became."""
    sizes = []
    with open_sink(temporary, target.container) as sink:
        tasks = (piece.task(target) for piece in pieces)
        for piece, converted in zip(pieces, engine.map(convert_lines, tasks), strict=True):
            if converted.n_rollouts != len(piece.rows):  # kept records were good
                raise DataError(f"{piece.part.chunk.path}: the file changed while it was read; run again")
            sink.write(converted.data)
            sizes.append(len(converted.data))
            advance(piece.part.chunk.n_bytes)
    return sizes


def copy_pieces(pieces: list[Piece], temporary: Path, engine: Engine, advance: Advance) -> list[int]:
    """Let the workers copy the kept lines into the file, each to its position; returns the bytes of each piece."""
    sizes = [piece.n_bytes for piece in pieces]
    ends = list(itertools.accumulate(sizes))
    with temporary.open("wb") as out:
        for piece, end in zip(pieces, ends, strict=True):
            if piece.needs_line_end:
                out.seek(end - 1)
                out.write(b"\n")
        out.truncate(ends[-1])
    tasks = (
        (piece.part.chunk, piece.spans(), str(temporary), end - piece.n_bytes)
        for piece, end in zip(pieces, ends, strict=True)
    )
    for piece, _ in zip(pieces, engine.map(copy_spans, tasks), strict=True):
        advance(piece.part.chunk.n_bytes)
    return sizes

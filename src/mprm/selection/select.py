"""The subsets chosen from a corpus, and writing them.

``mprm select``: from an annotated corpus to the subset that teaches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mprm.data.convert import Target, check_labels_fit, check_output_name, no_mc_scores, output_forbids, target_for
from mprm.data.corpus import (
    Corpus,
    InputHashes,
    bytes_by_source,
    check_inputs_kept,
    check_unchanged,
    hash_file,
    open_corpus,
    write_manifest,
)
from mprm.data.engine import Engine, EngineName, make_engine
from mprm.data.output import DroppedRecords, atomic_write, check_overwrite, dropped_path
from mprm.data.records import Chunk, Container, container_of, is_url
from mprm.errors import ConfigError, DataError
from mprm.selection.scan import ROLLOUT, LabelCounts, start_counting
from mprm.selection.stats import Statistics, statistics_by_source, total
from mprm.selection.strategies import KeptRows, Ranking, SelectConfig, StrategyName, Ties, keep_top
from mprm.selection.write import Pieces, write_pieces


@dataclass(frozen=True, slots=True)
class Subset:
    """What one strategy keeps at one rho."""

    strategy: str
    rho: float | None
    keep: int | None
    kept: KeptRows
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
        self,
        corpus: Corpus,
        counts: LabelCounts,
        config: SelectConfig,
        dropped: DroppedRecords | None,
        to: str | None,
        engine: Engine,
        *,
        is_local: bool,
    ) -> None:
        self.corpus, self.counts, self.config = corpus, counts, config
        self.dropped = dropped if dropped is not None else DroppedRecords()
        """The bad records; none where the run would have stopped at the first."""
        self._skips_bad = dropped is not None
        self._to, self._engine, self._is_local = to, engine, is_local
        self._hashes = InputHashes(corpus, engine)  # set to work here: the workers have nothing else to do now
        self.dropped_to: str | None = None
        """Where the bad records were written, once they were."""
        self.statistics = statistics_by_source(counts, alpha=config.alpha)
        """Of all good rollouts, by source."""
        self.subsets = tuple(self._choose())

    def _choose(self) -> Iterator[Subset]:
        config = self.config
        for source in config.source_rho:
            if source not in self.counts.sources:
                raise ConfigError(f"source_rho names {source!r}; the sources are {', '.join(self.counts.sources)}")
        for strategy, rho in itertools.product(config.strategy, config.sizes):
            ranking = Ranking(strategy=strategy, alpha=config.alpha, seed=config.seed, ties=config.ties)

            def n_keep(source: str | None, n: int, rho: float | None = rho) -> int:
                return config.n_keep(rho, source, n)

            kept = keep_top(self.counts, ranking, n_keep, pool=config.pool)
            statistics = statistics_by_source(self.counts, alpha=config.alpha, is_kept=kept.between)
            yield Subset(strategy, rho, config.keep if rho is None else None, kept, statistics)

    @property
    def n_read(self) -> int:
        """Records read, good and bad."""
        return total(self.statistics).n_rollouts + len(self.dropped)

    def __repr__(self) -> str:
        kept = ", ".join(f"{s.name}: {total(s.statistics).n_rollouts:,}" for s in self.subsets)
        return f"Selection({kept} of {self.n_read:,} read, {len(self.dropped):,} dropped)"

    def __len__(self) -> int:
        return sum(total(subset.statistics).n_rollouts for subset in self.subsets)

    def write(self, out: str, *, force: bool = False, on_chunk: Callable[[Chunk], Any] | None = None) -> Written:
        """Write the one subset to a file, with its manifest and what was dropped beside it.

        The name says how it is packed: .jsonl, .jsonl.gz, .jsonl.zst or .parquet.
        """
        if len(self.subsets) != 1:
            raise ConfigError(f"there are {len(self.subsets)} subsets; write them to a folder with write_all")
        out = str(out)
        check_output_name(out)
        self._prepare([out], dropped_path(out), container_of(out), force=force)
        written = self._write_file(self.subsets[0], out, on_chunk)
        self._write_dropped(dropped_path(out))
        return written

    def _write_dropped(self, path: str) -> None:
        """Write the bad records; where there are none, take away those of a run whose output was replaced."""
        if len(self.dropped):
            self.dropped.write(path)
            self.dropped_to = path
        elif not is_url(path):
            Path(path).expanduser().unlink(missing_ok=True)

    def write_all(
        self,
        folder: str,
        *,
        by_source: bool = False,
        force: bool = False,
        on_chunk: Callable[[Chunk], Any] | None = None,
    ) -> list[Written]:
        """Write every subset to ``folder``, one file each, or one folder each with a file a source."""
        folder, suffix = str(folder).rstrip("/"), ".parquet" if self._to == "parquet" else ".jsonl"
        outs = [f"{folder}/{subset.name}" + ("" if by_source else suffix) for subset in self.subsets]
        files = [f"{out}/{_file_name(s)}{suffix}" for out in outs for s in self.counts.sources] if by_source else outs
        self._prepare(files, f"{folder}/dropped.jsonl", container_of(suffix), force=force)
        pairs = zip(self.subsets, outs, strict=True)
        if by_source:
            written = [self._write_sources(subset, out, suffix, on_chunk) for subset, out in pairs]
        else:
            written = [self._write_file(subset, out, on_chunk) for subset, out in pairs]
        self._write_dropped(f"{folder}/dropped.jsonl")
        return written

    def _prepare(self, outs: list[str], dropped_to: str, container: Container, *, force: bool) -> None:
        """Refuse what cannot be written, before anything is; then write what was dropped."""
        target = target_for(self._to, container, self.config.tau)
        check_inputs_kept(self.corpus, [*outs, dropped_to])
        check_labels_fit(self.corpus.formats.items(), target)
        if target.needs_mc:
            self._check_hard_labels(target)
        for out in [*outs, *([dropped_to] if len(self.dropped) else [])]:
            check_overwrite(out, force=force)

    def _check_hard_labels(self, target: Target) -> None:
        """Stop when MC scores are asked for and a file turned out to hold only 0 and 1."""
        soft = {path: fmt.labels != "either" for path, fmt in self.corpus.formats.items()}
        for part in self.counts.parts:
            if not soft[part.chunk.path]:
                rows = self.counts.rows[part.first_row : part.first_row + part.n_rows]
                # scores of 1 add up to their number, and nothing below tau adds anything
                is_soft = (rows["sum_pos"] != rows["n_pos"]) | (rows["sum_all"] != rows["sum_pos"])
                soft[part.chunk.path] = bool((is_soft & (rows["kind"] == ROLLOUT)).any())
        for path, is_soft in soft.items():
            if not is_soft:
                assert target.format is not None
                raise no_mc_scores(path, self.corpus.formats[path], target.format)

    def _write_file(self, subset: Subset, out: str, on_chunk: Callable[[Chunk], Any] | None) -> Written:
        with atomic_write(out) as temporary:
            entry = self._write_pieces(subset, None, temporary, out, on_chunk)
            # before the file gets its name: where the file stands, its manifest does
            manifest = self._write_manifest(subset, out, entry)
        return Written(subset, (out,), manifest)

    def _write_sources(
        self, subset: Subset, folder: str, suffix: str, on_chunk: Callable[[Chunk], Any] | None
    ) -> Written:
        entries = []
        for source, statistics in subset.statistics.items():
            if statistics.n_rollouts:
                out = f"{folder}/{_file_name(source)}{suffix}"
                with atomic_write(out) as temporary:
                    entries.append(self._write_pieces(subset, source, temporary, out, on_chunk))
        manifest = self._write_manifest(subset, folder, {"path": folder, "files": entries})
        return Written(subset, tuple(entry["path"] for entry in entries), manifest)

    def _write_pieces(
        self,
        subset: Subset,
        source: str | None,
        temporary: Path,
        out: str,
        on_chunk: Callable[[Chunk], Any] | None,
    ) -> dict[str, Any]:
        """Write what is kept, of one source or of all; returns the file's entry in the manifest."""
        target = target_for(self._to, container_of(out), self.config.tau)
        pieces = Pieces(self.counts, subset.kept, source)
        in_place = self._is_local and not is_url(out)
        sizes = write_pieces(pieces, temporary, target, self._engine, in_place=in_place, on_chunk=on_chunk)
        check_unchanged(self.corpus)
        entry: dict[str, Any] = {
            "path": out,
            "n_bytes": temporary.stat().st_size,
            "xxh3_128": hash_file(str(temporary)),
            "n_rollouts": sum(piece.n_kept for piece in pieces),
        }
        if target.container == "plain":
            sources = (piece.source for piece in pieces)
            entry["source_bytes"] = bytes_by_source(zip(sources, sizes, strict=True))
        return entry

    def _write_manifest(self, subset: Subset, out: str, output: dict[str, Any]) -> str:
        config = {
            **asdict(self.config),
            "strategy": subset.strategy,
            "rho": subset.rho,
            "to": self._to or "same",
            "skip_bad": self._skips_bad,
            "text_only": self.corpus.judgement.text_only,
        }
        return write_manifest(
            out,
            command="select",
            config=config,
            inputs=self._hashes.entries(),
            sources=self.by_source(subset),
            output=output,
        )

    def by_source(self, subset: Subset) -> dict[str, dict[str, Any]]:
        """For each source, how many records were read, kept, left and dropped, and why."""
        found = {}
        for source in self.counts.sources:
            n_good, n_kept = self.statistics[source].n_rollouts, subset.statistics[source].n_rollouts
            found[source] = self.dropped.account(source, n_kept=n_kept, n_left=n_good - n_kept)
        return found


def _file_name(source: str) -> str:
    """A file's name for a source: its own, with what no file name or only a special one may hold written as %.."""
    name = "".join(quote(letter, safe="") if letter in "/\\\0%" else letter for letter in source)
    if name == "dropped":  # the folder's file of bad records
        return "%64ropped"
    return name.replace(".", "%2E", 1) if name.startswith(".") else name


def select(
    paths: Any,
    *,
    strategy: StrategyName | Sequence[StrategyName] = "bis",
    rho: float | Sequence[float] | None = None,
    keep: int | None = None,
    source_rho: Mapping[str, float] | None = None,
    alpha: float = 0.05,
    tau: float = 0.0,
    seed: int = 0,
    ties: Ties = "hash",
    pool: bool = False,
    to: str | None = None,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> Selection:
    """Choose the rollouts of a corpus that teach the most.

    Reads the corpus once, ranks the rollouts of each source and keeps the best; nothing is written
    until `Selection.write`.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    strategy, rho, keep, source_rho, alpha, tau, seed, ties, pool
        See `SelectConfig`.
    to
        Output format, None to copy the kept lines byte for byte.
    format
        Input format, where it must not be guessed from the first record.
    text_only
        Accept records without an image.
    skip_bad
        Drop bad records, each with its reason, instead of stopping at the first.
    engine, processes, ray_address
        Where the work runs.
    on_chunk
        Called after each piece of the corpus, for progress.

    Examples
    --------
    >>> rollouts = [{"prompt": "?", "completions": ["a", "b"], "labels": labels}
    ...             for labels in ([True, True], [True, False], [False, False])]
    >>> selection = select(rollouts, rho=0.34)
    >>> selection.subsets[0].kept.between(0, 3).tolist()
    [False, True, False]
    """
    config = SelectConfig(
        strategy=(strategy,) if isinstance(strategy, str) else tuple(strategy),
        rho=(rho,) if isinstance(rho, int | float) else tuple(rho or ()),
        keep=keep,
        source_rho=dict(source_rho or {}),
        alpha=alpha,
        tau=tau,
        seed=seed,
        ties=ties,
        pool=pool,
    )
    if to is not None:
        target_for(to, "parquet" if to == "parquet" else "plain", tau)
    corpus = open_corpus(paths, format=format, text_only=text_only, forbids=output_forbids(to))
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    counting = start_counting(corpus, worker, tau=tau, stop_at_bad=not skip_bad)
    # numpy and what needs it are loaded only now, while the workers read
    from mprm.selection.scan import ROLLOUT, gather_counts

    dropped = DroppedRecords() if skip_bad else None
    counts = gather_counts(corpus, counting, on_bad=dropped, on_chunk=on_chunk)
    if not any(counts.n_lines(ROLLOUT).values()):
        raise DataError(
            f"there is nothing to select from: {len(dropped or ())} records were read and none is usable;"
            " mprm check says why"
        )
    return Selection(corpus, counts, config, dropped, to, worker, is_local=engine == "local")

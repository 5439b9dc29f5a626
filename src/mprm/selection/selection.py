"""The subsets chosen from a corpus, and writing them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mprm.engines.engine import Engine
from mprm.errors import ConfigError
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.convert_lines import Target
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.dropped import DroppedRecords, dropped_path
from mprm.rollouts.files import is_url
from mprm.scores.label_counts import LabelCounts
from mprm.scores.statistics import Statistics, statistics_by_source, total
from mprm.selection.config import SelectConfig
from mprm.selection.copy_spans import hash_file
from mprm.selection.keep_top import KeptRows, Ranking, keep_top
from mprm.selection.manifest import input_entries, write_manifest
from mprm.selection.write import Piece, hash_inputs, pieces_of, write_pieces


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

    subset: Subset
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
        target: Target,
        engine: Engine,
        *,
        is_local: bool,
    ) -> None:
        self.corpus, self.counts, self.config = corpus, counts, config
        self.dropped = dropped if dropped is not None else DroppedRecords()
        """The bad records; none where the run would have stopped at the first."""
        self._skips_bad = dropped is not None
        self._target, self._engine, self._is_local = target, engine, is_local
        self._hashes: dict[str, str | None] | None = None
        self.statistics = statistics_by_source(counts, alpha=config.alpha)
        """Of all good rollouts, by source."""
        self.subsets = tuple(self._choose())

    def _choose(self) -> Iterator[Subset]:
        config = self.config
        for source in config.source_rho:
            if source not in self.counts.sources:
                raise ConfigError(f"source_rho names {source!r}; the sources are {', '.join(self.counts.sources)}")
        sizes: Sequence[float | None] = config.rho if config.keep is None else (None,)
        for strategy, rho in itertools.product(config.strategy, sizes):
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

    def __len__(self) -> int:
        return sum(total(subset.statistics).n_rollouts for subset in self.subsets)

    def write(self, out: str, *, force: bool = False, on_chunk: Callable[[Chunk], Any] | None = None) -> Written:
        """Write the one subset to a file, with its manifest and what was dropped beside it."""
        if len(self.subsets) != 1:
            raise ConfigError(f"there are {len(self.subsets)} subsets; write them to a folder with write_all")
        out = str(out)
        refuse_existing(out, force=force)
        self._write_dropped(dropped_path(out))
        return self._write_file(self.subsets[0], out, on_chunk)

    def write_all(
        self,
        folder: str,
        *,
        by_source: bool = False,
        force: bool = False,
        on_chunk: Callable[[Chunk], Any] | None = None,
    ) -> list[Written]:
        """Write every subset to ``folder``, one file each, or one folder each with a file a source."""
        folder, suffix = str(folder).rstrip("/"), self._suffix()
        outs = {subset.name: f"{folder}/{subset.name}" + ("" if by_source else suffix) for subset in self.subsets}
        for out in outs.values():
            refuse_existing(out, force=force)
        self._write_dropped(f"{folder}/dropped.jsonl")
        if not by_source:
            return [self._write_file(subset, outs[subset.name], on_chunk) for subset in self.subsets]
        return [self._write_sources(subset, outs[subset.name], suffix, on_chunk) for subset in self.subsets]

    def _suffix(self) -> str:
        container = self._target.container
        return {"plain": ".jsonl", "gz": ".jsonl.gz", "zst": ".jsonl.zst", "parquet": ".parquet"}[container]

    def _write_dropped(self, path: str) -> None:
        if len(self.dropped):
            self.dropped.write(path)

    def _write_file(self, subset: Subset, out: str, on_chunk: Callable[[Chunk], Any] | None) -> Written:
        pieces = list(pieces_of(self.counts, subset.kept))
        entry = self._write_pieces(pieces, out, on_chunk)
        return Written(subset, (out,), self._manifest(subset, out, {**entry, "path": out}))

    def _write_sources(
        self, subset: Subset, folder: str, suffix: str, on_chunk: Callable[[Chunk], Any] | None
    ) -> Written:
        paths, entries = [], []
        for source in self.counts.sources:
            pieces = list(pieces_of(self.counts, subset.kept, source))
            if pieces:
                name = source.replace("/", "_").replace("\0", "_")
                paths.append(f"{folder}/{name}{suffix}")
                entries.append({**self._write_pieces(pieces, paths[-1], on_chunk), "path": paths[-1]})
        return Written(subset, tuple(paths), self._manifest(subset, folder, {"path": folder, "files": entries}))

    def _write_pieces(
        self, pieces: list[Piece], out: str, on_chunk: Callable[[Chunk], Any] | None
    ) -> dict[str, Any]:
        with atomic_write(out) as temporary:
            in_place = self._is_local and not is_url(out)
            write_pieces(
                pieces, temporary, self._target, self._engine, in_place=in_place, on_chunk=on_chunk
            )
            n_bytes, digest = temporary.stat().st_size, hash_file(str(temporary))
        entry: dict[str, Any] = {"n_bytes": n_bytes, "xxh3_128": digest, "n_rollouts": sum(p.n_kept for p in pieces)}
        if self._target.keeps_lines and self._target.container == "plain":
            entry["source_bytes"] = _bytes_by_source(pieces)
        return entry

    def _manifest(self, subset: Subset, out: str, output: dict[str, Any]) -> str:
        if self._hashes is None:
            self._hashes = hash_inputs(self.corpus, self._engine)
        config = {
            **asdict(self.config),
            "strategy": subset.strategy,
            "rho": subset.rho,
            "to": self._target.format or "same",
            "skip_bad": self._skips_bad,
        }
        return write_manifest(
            out,
            command="select",
            config=config,
            inputs=input_entries(self.corpus, self._hashes),
            sources=self.by_source(subset),
            output=output,
        )

    def by_source(self, subset: Subset) -> dict[str, dict[str, Any]]:
        """For each source, how many records were read, kept, left and dropped, and why."""
        found = {}
        for source in self.counts.sources:
            n_good = self.statistics[source].n_rollouts
            n_kept = subset.statistics[source].n_rollouts
            reasons = self.dropped.counts.get(source, {})
            n_dropped = sum(reasons.values())
            found[source] = {
                "read": n_good + n_dropped,
                "kept": n_kept,
                "left": n_good - n_kept,
                "dropped": n_dropped,
                "reasons": reasons,
            }
        return found


def _bytes_by_source(pieces: list[Piece]) -> dict[str, int] | None:
    """Bytes of each source in the output, in order; None where sources are interleaved."""
    found: dict[str, int] = {}
    last = None
    for piece in pieces:
        if piece.source != last and piece.source in found:
            return None
        last = piece.source
        found[last] = found.get(last, 0) + piece.n_bytes
    return found

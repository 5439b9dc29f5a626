"""``mprm score``: one row a rollout, to look at or to select by other means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprm.config import Alpha, CorpusOptions, EngineOptions, Force, Tau, takes
from mprm.data.corpus import open_corpus
from mprm.data.engine import make_engine
from mprm.data.output import (
    DroppedRecords,
    InputHashes,
    atomic_write,
    check_not_inputs,
    check_overwrite,
    dropped_path,
    output_entry,
    write_manifest,
)
from mprm.errors import ConfigError
from mprm.progress import Progress, silent
from mprm.selection.label_counts import LabelCounts, R_of, count_corpus, mean_mc_of, p_pos_of
from mprm.selection.scan import ROLLOUT
from mprm.selection.strategies import rank_bis


def score_batches(counts: LabelCounts, *, alpha: float) -> Iterator[Any]:
    """Arrow record batches with the scores of every rollout, in canonical order."""
    import pyarrow as pa

    names = pa.array(counts.sources, pa.string())
    for part in counts.parts:
        rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        indices = np.flatnonzero(rows["kind"] == ROLLOUT)
        if not len(indices):
            continue
        rows = rows[indices]
        p_pos = p_pos_of(rows)
        columns = {
            "source": names.take(pa.array(rows["source"])),
            "file": pa.array([part.chunk.path] * len(rows), pa.string()),
            "line": pa.array(indices + part.first_line, pa.int64()),
            "n": pa.array(rows["n_steps"]),
            "n_pos": pa.array(rows["n_pos"]),
            "p_pos": pa.array(p_pos),
            "mixture": pa.array(p_pos * (1 - p_pos)),
            "R": pa.array(R_of(rows)),
            "mean_mc": pa.array(mean_mc_of(rows)),
            "bis": pa.array(rank_bis(rows, alpha=alpha)),
        }
        yield pa.RecordBatch.from_pydict(columns)


def score_schema() -> Any:
    """The columns of a score table."""
    import pyarrow as pa

    floats = [(name, pa.float64()) for name in ("p_pos", "mixture", "R", "mean_mc", "bis")]
    whole = [("line", pa.int64()), ("n", pa.uint32()), ("n_pos", pa.uint32())]
    return pa.schema([("source", pa.string()), ("file", pa.string()), *whole, *floats])


@contextmanager
def _open_table(path: Path, suffix: str) -> Iterator[Callable[[Any], Any]]:
    """A function that writes a record batch to a table of that kind."""
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetWriter(path, score_schema(), compression="zstd") as table:
            yield table.write_batch
    elif suffix == ".csv":
        from pyarrow import csv

        with csv.CSVWriter(str(path), score_schema()) as table:
            yield table.write_batch
    else:
        import msgspec

        encode = msgspec.json.Encoder().encode
        with path.open("wb") as out:
            yield lambda batch: out.writelines(encode(row) + b"\n" for row in batch.to_pylist())


SUFFIXES = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(CorpusOptions, EngineOptions):
    """Write one row a rollout: its label counts, R, mixture and BIS."""

    alpha: Alpha = 0.05
    tau: Tau = 0.0
    force: Force = False


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """How many rollouts were scored and how many records dropped."""

    n_rollouts: int
    n_dropped: int
    dropped_to: str | None


@takes(ScoreConfig)
def score(
    paths: Any, out: str, config: ScoreConfig | None = None, *, progress: Progress = silent, **options: Any
) -> ScoreSummary:
    """Write the scores of every rollout to ``out``.

    Columns: source, file, line, n, n_pos, p_pos, mixture, R, mean_mc, bis.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    out
        A .parquet, .csv or .jsonl file.
    config, options
        See `ScoreConfig`. With ``skip_bad``, bad records go to ``OUT.dropped.jsonl``.
    """
    config = ScoreConfig.of(config, options)
    out = str(out)
    if Path(out).suffix not in SUFFIXES:
        raise ConfigError(f"{out}: scores go to a {', '.join(SUFFIXES)} file")
    check_overwrite(out, force=config.force)
    corpus = open_corpus(paths, format=config.format, text_only=config.text_only)
    check_not_inputs([file.path for file in corpus.files], [out, dropped_path(out)])
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    dropped = DroppedRecords()
    on_bad = dropped if config.skip_bad else None
    counts = count_corpus(corpus, engine, tau=config.tau, on_bad=on_bad, progress=progress)
    hashes = InputHashes(corpus.files, engine)
    n_rollouts = 0
    with atomic_write(out) as temporary:
        with _open_table(temporary, Path(out).suffix) as write_batch:
            for batch in score_batches(counts, alpha=config.alpha):
                write_batch(batch)
                n_rollouts += batch.num_rows
        dropped_to = dropped.write_beside(out, force=config.force)
        write_manifest(
            out,
            command="score",
            config={
                "alpha": config.alpha,
                "tau": config.tau,
                "skip_bad": config.skip_bad,
                "text_only": corpus.options.text_only,
            },
            inputs=corpus.manifest_entries(hashes),
            sources={source: dropped.account(source, n_kept=n) for source, n in counts.n_rollouts.items()},
            output=output_entry(out, temporary, n_rollouts),
        )
    return ScoreSummary(n_rollouts, len(dropped), dropped_to)

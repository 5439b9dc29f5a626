"""``mprm score``: one row a rollout, to look at or to select by other means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprm.data.corpus import InputHashes, check_inputs_kept, hash_file, open_corpus, write_manifest
from mprm.data.engine import EngineName, make_engine
from mprm.data.output import DroppedRecords, atomic_write, check_overwrite, dropped_path
from mprm.data.records import Chunk
from mprm.errors import ConfigError
from mprm.selection.scan import ROLLOUT, LabelCounts, count_corpus
from mprm.selection.strategies import R_of, mean_mc_of, p_pos_of, rank_bis


def score_batches(counts: LabelCounts, *, alpha: float) -> Iterator[Any]:
    """Arrow record batches with the scores of every rollout, in canonical order."""
    import pyarrow as pa

    names = pa.array(counts.sources, pa.string())
    for part in counts.parts:
        all_rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        places = np.flatnonzero(all_rows["kind"] == ROLLOUT)
        if not len(places):
            continue
        rows = all_rows[places]
        p_pos = p_pos_of(rows)
        columns = {
            "source": names.take(pa.array(rows["source"])),
            "file": pa.array([part.chunk.path] * len(rows), pa.string()),
            "line": pa.array(places + part.first_line, pa.int64()),
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


def _parquet(path: Path) -> AbstractContextManager[Any]:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(path, score_schema(), compression="zstd")  # type: ignore[no-any-return]


def _csv(path: Path) -> AbstractContextManager[Any]:
    from pyarrow import csv

    return csv.CSVWriter(str(path), score_schema())  # type: ignore[no-any-return]


class _JsonLines:
    """Writes batches as JSON lines."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("wb")

    def __enter__(self) -> _JsonLines:
        return self

    def __exit__(self, *_error: object) -> None:
        self._out.close()

    def write_batch(self, batch: Any) -> None:
        import msgspec

        encode = msgspec.json.Encoder().encode
        self._out.writelines(encode(row) + b"\n" for row in batch.to_pylist())


WRITERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": _JsonLines,
}


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """How many rollouts were scored and how many records left out."""

    n_rollouts: int
    n_dropped: int
    dropped_to: str | None


def score(
    paths: Any,
    out: str,
    *,
    alpha: float = 0.05,
    tau: float = 0.0,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    force: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> ScoreSummary:
    """Write the scores of every rollout to ``out``.

    Columns: source, file, line, n, n_pos, p_pos, mixture, R, mean_mc, bis.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    out
        A .parquet, .csv or .jsonl file.
    alpha, tau
        Smoothing of BIS; a step is positive when its score is strictly above tau.
    skip_bad
        Write bad records to ``OUT.dropped.jsonl`` instead of stopping at the first.
    """
    out = str(out)
    writer = WRITERS.get(Path(out).suffix)
    if writer is None:
        raise ConfigError(f"{out}: scores go to a {', '.join(WRITERS)} file")
    if not 0 <= alpha < float("inf"):
        raise ConfigError(f"alpha must be 0 or more, got {alpha}")
    check_overwrite(out, force=force)
    corpus = open_corpus(paths, format=format, text_only=text_only)
    check_inputs_kept(corpus, [out, dropped_path(out)])
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    dropped = DroppedRecords()
    counts = count_corpus(corpus, worker, tau=tau, on_bad=dropped if skip_bad else None, on_chunk=on_chunk)
    hashes = InputHashes(corpus, worker)
    n_rollouts, dropped_to = 0, None
    with atomic_write(out) as temporary:
        with writer(temporary) as table:
            for batch in score_batches(counts, alpha=alpha):
                table.write_batch(batch)
                n_rollouts += batch.num_rows
        if len(dropped):
            dropped_to = dropped_path(out)
            check_overwrite(dropped_to, force=force)
            dropped.write(dropped_to)
        write_manifest(
            out,
            command="score",
            config={
                "alpha": alpha,
                "tau": tau,
                "skip_bad": skip_bad,
                "text_only": corpus.judgement.text_only,
            },
            inputs=hashes.entries(),
            sources={source: dropped.account(source, n_kept=n) for source, n in counts.n_lines(ROLLOUT).items()},
            output={
                "path": out,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "n_rollouts": n_rollouts,
            },
        )
    return ScoreSummary(n_rollouts, len(dropped), dropped_to)

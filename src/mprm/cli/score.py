"""``mprm score``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import parsed
from mprm.cli.progress import progress
from mprm.config import Alpha, EngineOptions, Force, InputFormat, Option, Paths, SkipBad, Tau, TextOnly


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCommand(EngineOptions):
    """Write one row a rollout: source, line, n, n_pos, p_pos, mixture, R, mean MC and BIS."""

    paths: Paths
    out: Annotated[str, Option("A .parquet, .csv or .jsonl file.", "FILE")]
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.score`, print."""
    options = parsed(
        ScoreCommand,
        arguments,
        command="score",
        example="mprm score annotations/*.jsonl --out scores.parquet",
    )
    from mprm.data.corpus import open_corpus
    from mprm.selection.score import score

    corpus = open_corpus(options.paths, format=options.format, text_only=options.text_only)
    with progress("scoring", corpus.n_bytes) as on_chunk:
        summary = score(
            corpus,
            options.out,
            alpha=options.alpha,
            tau=options.tau,
            skip_bad=options.skip_bad,
            force=options.force,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    print(f"{summary.n_rollouts:,} rollouts scored in {options.out}.")
    if summary.n_dropped:
        print(f"{summary.n_dropped:,} bad records dropped, each with its reason in {summary.dropped_to}.")
    return 0

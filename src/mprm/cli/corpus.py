"""``mprm stats`` and ``mprm score``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import ScorerOptions, as_json, command, say_dropped, show_warnings
from mprm.cli.tables import latex_table, show_summary
from mprm.config import Json, Paths, output
from mprm.data.output import markdown_table
from mprm.errors import counted
from mprm.progress import progress_bar
from mprm.selection.score_table import ScoreConfig, score
from mprm.selection.stats import STATISTICS, StatsConfig, stats


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(ScoreConfig, ScorerOptions):
    paths: Paths
    out: Annotated[str, output("A .parquet or .jsonl file; .csv without lists of step scores.", "FILE")]


@command(ScoreCommand, "score", "annotations/*.jsonl --out scores.parquet")
def run_score(options: ScoreCommand) -> None:
    model = options.scorer() if options.has_scorer else None
    summary = score(options.paths, options.out, options, model=model, progress=progress_bar)
    print(f"{counted(summary.n_rollouts, 'rollout')} scored in {options.out}.")
    if summary.n_unscored:
        print(f"{counted(summary.n_unscored, 'step')} without a score of the model: beyond its length, or nan.")
    if summary.n_dropped:
        print(f"{counted(summary.n_dropped, 'bad record')} dropped, each with its reason in {summary.dropped_to}.")


@dataclass(frozen=True, kw_only=True)
class StatsCommand(StatsConfig):
    paths: Paths
    by: Annotated[Literal["source", "all"], output("One row a source and one for all, or only the last.")] = "source"
    style: Annotated[Literal["table", "markdown", "latex"], output("How to print.")] = "table"
    json: Json = False


@command(StatsCommand, "stats", "annotations/*.jsonl --style markdown")
def run_stats(options: StatsCommand) -> None:
    corpus = stats(options.paths, options, progress=progress_bar)
    say_dropped("stats", corpus.n_dropped)
    sources = corpus.sources if options.by == "source" else {}
    if options.json:
        by_source = {name: entry.as_dict() for name, entry in sources.items()}
        summary = {"sources": by_source, "all": corpus.total.as_dict(), "dropped": corpus.n_dropped}
        print(as_json({**summary, "warnings": corpus.warnings}))
        return
    heads = ["source", *(column.head for column in STATISTICS)]
    every = {**sources, "all": corpus.total}
    rows = [[name, *(column.cell(entry) for column in STATISTICS)] for name, entry in every.items()]
    if options.style == "table":
        optional = ("tied at α", "avg MC", "steps", "never sampled", "words/step", "avg out of N")
        show_summary("Statistics", heads, rows, optional=optional)
    else:
        print((markdown_table if options.style == "markdown" else latex_table)(heads, rows))
    show_warnings("stats", corpus.warnings)

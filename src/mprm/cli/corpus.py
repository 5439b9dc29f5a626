"""``mprm stats`` and ``mprm score``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed, show_warnings
from mprm.config import Json, Option, Paths
from mprm.errors import counted
from mprm.progress import progress_bar
from mprm.selection.stats import STATISTICS, ScoreConfig, StatsConfig, score, stats


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(ScoreConfig):
    __doc__ = ScoreConfig.__doc__

    paths: Paths
    out: Annotated[str, Option("A .parquet, .csv or .jsonl file.", "FILE", group="output")]


def run_score(arguments: list[str]) -> int:
    example = "mprm score annotations/*.jsonl --out scores.parquet"
    options = parsed(ScoreCommand, arguments, command="score", example=example)
    summary = score(options.paths, options.out, options.narrowed(ScoreConfig), progress=progress_bar)
    print(f"{counted(summary.n_rollouts, 'rollout')} scored in {options.out}.")
    if summary.n_dropped:
        print(f"{counted(summary.n_dropped, 'bad record')} dropped, each with its reason in {summary.dropped_to}.")
    return 0


@dataclass(frozen=True, kw_only=True)
class StatsCommand(StatsConfig):
    __doc__ = StatsConfig.__doc__

    paths: Paths
    by: Annotated[
        Literal["source", "all"], Option("One row a source and one for all, or only the last.", group="output")
    ] = "source"
    style: Annotated[Literal["table", "markdown", "latex"], Option("How to print.", group="output")] = "table"
    json: Json = False


def run_stats(arguments: list[str]) -> int:
    example = "mprm stats annotations/*.jsonl --style markdown"
    options = parsed(StatsCommand, arguments, command="stats", example=example)
    corpus = stats(options.paths, options.narrowed(StatsConfig), progress=progress_bar)
    if corpus.n_dropped:
        print(
            f"mprm stats: left out {counted(corpus.n_dropped, 'bad record')}; mprm check lists them", file=sys.stderr
        )
    sources = corpus.sources if options.by == "source" else {}
    if options.json:
        by_source = {name: entry.as_dict() for name, entry in sources.items()}
        summary = {"sources": by_source, "all": corpus.total.as_dict(), "dropped": corpus.n_dropped}
        print(as_json({**summary, "warnings": corpus.warnings}))
        return 0
    from mprm.cli.tables import latex_table, show_summary

    heads = ["source", *(column.head for column in STATISTICS)]
    every = {**sources, "all": corpus.total}
    rows = [[name, *(column.cell(entry) for column in STATISTICS)] for name, entry in every.items()]
    if options.style == "markdown":
        from mprm.data.output import markdown_table

        print(markdown_table(heads, rows))
    elif options.style == "latex":
        print(latex_table(heads, rows))
    else:
        optional = ("tied at α", "avg MC", "steps", "never sampled", "words/step", "avg out of N")
        show_summary("Statistics", heads, rows, optional=optional)
    show_warnings("stats", corpus.warnings)
    return 0

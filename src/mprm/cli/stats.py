"""``mprm stats``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import progress
from mprm.config import EngineOptions, InputFormat, Json, Option, Paths, SkipBad, Tau, TextOnly
from mprm.data.corpus import open_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsCommand(EngineOptions):
    """Show the paper's statistics tables for a corpus: per source and overall."""

    paths: Paths
    by: Annotated[Literal["source", "all"], Option("One row a source and one for all, or only the last.")] = "source"
    style: Annotated[Literal["table", "markdown", "latex"], Option("How to print.", group="output")] = "table"
    json: Json = False
    alpha: Annotated[float, Option("BIS smoothing, for the share of rollouts tied at it.", "NUMBER")] = 0.05
    tau: Tau = 0.0
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.stats`, print."""
    options = parsed(
        StatsCommand, arguments, command="stats", example="mprm stats annotations/*.jsonl --style markdown"
    )
    from mprm.selection.stats import stats

    corpus = open_corpus(options.paths, format=options.format, text_only=options.text_only)
    with progress("counting", corpus.n_bytes) as on_chunk:
        found = stats(
            corpus,
            alpha=options.alpha,
            tau=options.tau,
            skip_bad=options.skip_bad,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    if found.n_dropped:
        print(
            f"mprm stats: {found.n_dropped:,} bad records were left out; mprm check lists them",
            file=sys.stderr,
        )
    sources = found.sources if options.by == "source" else {}
    if options.json:
        by_source = {name: entry.as_dict() for name, entry in sources.items()}
        print(as_json({"sources": by_source, "all": found.total.as_dict(), "dropped": found.n_dropped}))
        return 0
    from mprm.cli.tables import latex_table, show_fitted, statistics_rows
    from mprm.data.tables import markdown_table
    from mprm.selection.stats import STATISTICS

    heads = ["source", *(column.head for column in STATISTICS)]
    rows = [*statistics_rows(sources, STATISTICS), *statistics_rows({"all": found.total}, STATISTICS)]
    if options.style == "markdown":
        print(markdown_table(heads, rows))
    elif options.style == "latex":
        print(latex_table(heads, rows))
    else:
        spare = ["never sampled", "avg out of N", "words/step", "tied at α", "mixed"]
        show_fitted("Statistics", heads, rows, spare=spare)
    return 0

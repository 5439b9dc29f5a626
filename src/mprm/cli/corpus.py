"""``mprm check``, ``mprm convert``, ``mprm stats``, ``mprm score`` and ``mprm quickstart``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.config import Config, Force, Json, Option, Paths
from mprm.data.check import CheckConfig, CheckReport, check
from mprm.data.convert import ConvertConfig, convert
from mprm.data.quickstart import quickstart
from mprm.data.validate import ERRORS, WARNINGS
from mprm.progress import progress_bar
from mprm.selection.score import ScoreConfig, score
from mprm.selection.stats import STATISTICS, StatsConfig, stats

EXAMPLES = 5
"""Issues shown of each kind, unless all are asked for."""


@dataclass(frozen=True, kw_only=True)
class CheckCommand(CheckConfig):
    __doc__ = CheckConfig.__doc__

    paths: Paths
    all: Annotated[bool, Option("List every issue, not only the first few of each kind.", group="output")] = False
    json: Annotated[bool, Option("Print everything as JSON, every issue included.", group="output")] = False


def run_check(arguments: list[str]) -> int:
    """Parse, call `mprm.check`, print."""
    example = "mprm check annotations/*.jsonl --image-root images/"
    options = parsed(CheckCommand, arguments, command="check", example=example)
    report = check(options.paths, options.narrowed(CheckConfig), progress=progress_bar)
    if options.json:
        print(as_json(_check_summary(report)))
    else:
        _print_check(report, list_all=options.all)
    return 1 if report.n_errors else 3 if report.n_warnings else 0


def _check_summary(report: CheckReport) -> dict[str, object]:
    return {
        "files": report.n_files,
        "records": report.n_records,
        "bad_records": report.n_bad_records,
        "errors": report.n_errors,
        "warnings": report.n_warnings,
        "counts": report.counts,
        "issues": [{**asdict(issue), "level": "error" if issue.is_error else "warning"} for issue in report.issues],
    }


def _print_check(report: CheckReport, *, list_all: bool) -> None:
    from mprm.cli.tables import rich_table, show

    if report.counts:
        rows = [
            [kind, "error" if kind in ERRORS else "warning", f"{n:,}", {**ERRORS, **WARNINGS}[kind]]
            for kind, n in report.counts.items()
        ]
        show(rich_table("Issues", ["kind", "level", "count", "meaning"], rows, left=(0, 1, 3), total_last=False))
    for kind, n in report.counts.items():
        of_kind = [issue for issue in report.issues if issue.kind == kind]
        for issue in of_kind if list_all else of_kind[:EXAMPLES]:
            print(f"{issue} [{kind}]")
        if n > EXAMPLES and not list_all:
            print(f"… and {n - EXAMPLES:,} more of {kind}; --all lists them.")
    print(
        f"{report.n_records:,} records in {report.n_files:,} files: {report.n_errors:,} errors in"
        f" {report.n_bad_records:,} records, {report.n_warnings:,} warnings."
    )


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(ConvertConfig):
    __doc__ = ConvertConfig.__doc__

    paths: Paths
    out: Annotated[str, Option("File for the converted rollouts.", "FILE", group="output")]
    json: Json = False


def run_convert(arguments: list[str]) -> int:
    """Parse, call `mprm.convert`, print."""
    example = "mprm convert bis10.jsonl --to trl --out bis10_trl.jsonl"
    options = parsed(ConvertCommand, arguments, command="convert", example=example)
    summary = convert(options.paths, options.out, options.narrowed(ConvertConfig), progress=progress_bar)
    if options.json:
        print(as_json(asdict(summary)))
        return 0
    print(f"{summary.n_records:,} records read, {summary.n_rollouts:,} rollouts in {summary.out}.")
    _print_dropped(summary.n_dropped, summary.dropped_to)
    for kind, n in summary.warnings.items():
        print(f"{n:,} warnings of {kind}: see mprm check.")
    return 0


def _print_dropped(n_dropped: int, dropped_to: str | None) -> None:
    if n_dropped:
        print(f"{n_dropped:,} bad records dropped, each with its reason in {dropped_to}.")


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(ScoreConfig):
    __doc__ = ScoreConfig.__doc__

    paths: Paths
    out: Annotated[str, Option("A .parquet, .csv or .jsonl file.", "FILE", group="output")]


def run_score(arguments: list[str]) -> int:
    """Parse, call `mprm.score`, print."""
    example = "mprm score annotations/*.jsonl --out scores.parquet"
    options = parsed(ScoreCommand, arguments, command="score", example=example)
    summary = score(options.paths, options.out, options.narrowed(ScoreConfig), progress=progress_bar)
    print(f"{summary.n_rollouts:,} rollouts scored in {options.out}.")
    _print_dropped(summary.n_dropped, summary.dropped_to)
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
    """Parse, call `mprm.stats`, print."""
    example = "mprm stats annotations/*.jsonl --style markdown"
    options = parsed(StatsCommand, arguments, command="stats", example=example)
    corpus = stats(options.paths, options.narrowed(StatsConfig), progress=progress_bar)
    if corpus.n_dropped:
        print(f"mprm stats: {corpus.n_dropped:,} bad records were left out; mprm check lists them", file=sys.stderr)
    sources = corpus.sources if options.by == "source" else {}
    if options.json:
        by_source = {name: entry.as_dict() for name, entry in sources.items()}
        print(as_json({"sources": by_source, "all": corpus.total.as_dict(), "dropped": corpus.n_dropped}))
        return 0
    from mprm.cli.tables import latex_table, show_fitted
    from mprm.data.tables import markdown_table

    heads = ["source", *(column.head for column in STATISTICS)]
    every = {**sources, "all": corpus.total}
    rows = [[name, *(column.cell(entry) for column in STATISTICS)] for name, entry in every.items()]
    if options.style == "markdown":
        print(markdown_table(heads, rows))
    elif options.style == "latex":
        print(latex_table(heads, rows))
    else:
        spare = ["never sampled", "avg out of N", "words/step", "tied at α", "mixed"]
        show_fitted("Statistics", heads, rows, spare=spare)
    return 0


@dataclass(frozen=True, kw_only=True)
class QuickstartCommand(Config):
    """Write the quick-start corpus: 400 annotated rollouts of a small visual world, with their images."""

    folder: Annotated[str, Option("Folder for annotations/ and images/.", "DIR", is_positional=True)] = "."
    force: Force = False


def run_quickstart(arguments: list[str]) -> int:
    """Parse, call `mprm.quickstart`, print."""
    options = parsed(QuickstartCommand, arguments, command="quickstart", example="mprm quickstart .")
    paths = quickstart(options.folder, force=options.force)
    for path in paths:
        print(f"{path}: {len(path.read_bytes().splitlines())} rollouts")
    folder = paths[0].parent
    print(f"Images are in {folder.parent / 'images'}.\nNext: mprm stats {shlex.quote(str(folder))}")
    return 0

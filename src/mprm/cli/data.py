"""``mprm check``, ``mprm convert`` and ``mprm quickstart``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Config, Force, Json, Paths, output, positional
from mprm.data.check import CheckConfig, CheckReport, check
from mprm.data.convert import ConvertConfig, convert
from mprm.data.quickstart import quickstart
from mprm.data.types import ERRORS, WARNINGS
from mprm.errors import counted
from mprm.progress import progress_bar

EXAMPLES = 5
"""Issues shown of each kind, unless all are asked for."""


@dataclass(frozen=True, kw_only=True)
class CheckCommand(CheckConfig):
    paths: Paths
    all: Annotated[bool, output("List every issue, not only the first few of each kind.")] = False
    json: Annotated[bool, output("Print everything as JSON, every issue included.")] = False


@command(CheckCommand, "check", "annotations/*.jsonl --image-root images/")
def run_check(options: CheckCommand) -> int:
    report = check(options.paths, options, progress=progress_bar)
    if options.json:
        names = ("files", "records", "bad_records", "errors", "warnings")
        summary = {name: getattr(report, f"n_{name}") for name in names}
        issues = [{**asdict(issue), "level": "error" if issue.is_error else "warning"} for issue in report.issues]
        print(as_json({**summary, "counts": report.counts, "issues": issues}))
    else:
        _print_check(report, list_all=options.all)
    return 1 if report.n_errors else 3 if report.n_warnings else 0


def _print_check(report: CheckReport, *, list_all: bool) -> None:
    from mprm.cli.tables import show_table

    if report.counts:
        rows = [
            [kind, "error" if kind in ERRORS else "warning", f"{n:,}", {**ERRORS, **WARNINGS}[kind]]
            for kind, n in report.counts.items()
        ]
        show_table("Issues", ["kind", "level", "count", "meaning"], rows, left=(0, 1, 3), total_last=False)
    for kind, n in report.counts.items():
        of_kind = [issue for issue in report.issues if issue.kind == kind]
        for issue in of_kind if list_all else of_kind[:EXAMPLES]:
            print(f"{issue} [{kind}]")
        if n > EXAMPLES and not list_all:
            print(f"… and {n - EXAMPLES:,} more of {kind}; --all lists them.")
    print(
        f"{counted(report.n_records, 'record')} in {counted(report.n_files, 'file')}:"
        f" {counted(report.n_errors, 'error')} in {counted(report.n_bad_records, 'record')},"
        f" {counted(report.n_warnings, 'warning')}."
    )


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(ConvertConfig):
    paths: Paths
    out: Annotated[str, output("File for the converted rollouts.", "FILE")]
    json: Json = False


@command(ConvertCommand, "convert", "bis10.jsonl --to trl --out bis10_trl.jsonl")
def run_convert(options: ConvertCommand) -> None:
    summary = convert(options.paths, options.out, options, progress=progress_bar)
    if options.json:
        print(as_json(summary))
        return
    print(f"{counted(summary.n_records, 'record')} read, {counted(summary.n_rollouts, 'rollout')} in {summary.out}.")
    if summary.n_dropped:
        print(f"{counted(summary.n_dropped, 'bad record')} dropped, each with its reason in {summary.dropped_to}.")
    for kind, n in summary.warnings.items():
        print(f"{counted(n, 'warning')} of {kind}: see mprm check.")


@dataclass(frozen=True, kw_only=True)
class QuickstartCommand(Config):
    """Write the quick-start corpus: 400 annotated rollouts of a small visual world, with their images."""

    folder: Annotated[str, positional("Folder for annotations/ and images/.", "DIR")] = "."
    force: Force = False


@command(QuickstartCommand, "quickstart", ".")
def run_quickstart(options: QuickstartCommand) -> None:
    paths = quickstart(options.folder, force=options.force)
    for path in paths:
        print(f"{path}: {len(path.read_bytes().splitlines())} rollouts")
    folder = paths[0].parent
    print(f"Images are in {folder.parent / 'images'}.\nNext: mprm stats {shlex.quote(str(folder))}")

"""``mprm check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import progress
from mprm.config import EngineOptions, InputFormat, Option, Paths, TextOnly

if TYPE_CHECKING:
    from mprm.data.check import CheckReport


EXAMPLES = 5
"""Problems shown of each kind, unless all are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCommand(EngineOptions):
    """Find every problem in a corpus, with file and line; the exit code tells errors (1) and warnings (3)."""

    paths: Paths
    image_root: Annotated[
        str | None,
        Option("Folder that must hold every image; else they are not looked for.", "DIR"),
    ] = None
    all: Annotated[bool, Option("List every problem, not only the first few of each kind.")] = False
    json: Annotated[bool, Option("Print everything as JSON, every problem included.")] = False
    format: InputFormat = None
    text_only: TextOnly = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.check`, print."""
    options = parsed(
        CheckCommand,
        arguments,
        command="check",
        example="mprm check annotations/*.jsonl --image-root images/",
    )
    from mprm.data.check import check
    from mprm.data.records import corpus_files

    with progress("checking", sum(file.n_bytes for file in corpus_files(options.paths))) as on_chunk:
        report = check(
            options.paths,
            image_root=options.image_root,
            format=options.format,
            text_only=options.text_only,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    if options.json:
        print(as_json(_summary(report)))
    else:
        _print(report, list_all=options.all)
    return 1 if report.n_errors else 3 if report.n_warnings else 0


def _summary(report: CheckReport) -> dict[str, object]:
    return {
        "files": report.n_files,
        "records": report.n_records,
        "bad_records": report.n_bad_records,
        "errors": report.n_errors,
        "warnings": report.n_warnings,
        "counts": report.counts,
        "problems": [
            {
                "file": problem.file,
                "line": problem.line,
                "level": "error" if problem.is_error else "warning",
                "kind": problem.kind,
                "text": problem.text,
            }
            for problem in report.problems
        ],
    }


def _print(report: CheckReport, *, list_all: bool) -> None:
    from mprm.cli.tables import rich_table, show
    from mprm.data.validate import ERRORS, WARNINGS

    if report.counts:
        rows = [
            [kind, "error" if kind in ERRORS else "warning", f"{n:,}", {**ERRORS, **WARNINGS}[kind]]
            for kind, n in report.counts.items()
        ]
        show(rich_table("Problems", ["kind", "level", "found", "meaning"], rows, left=(0, 1, 3), total_last=False))
    for kind, n in report.counts.items():
        shown = [problem for problem in report.problems if problem.kind == kind]
        for problem in shown if list_all else shown[:EXAMPLES]:
            print(f"{problem} [{kind}]")
        if n > EXAMPLES and not list_all:
            print(f"… and {n - EXAMPLES:,} more of {kind}; --all lists them.")
    print(
        f"{report.n_records:,} records in {report.n_files:,} files: {report.n_errors:,} errors in"
        f" {report.n_bad_records:,} records, {report.n_warnings:,} warnings."
    )

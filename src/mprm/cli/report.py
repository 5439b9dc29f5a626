"""``mprm report``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Json, positional
from mprm.errors import counted
from mprm.progress import progress_bar
from mprm.report.report import ReportConfig, report


@dataclass(frozen=True, kw_only=True)
class ReportCommand(ReportConfig):
    paths: Annotated[
        tuple[str, ...], positional("Files, globs, folders or URLs of rollouts; not needed for runs alone.", "INPUT")
    ] = ()
    json: Json = False


@command(ReportCommand, "report", "annotations/*.jsonl --image-root images --runs runs eval --out report.html")
def run_report(options: ReportCommand) -> None:
    result = report(options.paths, options, progress=progress_bar)
    if options.json:
        print(as_json(result))
        return
    if result.n_rollouts or result.n_dropped:
        print(f"{counted(result.n_rollouts, 'rollout')}, {counted(result.n_dropped, 'bad record')} left out.")
    print(f"The page is {result.page} ({result.n_bytes / 1e6:.2f} MB); it opens without a network.")
    if result.figures:
        print(f"{len(result.figures)} figures are in {options.figures}.")

"""``mprm evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Json, output, positional
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(EvaluateConfig):
    benchmarks: Annotated[
        tuple[str, ...],
        positional(
            "Files, globs, folders or URLs of VisualProcessBench, ProcessBench, PRMBench, VLRMBench or rollouts;"
            " not needed for saved scores.",
            "BENCHMARK",
        ),
    ] = ()
    verbose: Annotated[bool, output("Print every metric, source and difference.")] = False
    json: Json = False


@command(EvaluateCommand, "evaluate", "bench/test.jsonl --model runs/bis10 --image-root bench --out eval/bis10")
def run_evaluate(options: EvaluateCommand) -> None:
    evaluation = evaluate(options.benchmarks or None, config=options, progress=progress_bar)
    if options.json:
        print(as_json(evaluation.to_json()))
        return
    from mprm.cli.tables import show_tables

    show_tables([*evaluation.summary(), *(evaluation.tables() if options.verbose else ())])
    if options.out is not None:
        print(f"Scores and all metrics are in {options.out}.")
    if not options.verbose:
        print("Every metric and source: --verbose.")

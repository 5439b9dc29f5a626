"""``mprm evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.config import Json, Option
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(EvaluateConfig):
    """Evaluate process reward models on benchmarks of solutions with labelled steps."""

    benchmarks: Annotated[
        tuple[str, ...],
        Option(
            "Files, globs, folders or URLs of VisualProcessBench, ProcessBench, PRMBench, VLRMBench or rollouts;"
            " not needed for saved scores.",
            "BENCHMARK",
            is_positional=True,
        ),
    ] = ()
    verbose: Annotated[bool, Option("Print every metric, source and difference.", group="output")] = False
    json: Json = False


def run(arguments: list[str]) -> int:
    example = "mprm evaluate bench/test.jsonl --model runs/bis10 --image-root bench --out eval/bis10"
    options = parsed(EvaluateCommand, arguments, command="evaluate", example=example)
    evaluation = evaluate(options.benchmarks or None, config=options.narrowed(EvaluateConfig), progress=progress_bar)
    if options.json:
        print(as_json(evaluation.to_json()))
        return 0
    from mprm.cli.tables import show_tables

    show_tables([*evaluation.summary(), *(evaluation.tables() if options.verbose else ())])
    if options.out is not None:
        print(f"Scores and all metrics are in {options.out}.")
    if not options.verbose:
        print("Every metric and source: --verbose.")
    return 0

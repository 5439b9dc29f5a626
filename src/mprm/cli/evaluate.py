"""``mprm evaluate`` and ``mprm rerank``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Json, output, positional
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.evaluation.rerank import RerankConfig, rerank
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


@dataclass(frozen=True, kw_only=True)
class RerankCommand(RerankConfig):
    candidates: Annotated[
        tuple[str, ...], positional("Files, globs or folders of candidates: mprm, MM-PRM or RLHFlow.", "CANDIDATES")
    ]
    json: Json = False


@command(RerankCommand, "rerank", "candidates.jsonl --model runs/bis10 --image-root images --out rerank/bis10")
def run_rerank(options: RerankCommand) -> None:
    reranking = rerank(options.candidates, config=options, progress=progress_bar)
    if options.json:
        print(as_json(reranking.to_json()))
        return
    from mprm.cli.tables import show_tables
    from mprm.data.charts import can_draw

    show_tables(reranking.tables())
    print(*reranking.notes(), sep="\n")
    if options.out is not None:
        print(f"Choices, metrics and scores in {options.out}.")
        if not can_draw():
            print("No figure: it needs Altair and vl-convert; install mprm with its extra [report].")

"""``mprm rerank``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.config import Json, Option
from mprm.evaluation.rerank import RerankConfig, rerank
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class RerankCommand(RerankConfig):
    """Choose the best of N candidates by the scores of their steps, and measure what the choice is worth."""

    candidates: Annotated[
        tuple[str, ...],
        Option("Files, globs or folders of candidates: mprm, MM-PRM or RLHFlow.", "CANDIDATES", is_positional=True),
    ]
    json: Json = False


def run(arguments: list[str]) -> int:
    example = "mprm rerank candidates.jsonl --model runs/bis10 --image-root images --out rerank/bis10"
    options = parsed(RerankCommand, arguments, command="rerank", example=example)
    reranking = rerank(options.candidates, config=options.narrowed(RerankConfig), progress=progress_bar)
    if options.json:
        print(as_json(reranking.to_json()))
        return 0
    from mprm.cli.tables import show_tables
    from mprm.data.charts import can_draw

    show_tables(reranking.tables())
    print(*reranking.notes(), sep="\n")
    if options.out is not None:
        print(f"Choices, metrics and scores in {options.out}.")
        if not can_draw():
            print("No figure: it needs Altair and vl-convert; install mprm with its extra [report].")
    return 0

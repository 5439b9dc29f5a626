"""``mprm rerank``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Json, positional
from mprm.evaluation.rerank import RerankConfig, rerank
from mprm.progress import progress_bar


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

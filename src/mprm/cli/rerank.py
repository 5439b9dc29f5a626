"""``mprm rerank``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.config import Config, Force, Json, Option
from mprm.errors import ConfigError
from mprm.progress import progress_bar


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCommand(Config):
    """Choose the best of N candidates by the scores of their steps, and measure what the choice is worth."""

    candidates: Annotated[
        tuple[str, ...],
        Option("Files, globs or folders of candidates: mprm, MM-PRM or RLHFlow.", "CANDIDATES", is_positional=True),
    ]
    model: Annotated[str | None, Option("Process reward model that scores the steps.", "DIR")] = None
    scores: Annotated[str | None, Option("scores.jsonl of an earlier run, instead of a model.", "FILE")] = None
    out: Annotated[
        str | None,
        Option("Folder for scores.jsonl, chosen.jsonl, metrics.json, metrics.md and the figure.", "DIR"),
    ] = None
    aggregate: Annotated[
        Literal["mean", "min", "last", "product", "max"],
        Option("How step scores make the score of a candidate; the paper takes the mean."),
    ] = "mean"
    n: Annotated[
        str | None, Option("Values of N; powers of two up to the number of candidates by default.", "N,N,…")
    ] = None
    subsets: Annotated[
        Literal["all", "first"],
        Option("Best of N as the expectation over all subsets of N candidates, or among the first N alone."),
    ] = "all"
    draws: Annotated[int, Option("Bootstrap draws, and most subsets that a vote is averaged over.", "N")] = 1000
    seed: Annotated[int, Option("Seed of draws, subsets and ties.", "N")] = 0
    timeout_s: Annotated[float, Option("Longest time to check one answer.", "SECONDS")] = 5.0
    candidates_format: Annotated[
        Literal["mprm", "mm-prm", "rlhflow"] | None,
        Option("Format of the candidates, where records must not tell."),
    ] = None
    image_root: Annotated[str | None, Option("Folder that holds the questions' images.", "DIR")] = None
    batch_tokens: Annotated[int | None, Option("Tokens in a batch; less needs less memory.", "N")] = None
    device: Annotated[str, Option("Where the model runs, such as cpu or cuda:1.", "NAME")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Option("Number format of the model's weights.")
    ] = "auto"
    json: Json = False
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.rerank`, print."""
    options = parsed(
        RerankCommand,
        arguments,
        command="rerank",
        example="mprm rerank candidates.jsonl --model runs/bis10 --image-root images --out rerank/bis10",
    )
    from mprm.evaluation.rerank import RerankConfig, rerank

    config = RerankConfig(
        aggregate=options.aggregate,
        n=_ns(options.n),
        subsets=options.subsets,
        draws=options.draws,
        seed=options.seed,
        timeout_s=options.timeout_s,
    )
    found = rerank(
        options.candidates,
        options.model,
        scores=options.scores,
        out=options.out,
        config=config,
        format=options.candidates_format,
        image_root=options.image_root,
        force=options.force,
        watch=progress_bar,
        device=options.device,
        dtype=options.dtype,
        tokens_per_batch=options.batch_tokens,
    )
    if options.json:
        from mprm.evaluation.rerank_tables import metrics

        print(as_json(metrics(found)))
        return 0
    from mprm.cli.tables import show_split
    from mprm.evaluation.rerank_tables import can_draw, notes, tables

    for title, heads, rows in tables(found):
        show_split(title, list(heads), [list(row) for row in rows], total_last=False)
    print(*notes(found), sep="\n")
    if options.out is not None:
        print(f"Choices, metrics and scores in {Path(options.out)}.")
        if not can_draw():
            print("No figure: it needs Altair and vl-convert; install mprm with its extra [report].")
    return 0


def _ns(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise ConfigError(f"--n {text}: expected numbers with commas between them, such as 1,2,4,8,16") from error

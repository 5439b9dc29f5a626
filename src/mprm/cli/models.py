"""``mprm train``, ``mprm evaluate``, ``mprm rerank`` and ``mprm convert-internvl``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Force, Json, Option, Paths, output
from mprm.errors import counted
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.evaluation.rerank import RerankConfig, rerank
from mprm.models.internvl_convert import ConvertInternVLConfig, convert_internvl
from mprm.progress import progress_bar
from mprm.training.train import TrainConfig, leave_process_group, resume_hint, train


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainConfig):
    """Train a process reward model on annotated rollouts, with the paper's hyperparameters by default.

    Several GPUs: torchrun --nproc-per-node 4 -m mprm train …, or accelerate launch -m mprm train ….
    """

    paths: Paths
    resume: Annotated[bool, output("Continue from the last complete checkpoint.")] = False
    force: Force = False
    json: Json = False


@command(TrainCommand, "train", "bis10.jsonl --model Qwen2.5-VL-7B-Instruct --image-root images --out runs/bis10")
def run_train(options: TrainCommand) -> None:
    config = options.narrowed(TrainConfig)
    try:
        trained = train(options.paths, config, resume=options.resume, force=options.force, progress=progress_bar)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resume_hint(config.out)) from None
    leave_process_group()
    if not trained.is_first:
        os._exit(0)  # its work is done, and threads of torch.distributed now and then crash a process that ends
    if options.json:
        print(as_json(trained))
        return
    data = trained.data
    n_dropped = sum(sum(kinds.values()) for kinds in data["dropped"].values())
    print(
        f"{counted(data['rollouts'], 'rollout')} with {counted(data['steps'], 'step')},"
        f" {data['positive_steps']:,} of them positive."
    )
    if data["steps_lost_to_truncation"]:
        print(
            f"{data['steps_lost_to_truncation']:,} steps of {data['rollouts_truncated']:,} rollouts were truncated"
            f" at {config.max_length:,} tokens."
        )
    if n_dropped:
        print(f"{n_dropped:,} rollouts dropped, each with its reason in {trained.out}/data/dropped.jsonl.")
    if trained.loss is None:
        print(f"The run was finished already; the model is in {trained.out}.")
        return
    end = f"the model is in {trained.out}" if trained.is_finished else "continue with --resume"
    since = " since it was resumed" if options.resume else ""
    print(f"{trained.n_optimizer_steps:,} optimizer steps done, mean loss{since} {trained.loss:.4f}; {end}.")


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
    verbose: Annotated[bool, output("Print every metric, source and difference.")] = False
    json: Json = False


@command(EvaluateCommand, "evaluate", "bench/test.jsonl --model runs/bis10 --image-root bench --out eval/bis10")
def run_evaluate(options: EvaluateCommand) -> None:
    evaluation = evaluate(options.benchmarks or None, config=options.narrowed(EvaluateConfig), progress=progress_bar)
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
    """Choose the best of N candidates by the scores of their steps, and measure what the choice is worth."""

    candidates: Annotated[
        tuple[str, ...],
        Option("Files, globs or folders of candidates: mprm, MM-PRM or RLHFlow.", "CANDIDATES", is_positional=True),
    ]
    json: Json = False


@command(RerankCommand, "rerank", "candidates.jsonl --model runs/bis10 --image-root images --out rerank/bis10")
def run_rerank(options: RerankCommand) -> None:
    reranking = rerank(options.candidates, config=options.narrowed(RerankConfig), progress=progress_bar)
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


@dataclass(frozen=True, kw_only=True)
class ConvertInternVLCommand(ConvertInternVLConfig):
    """Rewrite a published InternVL2.5 checkpoint for transformers' own class, without running its code."""

    source: Annotated[str, Option("Folder of the published checkpoint.", "SOURCE", is_positional=True)]
    out: Annotated[str, output("Folder to write.", "DIR")]
    json: Json = False


@command(ConvertInternVLCommand, "convert-internvl", "InternVL2_5-8B --out InternVL2_5-8B-native")
def run_internvl(options: ConvertInternVLCommand) -> None:
    config = options.narrowed(ConvertInternVLConfig)
    summary = convert_internvl(options.source, options.out, config, progress=progress_bar)
    if options.json:
        print(as_json(summary))
        return
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{summary.n_source_tensors:,} tensors read, {summary.n_tensors:,} written to {summary.out}:"
        f" {summary.n_parameters:,} parameters, {summary.n_bytes / 1e9:.2f} GB of {summary.dtype},"
        f" language model {summary.language_model}, image token {summary.image_token_id}."
    )

"""``mprm train`` and ``mprm report``, whose options load without what they run on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Force, Json, Paths, output, positional
from mprm.errors import counted
from mprm.progress import progress_bar
from mprm.report.report import ReportConfig, report
from mprm.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainConfig):
    """Train a process reward model on annotated rollouts, with the paper's hyperparameters by default.

    Several GPUs: torchrun --nproc-per-node 4 -m mprm train …, or accelerate launch -m mprm train ….
    """

    paths: Paths
    resume: Annotated[bool, output("Continue from the last complete checkpoint.")] = False
    force: Force = False
    json: Json = False


@command(
    TrainCommand, "train", "bis10.jsonl --model Qwen/Qwen2.5-VL-7B-Instruct --image-root images --out runs/bis10"
)
def run_train(options: TrainCommand) -> None:
    from mprm.training.train import leave_process_group, resume_hint, train

    try:
        trained = train(options.paths, options, resume=options.resume, force=options.force, progress=progress_bar)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resume_hint(options.out)) from None
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
            f" at {options.max_length:,} tokens."
        )
    if n_dropped:
        print(f"{n_dropped:,} rollouts dropped, each with its reason in {trained.out}/data/dropped.jsonl.")
    if trained.loss is None:
        print(f"The run was finished already; the model is in {trained.out}.")
        return
    end = f"the model is in {trained.out}" if trained.is_finished else "continue with --resume"
    since = " since it was resumed" if options.resume else ""
    print(f"{counted(trained.n_optimizer_steps, 'optimizer step')} done, mean loss{since} {trained.loss:.4f}; {end}.")


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

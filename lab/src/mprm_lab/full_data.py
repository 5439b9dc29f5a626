"""What all rollouts teach a small reward model: the row that subsets are compared with where there is no GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

from mprm.data.benchmarks import check_images_exist, read_benchmark
from mprm.evaluation.step_table import score_benchmark, write_scores
from mprm.models import PRM
from mprm.training import TrainConfig, train
from mprm_lab.reproduce.reproduce_plan import TRAINING

NAME = "full"


def score_with_full_data(folder: Path, out: Path, *, policy: str, learning_rate: float, device: str) -> None:
    """Train a reward model on the whole corpus, score the benchmark's steps with it, keep the scores alone."""
    run, images = out.parent / NAME, folder / "images"
    shutil.rmtree(run, ignore_errors=True)  # of a command that was stopped
    benchmark = read_benchmark(str(folder / "benchmark.jsonl"))
    check_images_exist(benchmark, images)
    config = TrainConfig(
        model=str(folder / "policies" / policy),
        out=str(run),
        image_root=str(images),
        learning_rate=learning_rate,
        device=device,  # type: ignore[arg-type]
        gradient_checkpointing=False,
        save_every=0,
        report_to=("none",),
        **TRAINING,
    )
    train(str(folder / "corpus.jsonl"), config)
    prm = PRM.from_pretrained(run, device=device, image_root=images)
    write_scores(str(out), score_benchmark(benchmark, prm, name=NAME), config={"model": NAME}, inputs=[])
    shutil.rmtree(run)

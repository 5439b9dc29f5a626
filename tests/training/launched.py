"""What the distributed tests launch: a few optimizer steps of each backbone, gradients and weights written by the first rank.

torchrun --nproc-per-node 2 -m tests.training.launched FOLDER OUT PER_DEVICE KIND…

FOLDER holds a checkpoint of each kind, images/, images.jsonl and text.jsonl.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from mprm.training import TrainConfig, train
from mprm.training.train import leave_process_group
from mprm.training.trainer import PRMTrainer


class DumpGradients(TrainerCallback):
    """Keeps the gradients of each optimizer step, as they are before the optimizer sees them."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.losses: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.gradients.append(
            {name.removeprefix("module."): gradient.clone() for name, gradient in gradients.items()}
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def optimizer_steps(kind: str, folder: Path, out: Path, per_device: int, pack: Any = "tree", **options: Any) -> None:
    """Train a few optimizer steps and write ``gradients.pt`` into ``out``."""
    dump = DumpGradients()
    original = PRMTrainer.__init__

    def with_dump(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.add_callback(dump)

    PRMTrainer.__init__ = with_dump  # type: ignore[method-assign]
    try:
        config = TrainConfig(
            model=str(folder / kind),
            out=str(out),
            batch_size=4,
            per_device=per_device,
            pack=pack,
            learning_rate=1e-3,
            max_grad_norm=0.0,
            image_root=str(folder / "images"),
            text_only=kind == "text",
            device="cpu",
            dataloader_workers=0,
            save_every=0,
            report_to=("none",),
            **options,
        )
        train(str(folder / f"{'text' if kind == 'text' else 'images'}.jsonl"), config)
    finally:
        PRMTrainer.__init__ = original  # type: ignore[method-assign]
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save({"gradients": dump.gradients, "losses": dump.losses}, out / "gradients.pt")


if __name__ == "__main__":
    root, destination, size, *kinds = sys.argv[1:]
    for each in kinds:
        optimizer_steps(each, Path(root), Path(destination) / each, int(size))
    leave_process_group()

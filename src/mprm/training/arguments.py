"""Trainer's arguments from ours."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import Any

from mprm.engines.local import n_cores
from mprm.errors import ConfigError
from mprm.training.batches import BatchPlan
from mprm.training.config import TrainConfig

LAUNCH = Path(__file__).parent / "launch"
"""Ready configurations for sharded training."""


def uses_bf16(config: TrainConfig) -> bool:
    """Whether arithmetic is in bf16; ``auto`` is yes on a GPU and no on a CPU."""
    import torch

    if config.precision == "auto":
        return config.device != "cpu" and torch.cuda.is_available()
    return config.precision in ("bf16", "pure-bf16")


def reporters(names: tuple[str, ...]) -> list[str]:
    """The loggers that are there; TensorBoard is left out with a word where it is not installed."""
    if "tensorboard" in names and not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
        print("no TensorBoard log: pip install tensorboard, or say --report-to none", file=sys.stderr)
        names = tuple(name for name in names if name != "tensorboard")
    return [name for name in names if name != "none"]


def trainer_arguments(config: TrainConfig, plan: BatchPlan | None = None) -> Any:
    """``transformers.TrainingArguments`` of the run.

    Without a plan they only say how the run is launched: where this rank stands, and whether DeepSpeed
    splits the weights, which must be known before they are loaded.
    """
    from transformers import TrainingArguments

    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(Path(config.out) / "logs"))
    n_updates = 1 if plan is None else plan.n_updates * config.epochs
    bf16 = uses_bf16(config)
    arguments = TrainingArguments(
        output_dir=str(Path(config.out) / "checkpoints"),
        per_device_train_batch_size=config.per_device,
        gradient_accumulation_steps=1 if plan is None else plan.accumulation,
        num_train_epochs=config.epochs,
        optim="adamw_torch_fused",
        learning_rate=config.learning_rate,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        lr_scheduler_type="cosine",
        # Trainer's first warm-up update has a learning rate of zero: a run of one update must not consist of it
        warmup_steps=min(math.ceil(config.warmup * n_updates), n_updates - 1),
        bf16=bf16,
        use_cpu=config.device == "cpu",
        gradient_checkpointing=config.gradient_checkpointing and config.sharding != "fsdp",
        gradient_checkpointing_kwargs={"use_reentrant": False},
        ddp_find_unused_parameters=False,
        ddp_timeout=7200,
        seed=config.seed,
        data_seed=config.seed,
        dataloader_num_workers=min(config.workers, n_cores()),
        remove_unused_columns=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 1,
        save_total_limit=None,
        eval_strategy="no",
        report_to=reporters(config.report_to),
        disable_tqdm=True,
        **_sharding(config),
    )
    if config.sharding != "none" and arguments.world_size == 1:
        raise ConfigError(
            f"sharding {config.sharding} splits a model over several processes; start them with torchrun"
        )
    if arguments.n_gpu > 1:
        raise ConfigError(
            f"this process sees {arguments.n_gpu} GPUs; start one process a GPU with torchrun --nproc-per-node"
            f" {arguments.n_gpu} -m mprm train …, or show it one with CUDA_VISIBLE_DEVICES=0"
        )
    return arguments


def _sharding(config: TrainConfig) -> dict[str, Any]:
    """What splits the weights; `mprm/training/launch` holds the same for ``accelerate launch``."""
    if config.sharding == "fsdp":
        return {
            "fsdp": True,
            "fsdp_config": {"version": 2, "activation_checkpointing": config.gradient_checkpointing},
        }
    if config.sharding == "zero3":
        if importlib.util.find_spec("deepspeed") is None:
            raise ConfigError("sharding zero3 needs DeepSpeed: pip install deepspeed, or take --sharding fsdp")
        return {"deepspeed": str(LAUNCH / "zero3.json")}
    return {}

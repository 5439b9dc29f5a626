"""Trainer's arguments from ours.

Low-rank adapters on the language model, the projector trained whole.

transformers' Trainer with this package's batches, loss and checkpoints.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer

from mprm.data.engine import n_cores
from mprm.errors import ConfigError, DataError, MissingDependencyError
from mprm.models.checkpoint import check_complete
from mprm.models.families import Family
from mprm.models.head import PRMModel
from mprm.training.batches import BatchPlan, RankBatches
from mprm.training.config import TrainConfig
from mprm.training.dataset import TrainingSet
from mprm.training.loss import step_loss_sum
from mprm.training.run_dir import checkpoints

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


def with_lora(model: Any, family: Family, config: TrainConfig) -> Any:
    """The model in which only adapters on the language model's linear layers, and the projector, are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependencyError("--lora-rank needs peft: install mprm with its extra [train]") from error
    from torch import nn

    tower, projector, head = family.vision_tower(model), family.projector(model), model.get_output_embeddings()
    apart = {id(module) for part in (tower, projector, head) if part is not None for module in part.modules()}
    targets = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and id(module) not in apart
    ]
    if not targets:
        raise ConfigError("the model has no linear layers that adapters could go on")
    whole = [name for name, module in model.named_modules() if projector is not None and module is projector]
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha if config.lora_alpha is not None else 2 * config.lora_rank,
        target_modules=targets,
        modules_to_save=whole or None,
        base_model_name_or_path=config.model,
    )
    return get_peft_model(model, lora)


class PRMTrainer(Trainer):  # type: ignore[misc]
    """Trains a step reader on the batches of a plan."""

    loss_is_scaled_for_ga = True
    """The loss is divided by the steps of the whole global batch; the number of micro-batches has no part in it."""

    def __init__(
        self,
        *args: Any,
        plan: BatchPlan,
        examples: TrainingSet,
        finish_checkpoint: Callable[[Path], None],
        keep: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, train_dataset=examples, **kwargs)
        self.model_accepts_loss_kwargs = True  # what older versions ask instead of loss_is_scaled_for_ga
        self._plan, self._examples, self._keep = plan, examples, keep
        self._finish_checkpoint = finish_checkpoint
        self._unchecked: list[tuple[torch.Tensor, list[str]]] = []
        self._batches_of = lru_cache(maxsize=1)(plan.global_batches)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro-batches of this rank; not handed to Accelerate, which would repeat rollouts to fill the last."""
        workers = self.args.dataloader_num_workers
        return _EpochLoader(
            self._examples,  # type: ignore[arg-type]
            batch_sampler=RankBatches(self._plan, self.args.process_index),
            collate_fn=self._examples.collate,
            num_workers=workers,
            pin_memory=self.args.device.type == "cuda",
            prefetch_factor=2 if workers else None,
        )

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[Any, Any]:
        """The micro-batches of the next update, each loaded when its turn comes, and the update's number of steps.

        Trainer would load all of them first: with images, gigabytes.
        """
        epoch, update = divmod(self.state.global_step, self._plan.n_updates)
        batch = self._batches_of(epoch)[update]
        n_steps = int(self._examples.n_kept[batch].sum())
        return _Lazy(epoch_iterator, num_batches), torch.tensor(n_steps, device=device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The summed loss over the steps of the global batch; scaled up, as gradients are averaged over ranks."""
        inputs = dict(inputs)
        labels, places = inputs.pop("labels"), inputs.pop("places")
        outputs = model(**inputs)
        total = step_loss_sum(outputs["logits"], labels)
        self._unchecked.append((total.detach(), places))
        loss = total / num_items_in_batch * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's; before the weights change, no loss of the update may be infinite or no number.

        Once an update: the device has to finish its work to answer.
        """
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            losses = torch.stack([total for total, _ in self._unchecked]).tolist()
            for value, (_, places) in zip(losses, self._unchecked, strict=True):
                if not math.isfinite(value):
                    raise DataError(
                        f"the loss of update {self.state.global_step + 1} is {value}; its micro-batch holds"
                        f" {', '.join(places)}. A lower --learning-rate, or --precision float32, may help."
                    )
            self._unchecked.clear()
        return loss

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Weights of a checkpoint, every one of them.

        Trainer compares names as they are in the file and passes over those it does not know. A checkpoint
        of a vision-language model has its published names, which differ: none of it would be loaded.
        """
        plain: Any = self.model if model is None else model
        is_plain = isinstance(plain, PRMModel) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        if not is_plain:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        saved, info = plain.step_family.model_class().from_pretrained(
            resume_from_checkpoint, dtype=plain.dtype, output_loading_info=True
        )
        check_complete(resume_from_checkpoint, info)
        plain.load_state_dict(saved.state_dict(), strict=True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's checkpoint; complete once ``mprm.json`` is in it, and only then older ones go."""
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            self._finish_checkpoint(folder / f"checkpoint-{self.state.global_step}")
            for old in checkpoints(folder)[: -self._keep]:
                shutil.rmtree(old)


class _EpochLoader(DataLoader):  # type: ignore[type-arg]
    """A DataLoader that draws each pass anew."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class _Lazy:
    """The next ``n`` items of an iterator, taken one by one."""

    def __init__(self, items: Iterator[Any], n: int) -> None:
        self._items, self._n = items, n

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._n):
            yield next(self._items)

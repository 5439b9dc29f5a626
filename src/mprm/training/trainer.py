"""transformers' Trainer with this package's batches, loss and checkpoints."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer

from mprm.backbones.load import refuse_incomplete
from mprm.backbones.step_reader import StepReader
from mprm.errors import DataError
from mprm.training.batches import BatchPlan, RankBatches
from mprm.training.dataset import TrainingSet
from mprm.training.loss import step_loss_sum
from mprm.training.run_folder import checkpoints


class StepTrainer(Trainer):  # type: ignore[misc]
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
        is_plain = isinstance(plain, StepReader) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        if not is_plain:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        saved, info = plain.step_family.model_class().from_pretrained(
            resume_from_checkpoint, dtype=plain.dtype, output_loading_info=True
        )
        refuse_incomplete(resume_from_checkpoint, info)
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

"""transformers' Trainer with this package's batches, loss, adapters, checkpoints and learning curve."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import logging

from mprm.data.benchmarks import Benchmark, read_benchmark
from mprm.data.engine import n_cores
from mprm.data.hub import local_checkpoint, pinned_name
from mprm.data.images import check_images_exist, check_images_readable, image_folder
from mprm.data.output import hash_file
from mprm.errors import ConfigError, DataError, imported
from mprm.evaluation.bootstrap import model_result
from mprm.evaluation.metrics import step_counts
from mprm.evaluation.scores import with_scores
from mprm.hub.cards import CARD, licence_of, model_card
from mprm.models.checkpoint import (
    PRM_CONFIG,
    SAFE,
    PRMConfig,
    check_complete,
    checkpoints,
    family_of,
    fingerprint_of,
    tokenizer_hashes,
    write_prm_config,
)
from mprm.models.head import PRMModel, freeze_vision
from mprm.models.prm import PRM, score_chains
from mprm.models.prompt import PromptEncoder
from mprm.progress import Advance, Progress, silent
from mprm.training.batches import BatchPlan, RankBatches, packed_plan
from mprm.training.config import TrainConfig
from mprm.training.dataset import TrainingSet
from mprm.training.objective import Objective, StepBatch
from mprm.training.train import RunDir, Trained

LAUNCH = Path(__file__).parent / "launch"
CURVE = "curve.jsonl"


def trainer_arguments(config: TrainConfig, plan: BatchPlan | None = None) -> TrainingArguments:
    """Trainer's arguments; without a plan they only say how the run is launched, which loading weights depends on."""
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(Path(config.out) / "logs"))
    n_steps = 1 if plan is None else plan.n_optimizer_steps * config.epochs
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
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
        # Trainer's first warm-up step has a learning rate of zero: a run of one step must not consist of it
        warmup_steps=min(math.ceil(config.warmup * n_steps), n_steps - 1),
        bf16=on_gpu if config.precision == "auto" else config.precision in ("bf16", "pure-bf16"),
        use_cpu=config.device == "cpu",
        gradient_checkpointing=config.gradient_checkpointing and config.sharding != "fsdp",
        gradient_checkpointing_kwargs={"use_reentrant": False},
        ddp_find_unused_parameters=False,
        ddp_timeout=7200,
        seed=config.seed,
        dataloader_num_workers=min(config.dataloader_workers, n_cores()),
        remove_unused_columns=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 1,
        report_to=_reporters(config.report_to),
        disable_tqdm=True,
        **_sharding(config),
    )
    if config.sharding != "none" and arguments.world_size == 1:
        raise ConfigError(f"sharding {config.sharding} splits a model over processes; start several with torchrun")
    if arguments.n_gpu > 1:
        raise ConfigError(
            f"this process sees {arguments.n_gpu} GPUs; start one process a GPU with torchrun --nproc-per-node"
            f" {arguments.n_gpu} -m mprm train …, or show it one with CUDA_VISIBLE_DEVICES=0"
        )
    return arguments


def _reporters(names: tuple[str, ...]) -> list[str]:
    """The loggers; TensorBoard is left out, with a line on stderr, where it is not installed."""
    if "tensorboard" in names and not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
        print("no TensorBoard log: pip install tensorboard, or --report-to none", file=sys.stderr)
        names = tuple(name for name in names if name != "tensorboard")
    return [name for name in names if name != "none"]


def _sharding(config: TrainConfig) -> dict[str, Any]:
    """What shards the weights; `mprm/training/launch` holds the same for ``accelerate launch``."""
    if config.sharding == "fsdp":
        checkpointing = {"activation_checkpointing": config.gradient_checkpointing}
        return {"fsdp": True, "fsdp_config": {"version": 2, **checkpointing}}
    if config.sharding == "zero3":
        if importlib.util.find_spec("deepspeed") is None:
            raise ConfigError("sharding zero3 needs DeepSpeed: pip install deepspeed, or take --sharding fsdp")
        return {"deepspeed": str(LAUNCH / "zero3.json")}
    return {}


LIGER = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False, "fused_linear_cross_entropy": False}
"""The kernels of liger-kernel that a process reward model has a use for."""


def why_no_liger(model: Any, device: str) -> str | None:
    """Why a model is trained without liger-kernel, or None where it is installed and knows the architecture."""
    if not device.startswith("cuda"):
        return "its kernels are for GPUs"
    if importlib.util.find_spec("liger_kernel") is None:
        return "it is not installed; mprm's extra [liger] makes training faster"
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN

    kinds = dict.fromkeys((model.config.model_type, model.config.get_text_config().model_type))
    unknown = [kind for kind in kinds if kind not in KNOWN]
    return f"it does not know models of type {' and '.join(unknown)}" if unknown else None


@contextmanager
def liger_kernels(model: Any) -> Iterator[None]:
    """Give the model liger-kernel's layers; what that replaces for other models too is put back after the block."""
    modules = [sys.modules[name] for name in {type(module).__module__ for module in model.modules()}]
    before = [dict(vars(module)) for module in modules]
    try:
        apply_liger_kernel(model, LIGER)
        yield
    finally:
        for module, attributes in zip(modules, before, strict=True):
            for name in vars(module).keys() - attributes.keys():
                delattr(module, name)
            vars(module).update(attributes)


def untrained_prm(config: TrainConfig, device: str) -> PRM:
    """The model to train: vision tower frozen, ``<prm>`` in its vocabulary, adapters where they are trained."""
    folder = local_checkpoint(config.model)
    is_here = folder == config.model
    prm_config = PRMConfig(
        prompt_layout=config.prompt_layout,
        max_length=config.max_length,
        image_settings={**family_of(folder).image_settings, **config.image_settings},
        positive=config.positive,
        negative=config.negative,
        loss=config.loss,
        base=str(Path(folder).resolve()) if config.lora_rank and is_here else pinned_name(config.model),
        base_fingerprint=fingerprint_of(folder),
        base_licence=licence_of(folder),
    )
    prm = PRM.from_pretrained(
        folder,
        prm_config,
        dtype="bfloat16" if config.precision == "pure-bf16" else "float32",
        device="cpu" if config.sharding == "fsdp" else device,
        attention=config.attention,
        image_root=config.image_root,
        share_prefixes=False,
    )
    if getattr(prm.model.config, "quantization_config", None) and not config.lora_rank:
        raise ConfigError(f"{config.model} is quantised; only adapters can be trained on it: --lora-rank 16")
    freeze_vision(prm.model)
    if config.lora_rank:
        prm.model = with_lora(prm.model, config)
    return prm


def with_lora(model: Any, config: TrainConfig) -> Any:
    """The model in which only adapters on the language model's linear layers, and the projector, are trained."""
    peft = imported("peft", "--lora-rank needs peft: install mprm with its extra [train]")
    family = model.prm_family
    apart = [model.get_output_embeddings(), family.vision_tower(model), *family.projectors(model)]
    left_out = {module for part in apart if part is not None for module in part.modules()}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    targets = [name for name, module in linear.items() if module not in left_out]
    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha if config.lora_alpha is not None else 2 * config.lora_rank,
        target_modules=targets,
        modules_to_save=family.projector_paths(model) or None,
    )
    adapted = peft.get_peft_model(model, lora)
    if local_checkpoint(config.model) != config.model:  # other tools find the base by its name, not in this cache
        settings = adapted.peft_config["default"]
        settings.base_model_name_or_path, _, settings.revision = pinned_name(config.model).partition("@")
    return adapted


class PRMTrainer(Trainer):  # type: ignore[misc]
    """Trains a process reward model on the batches of a plan."""

    loss_is_scaled_for_ga = True
    """The loss is divided by the items of the whole global batch; the number of micro-batches has no part in it."""

    def __init__(
        self, prm: PRM, arguments: Any, plan: BatchPlan, examples: TrainingSet, objective: Objective, n_kept: int
    ) -> None:
        super().__init__(prm.model, arguments, train_dataset=examples)
        self.model_accepts_loss_kwargs = True  # what older versions ask instead of loss_is_scaled_for_ga
        self._prm, self._plan, self._objective, self._n_kept = prm, plan, objective, n_kept
        self._unchecked: list[tuple[torch.Tensor, list[str]]] = []
        self._batches_of = lru_cache(maxsize=1)(plan.global_batches)
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Micro-batches of this rank; not handed to Accelerate, which would repeat rollouts to fill the last."""
        batches = RankBatches(self._plan, self.args.process_index)
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=batches,
            collate_fn=dict,  # what `TrainingSet` gives is a batch already
            num_workers=self.args.dataloader_num_workers,
            # without workers the training process itself would have to wait for it
            pin_memory=self.args.device.type == "cuda" and self.args.dataloader_num_workers > 0,
        )
        loader.set_epoch = batches.set_epoch  # Trainer calls it where it is there
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[Any, Any]:
        """The micro-batches of the next optimizer step, and what its loss is divided by, such as its steps."""
        epoch, step = divmod(self.state.global_step, self._plan.n_optimizer_steps)
        n_items = float(self.train_dataset.n_items[self._batches_of(epoch)[step]].sum())
        # lazily: Trainer would load all of them first, with images gigabytes
        return _Lazy(epoch_iterator, num_batches), torch.tensor(n_items or 1.0, device=device)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *, num_items_in_batch: Any) -> Any:
        """The summed loss over the items of the global batch; scaled up, as gradients are averaged over ranks."""
        inputs = dict(inputs)
        targets = StepBatch(**{name: inputs.pop(name) for name in ("labels", "n_mc", "chains")})
        locations = inputs.pop("locations")
        total = self._objective.loss_sum(model(**inputs)["logits"], targets)
        self._unchecked.append((total.detach(), locations))
        return total / num_items_in_batch * self.accelerator.num_processes

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's; before the weights change, every loss of the optimizer step must be finite."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:  # once an optimizer step: the device has to finish its work to answer
            losses = torch.stack([total for total, _ in self._unchecked]).tolist()
            for value, (_, locations) in zip(losses, self._unchecked, strict=True):
                if not math.isfinite(value):
                    raise DataError(
                        f"the loss of optimizer step {self.state.global_step + 1} is {value}; its micro-batch holds"
                        f" {', '.join(locations)}. A lower --learning-rate, or --precision float32, may help."
                    )
            self._unchecked.clear()
        return loss

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Weights of a checkpoint, every one of them.

        Trainer compares names as they are in the file and skips those it does not know. A checkpoint of a
        vision-language model has its published names, which differ: none of it would be loaded.
        """
        plain: Any = self.model if model is None else model
        is_plain = isinstance(plain, PRMModel) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        if not is_plain:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        saved, info = plain.prm_family.model_class().from_pretrained(
            resume_from_checkpoint, dtype=plain.dtype, output_loading_info=True, use_safetensors=True, **SAFE
        )
        check_complete(resume_from_checkpoint, info)
        plain.load_state_dict(saved.state_dict(), strict=True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's checkpoint; complete once its config is written, and only then older ones are removed."""
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            complete_model(self._prm, folder)
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != PRM_CONFIG]
            hashes: dict[str, int | str] = {str(path.relative_to(folder)): hash_file(str(path)) for path in paths}
            write_prm_config(folder, replace(self._prm.config, files=hashes))
            for old in checkpoints(folder.parents[1])[: -self._n_kept]:
                shutil.rmtree(old)


def complete_model(prm: PRM, folder: Path) -> None:
    """Write what it takes to load the weights, but ``prm_config.json``, the mark that all is there."""
    prm.save_processor(folder)
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle, and of no use without Trainer
    for path in folder.glob("*.safetensors"):  # written for their owner alone
        shutil.copymode(folder / "tokenizer_config.json", path)


@dataclass(frozen=True)
class _Lazy:
    """The next ``n`` items of an iterator, taken one by one."""

    items: Iterator[Any]
    n: int

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return islice(self.items, self.n)


class LearningCurve(TrainerCallback):  # type: ignore[misc]
    """Appends a line to ``curve.jsonl`` every so many optimizer steps: overall value, macro-F1 by source, AUC.

    All ranks score their share. A resumed run continues the curve at its checkpoint.
    """

    def __init__(self, trainer: Any, config: TrainConfig, encoder: PromptEncoder) -> None:
        root = image_folder(config.benchmark_root or config.image_root)
        self._trainer, self._eval_every, self._path = trainer, config.eval_every, Path(config.out) / CURVE
        self._encoder = replace(encoder, image_root=root)
        self._benchmark = read_benchmark(config.benchmark, text_only=config.text_only)
        check_images_exist(self._benchmark, root)
        check_images_readable(self._benchmark, root)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score the untrained model; remove the points after the checkpoint that a killed run resumes from."""
        if args.should_save and self._path.is_file():
            kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            kept = [line for line in kept if 0 < state.global_step >= msgspec.json.decode(line)["update"]]
            self._path.write_bytes(b"".join(kept))
        if state.global_step == 0:
            self._add_point(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._eval_every == 0 or state.global_step == state.max_steps:
            self._add_point(state)

    def _add_point(self, state: Any) -> None:
        trainer, chains = self._trainer, self._benchmark.chains
        rank, world_size = trainer.args.process_index, trainer.args.world_size
        can_share = trainer.model.why_no_trees is None
        scores = score_chains(
            trainer.model_wrapped, self._encoder, chains, rank=rank, world_size=world_size, share_prefixes=can_share
        )
        shares = gather_object([scores])
        if not trainer.args.should_save:
            return
        by_chain = {chains[index]: values for share in shares for index, values in share.items()}
        point = {"update": state.global_step, "epoch": state.epoch, **curve_point(self._benchmark, by_chain)}
        with self._path.open("ab") as out:
            out.write(msgspec.json.encode(point) + b"\n")
        should_log = trainer.control.should_log
        trainer.log({name: point[name] for name in ("overall", "auc") if point[name] is not None})
        # Trainer takes the loss of this step for logged now; the other ranks would wait for this one to gather it
        trainer.control.should_log = should_log


def curve_point(benchmark: Benchmark, scores: dict[Any, list[float]]) -> dict[str, Any]:
    """Overall value, AUC, and the macro-F1 of each source that the overall value is a mean of."""
    result = model_result([with_scores(solution, "", scores[solution.chain]) for solution in benchmark.solutions])
    counts = step_counts(result.table)
    counted = [name for name in result.table.sources if step_counts(result.table, name).n_counted]
    return {
        "overall": result.value("overall"),
        "auc": result.value("auc"),
        "n_counted": counts.n_counted,
        "n_unscored": counts.n_unscored,
        "macro_f1": {source: result.value("macro_f1", source) for source in sorted(counted)},
    }


class ReportProgress(TrainerCallback):  # type: ignore[misc]
    """Advances a bar by optimizer steps."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started, self._first_step = monotonic(), state.global_step
        self._advance(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            step_s = (monotonic() - self._started) / (state.global_step - self._first_step)
            self._advance(1, f"loss {logs['loss']:.4f}, {step_s:.3g} s/step")


class SaveOrStop(TrainerCallback):  # type: ignore[misc]
    """Saves where the last checkpoint is too old; saves and stops after so many optimizer steps of the schedule."""

    def __init__(self, config: TrainConfig) -> None:
        self._max_age_s, self._last_step = 60 * config.save_every_min, config.max_optimizer_steps

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = monotonic()

    on_train_begin = on_save

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            return  # the model itself is written
        is_due = is_last = self._last_step is not None and state.global_step >= self._last_step
        if self._max_age_s:  # the first process decides for all
            [is_old] = broadcast_object_list([monotonic() - self._saved >= self._max_age_s])
            is_due |= is_old
        control.should_save |= is_due
        control.should_training_stop |= is_last


def run_trainer(run_dir: RunDir, prm: PRM, progress: Progress, *, is_first: bool, world_size: int) -> Trained:
    """Do the optimizer steps that are left, and write the model."""
    config, reason = run_dir.config, prm.model.why_no_trees
    if config.pack == "tree" and reason is not None and is_first:
        print(f"rollouts are padded and not packed, which is slower: {reason}", file=sys.stderr)
    is_packed = config.pack == "tree" and reason is None
    objective = Objective(config)
    examples = TrainingSet(run_dir.training_set, prm.encoder, objective, pack=is_packed)
    plan = BatchPlan(
        lengths=examples.lengths,
        batch_size=config.batch_size,
        per_device=config.per_device,
        world_size=world_size,
        seed=config.seed,
    )
    if is_packed:
        plan = packed_plan(plan, examples.problems, examples.n_prompt, epochs=config.epochs)
    try:
        limit = config.save_total_limit
        trainer = PRMTrainer(prm, trainer_arguments(config, plan), plan, examples, objective, limit)
    except (ValueError, RuntimeError, ImportError) as error:  # such as a logger that is not installed
        raise ConfigError(f"transformers' Trainer cannot be set up: {error}") from error
    with ExitStack() as context:
        n_steps = plan.n_optimizer_steps * config.epochs
        bar = (progress if is_first else silent)("training", min(n_steps, config.max_optimizer_steps or n_steps))
        trainer.add_callback(ReportProgress(context.enter_context(bar)))
        trainer.add_callback(SaveOrStop(config))
        if config.eval_every:
            trainer.add_callback(LearningCurve(trainer, config, prm.encoder))
        if logging.is_progress_bar_enabled():  # those of transformers would tear through ours
            logging.disable_progress_bar()
            context.callback(logging.enable_progress_bar)
        if config.liger:
            reason = why_no_liger(prm.model, str(trainer.args.device))
            if reason is None:
                context.enter_context(liger_kernels(prm.model))
            if is_first and trainer.args.device.type == "cuda":
                print(f"mprm train: liger-kernel is {'on' if reason is None else f'off: {reason}'}", file=sys.stderr)
        [checkpoint] = broadcast_object_list([run_dir.last_checkpoint() if is_first else None])
        result = trainer.train(resume_from_checkpoint=checkpoint)
    state = trainer.state
    is_finished = state.global_step >= state.max_steps
    if is_finished:
        folder = run_dir.path / "model.partial"
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(folder))
        trainer.accelerator.wait_for_everyone()
        if trainer.args.should_save:
            state.save_to_json(str(folder / "trainer_state.json"))  # the loss of every step, for mprm report
            complete_model(prm, folder)
            card = model_card(folder, prm.config, config.as_dict(), name=run_dir.path.resolve().name)
            (folder / CARD).write_text(card, encoding="utf-8")
            run_dir.take_model(folder)
            write_prm_config(run_dir.path, replace(prm.config, files=tokenizer_hashes(run_dir.path)))
    trainer.accelerator.wait_for_everyone()
    last_loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
    done = state.global_step, is_finished, is_first, result.training_loss
    return Trained(config.out, *done, prm.config.data, last_loss)

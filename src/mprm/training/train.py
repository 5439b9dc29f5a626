"""End what connects the processes of one training.

``mprm train``: from rollouts to a process reward model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mprm.data.corpus import Corpus, InputHashes, open_corpus
from mprm.data.engine import make_engine
from mprm.data.output import atomic_write
from mprm.errors import ConfigError, DataError, MprmError
from mprm.models.checkpoint import PRMConfig, family_of, fingerprint_of, need_torch, write_prm_config
from mprm.models.prompt import Memory
from mprm.selection.select import select
from mprm.training.config import TrainConfig
from mprm.training.run_dir import DATA, RunDir, sizes_of


def leave_group() -> None:
    """Leave the group of processes that torchrun started, if there is one.

    A process that ends with the group's threads still running can die of it, after all is written.
    """
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training run made."""

    out: str
    n_updates: int
    is_finished: bool
    is_first: bool
    """Whether this is the first process, which speaks for all."""
    loss: float | None
    """Mean over the updates of this start; None where none was left to do."""
    data: dict[str, Any]
    last_loss: float | None = None
    """Of the last update."""


def train(
    paths: Any,
    config: TrainConfig,
    *,
    resume: bool = False,
    force: bool = False,
    on_rollouts: Callable[[int], Any] | None = None,
    memory: Memory | None = None,
) -> Trained:
    """Train a process reward model on annotated rollouts.

    Every rank of a distributed launch calls it alike. The first prepares the data; the model and a card
    that says how it was taught are in ``config.out`` at the end.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes: a corpus, or a subset that ``mprm select`` wrote.
    config
        See `TrainConfig`.
    resume
        Go on from the last whole checkpoint in ``config.out``; from the start where there is none.
    force
        Replace a run that is in ``config.out``, once the new one is finished.
    on_rollouts
        Called with the number of rollouts prepared since the last call.
    memory
        What was encoded before, for many runs on the same data; see `mprm.models.prompt`.
    """
    need_torch()
    from transformers import set_seed

    from mprm.training.trainer import trainer_arguments

    folder = RunDir(config)
    corpus = open_corpus(paths, format=config.format, text_only=config.text_only)
    named = [config.model, config.image_root, *config.benchmark, config.benchmark_root]
    inputs = [name for name in [*named, *([] if corpus.is_frame else [f.path for f in corpus.files])] if name]
    folder.refuse(inputs, resume=resume, force=force)
    arguments = trainer_arguments(config)  # before the weights: DeepSpeed splits them while they are loaded
    if config.sharding == "zero3":
        import deepspeed

        deepspeed.init_distributed()  # takes over the ranks that are there; without it each would be alone
    set_seed(config.seed)
    run = _Run(config, arguments, folder, memory)
    try:
        with run.first_process():
            if run.is_first:
                _claim_and_prepare(corpus, run, resume=resume, on_rollouts=on_rollouts)
        return run.finished() if resume and folder.is_finished else run.train()
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "No space left" in str(error):
            raise MprmError(f"a checkpoint could not be written below {folder.path}: is the disk full?") from error
        raise
    finally:
        folder.release()


def _claim_and_prepare(corpus: Corpus, run: _Run, *, resume: bool, on_rollouts: Any) -> None:
    """Take the folder and write the training set, unless an earlier start of this run has."""
    from mprm.training.dataset import prepare

    config, folder = run.config, run.folder
    entries = InputHashes(corpus, make_engine("local", n_bytes=corpus.n_bytes)).entries()
    identity = {
        "rollouts_xxh3_128": [entry["xxh3_128"] for entry in entries],
        "base_fingerprint": run.card.base_fingerprint,
    }
    folder.claim(identity, resume=resume)
    if folder.summary.is_file():
        return
    rollouts, chosen = _chosen(corpus, config)
    prepared = prepare(
        rollouts, run.encoder, folder.rollouts, tau=config.tau, skip_bad=config.skip_bad, on_rollouts=on_rollouts
    )
    summary = {"inputs": entries, "select": chosen, **prepared.counts()}
    with atomic_write(str(folder.summary)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def _chosen(corpus: Corpus, config: TrainConfig) -> tuple[Corpus, dict[str, Any] | None]:
    """The rollouts to train on: all of them, or a subset chosen now and kept beside the run."""
    if config.select is None:
        return corpus, None
    selection = select(
        corpus,
        strategy=config.select,
        rho=config.rho,
        alpha=config.alpha,
        tau=config.tau,
        seed=config.select_seed,
        skip_bad=config.skip_bad,
    )
    written = selection.write(str(Path(config.out) / DATA / "selected.jsonl"), force=True)
    chosen = open_corpus(written.paths[0], format=config.format, text_only=config.text_only)
    return chosen, {"strategy": config.select, "rho": config.rho, "manifest": f"{DATA}/selected.jsonl.manifest.json"}


class _Run:
    """One training run on one rank: the model, its encoder, and the folder it goes to."""

    def __init__(self, config: TrainConfig, arguments: Any, folder: RunDir, memory: Memory | None) -> None:
        """Load the model: vision tower frozen, ``<prm>`` in its vocabulary, adapters if asked for."""
        from mprm.models.head import freeze_vision, load_step_model

        self.config, self.launched, self.folder = config, arguments, folder
        family = family_of(config.model)
        self.is_first = arguments.process_index == 0
        self.card = PRMConfig(
            max_length=config.max_length,
            image_settings={**family.image_settings, **config.image_settings},
            positive=config.positive,
            negative=config.negative,
            labels=config.label_scheme,
            base=str(Path(config.model).resolve()) if config.lora_rank else config.model,
            base_fingerprint=fingerprint_of(config.model),
        )
        step_model = load_step_model(
            config.model,
            self.card,
            dtype="bfloat16" if config.precision == "pure-bf16" else "float32",
            device="cpu" if config.sharding == "fsdp" else str(arguments.device),
            attention=config.attention,
            image_root=config.image_root,
            memory=memory,
        )
        if getattr(step_model.model.config, "quantization_config", None) and not config.lora_rank:
            raise ConfigError(f"{config.model} is quantised; only adapters can be trained on it: --lora-rank 16")
        freeze_vision(step_model.model, step_model.family)
        if config.lora_rank:
            from mprm.training.trainer import with_lora

            step_model = replace(step_model, model=with_lora(step_model.model, step_model.family, config))
        self.step_model, self.encoder = step_model, step_model.encoder

    def first_process(self) -> Any:
        """The first process goes first, the others wait."""
        if self.launched.world_size == 1:
            return nullcontext()
        return self.launched.main_process_first(local=False, desc="preparing the data")

    def summary(self) -> dict[str, Any]:
        """What became of the corpus."""
        path = self.folder.summary
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict)
        except msgspec.DecodeError as error:
            raise DataError(f"{path} is damaged: {error}; start anew with --force") from error

    def finished(self) -> Trained:
        """The run as it was left: there is nothing to do."""
        return Trained(self.config.out, 0, True, self.is_first, None, self.summary())

    def train(self) -> Trained:
        """Run the updates that are left, and write the model."""
        summary = self.summary()
        self.card = replace(self.card, data=summary)
        trainer = self._trainer()
        self._add_callbacks(trainer)
        last = self.folder.last_checkpoint(remove_broken=self.is_first)
        result = trainer.train(resume_from_checkpoint=last)
        n_done, n_all = trainer.state.global_step, trainer.state.max_steps
        if n_done >= n_all:
            trainer.save_model(self.config.out)
            if trainer.args.should_save:
                self.finish(self.folder.path)
        trainer.accelerator.wait_for_everyone()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return Trained(
            self.config.out,
            n_done,
            n_done >= n_all,
            self.is_first,
            result.training_loss,
            summary,
            losses[-1] if losses else None,
        )

    def _trainer(self) -> Any:
        from mprm.training.batches import BatchPlan, packed_plan
        from mprm.training.dataset import TrainingSet
        from mprm.training.trainer import PRMTrainer, trainer_arguments

        config = self.config
        packs = self._packs()
        examples = TrainingSet(self.folder.rollouts, self.encoder, tau=config.tau, soft=config.soft, pack=packs)
        plan = BatchPlan(
            lengths=examples.lengths,
            batch_size=config.batch_size,
            per_device=config.per_device,
            world=self.launched.world_size,
            seed=config.seed,
        )
        if packs:
            plan = packed_plan(plan, examples.problems, examples.n_prompt, epochs=config.epochs)
        arguments = trainer_arguments(config, plan)
        try:
            return PRMTrainer(
                self.step_model.model,
                arguments,
                plan=plan,
                examples=examples,
                finish_checkpoint=self.finish_checkpoint,
                keep=max(1, config.keep),
            )
        except (ValueError, RuntimeError, ImportError) as error:  # such as a logger that is not installed
            raise ConfigError(f"transformers' Trainer cannot be set up: {error}") from error

    def _packs(self) -> bool:
        """Whether rollouts are packed; not where the model is of a kind that is not known to allow it."""
        reason = self.step_model.model.why_no_trees
        if self.config.pack == "tree" and reason is not None and self.is_first:
            print(f"rollouts are padded and not packed, which is slower: {reason}", file=sys.stderr)
        return self.config.pack == "tree" and reason is None

    def _add_callbacks(self, trainer: Any) -> None:
        from transformers import PrinterCallback

        from mprm.training.callbacks import ShowProgress, StopAfter

        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(ShowProgress())
        if self.config.max_updates is not None:
            trainer.add_callback(StopAfter(self.config.max_updates))
        if self.config.eval_every:
            from mprm.training.callbacks import LearningCurve

            trainer.add_callback(LearningCurve(trainer, self.config, self.encoder))

    def finish_checkpoint(self, folder: Path) -> None:
        """Make a checkpoint whole; its card says how large every file was."""
        self.finish(folder, names_files=True)

    def finish(self, folder: Path, *, names_files: bool = False) -> None:
        """Put beside the weights what it takes to load them; the card last, as the sign that all is there."""
        self.step_model.save_beside(folder)
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle, and of no use without Trainer
        write_prm_config(folder, replace(self.card, files=sizes_of(folder)) if names_files else self.card)

"""``mprm train``: from rollouts to a process reward model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mprm.backbones.card import CARD, Card, write_card
from mprm.backbones.load import need_torch
from mprm.engines.engine import make_engine
from mprm.errors import ConfigError, OutputExistsError
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.corpus import Corpus, open_corpus
from mprm.rollouts.manifest import InputHashes
from mprm.selection.select import select
from mprm.training.config import TrainConfig

CONFIG = "train.json"
DATA = "data"
FREE_TO_CHANGE = {"per_device", "workers", "keep", "save_every", "report_to", "max_updates", "device", "image_root"}
"""Options that may differ when a run is resumed: they do not change what comes out."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training run made."""

    out: str
    n_updates: int
    is_finished: bool
    is_first: bool
    """Whether this is the first process, which speaks for all."""
    loss: float | None
    data: dict[str, Any]


def train(
    paths: Any,
    config: TrainConfig,
    *,
    resume: bool = False,
    force: bool = False,
    on_rollouts: Callable[[int], Any] | None = None,
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
        Replace a run that is in ``config.out``.
    on_rollouts
        Called with the number of rollouts prepared since the last call.
    """
    need_torch()
    from transformers import set_seed

    from mprm.training.arguments import trainer_arguments

    arguments = trainer_arguments(config)  # before the weights: DeepSpeed splits them while they are loaded
    if config.sharding == "zero3":
        import deepspeed

        deepspeed.init_distributed()  # takes over the ranks that are there; without it each would be alone
    out = Path(config.out)
    is_first = arguments.process_index == 0
    if is_first:
        _claim(out, config, resume=resume, force=force)
    set_seed(config.seed)
    run = _Run.start(config, arguments)
    with run.first_process():
        if is_first:
            _prepare_once(paths, config, run, on_rollouts=on_rollouts)
    return run.train()


def _claim(out: Path, config: TrainConfig, *, resume: bool, force: bool) -> None:
    """Make the run's folder, or refuse: nobody's run is overwritten, and a resumed one must be the same run."""
    written = out / CONFIG
    settings = msgspec.json.decode(msgspec.json.encode(asdict(config)))
    if resume and written.is_file():
        before = msgspec.json.decode(written.read_bytes())
        changed = [name for name in settings if name not in FREE_TO_CHANGE and before.get(name) != settings[name]]
        if changed:
            listed = "; ".join(f"{name} was {before.get(name)!r}, now {settings[name]!r}" for name in changed)
            raise ConfigError(f"{out} holds another run and cannot be resumed: {listed}")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not force:
            raise OutputExistsError(
                f"{out} exists already; go on with --resume, replace it with --force, or choose another folder"
            )
        if not written.is_file():
            raise ConfigError(f"{out} is not the folder of a training run ({CONFIG} is not in it); --force leaves it")
        shutil.rmtree(out)
    (out / DATA).mkdir(parents=True, exist_ok=True)
    with atomic_write(str(written)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")


def _prepare_once(paths: Any, config: TrainConfig, run: _Run, *, on_rollouts: Any) -> None:
    """Write the training set, unless an earlier start of this run has."""
    from mprm.training.prepare import prepare

    if run.summary_path.is_file():
        return
    corpus, chosen = _corpus(paths, config)
    data = Path(config.out) / DATA
    prepared = prepare(
        corpus, run.encoder, data / "train.arrow", tau=config.tau, skip_bad=config.skip_bad, on_rollouts=on_rollouts
    )
    if len(prepared.dropped):
        prepared.dropped.write(str(data / "dropped.jsonl"))
    hashes = InputHashes(corpus, make_engine("local", n_bytes=corpus.n_bytes))
    summary = {"inputs": hashes.entries(), "select": chosen, **prepared.counts()}
    with atomic_write(str(run.summary_path)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def _corpus(paths: Any, config: TrainConfig) -> tuple[Corpus, dict[str, Any] | None]:
    """The rollouts to train on: all of them, or a subset chosen now and kept beside the run."""
    if config.select is None:
        return open_corpus(paths, format=config.format, text_only=config.text_only), None
    selection = select(
        paths,
        strategy=config.select,
        rho=config.rho,
        alpha=config.alpha,
        tau=config.tau,
        seed=config.select_seed,
        format=config.format,
        text_only=config.text_only,
        skip_bad=config.skip_bad,
    )
    written = selection.write(str(Path(config.out) / DATA / "selected.jsonl"), force=True)
    corpus = open_corpus(written.paths[0], format=config.format, text_only=config.text_only)
    return corpus, {"strategy": config.select, "rho": config.rho, "manifest": f"{DATA}/selected.jsonl.manifest.json"}


class _Run:
    """One training run on one rank: the model, its encoder, and the folder it goes to."""

    def __init__(self, config: TrainConfig, arguments: Any, step_model: Any, card: Card) -> None:
        self.config, self.launched, self.card = config, arguments, card
        self.step_model, self.encoder, self.model = step_model, step_model.encoder, step_model.model
        self.out = Path(config.out)
        self.summary_path = self.out / DATA / "summary.json"

    @classmethod
    def start(cls, config: TrainConfig, arguments: Any) -> _Run:
        """Load the model: vision tower frozen, ``<prm>`` in its vocabulary, adapters if asked for."""
        from mprm.backbones.step_model import load_step_model
        from mprm.backbones.step_reader import freeze_vision

        card = Card(
            max_length=config.max_length,
            image_settings=config.image_settings,
            positive=config.positive,
            negative=config.negative,
            labels=config.label_scheme,
            base=str(Path(config.model).resolve()) if config.lora_rank else config.model,
        )
        step_model = load_step_model(
            config.model,
            card,
            dtype="bfloat16" if config.precision == "pure-bf16" else "float32",
            device="cpu" if config.sharding == "fsdp" else str(arguments.device),
            attention=config.attention,
            image_root=config.image_root,
        )
        if getattr(step_model.model.config, "quantization_config", None) and not config.lora_rank:
            raise ConfigError(f"{config.model} is quantised; only adapters can be trained on it: --lora-rank 16")
        freeze_vision(step_model.model, step_model.family)
        if config.lora_rank:
            from mprm.training.lora import with_lora

            model = with_lora(step_model.model, step_model.family, config)
            step_model = replace(step_model, model=model)
        return cls(config, arguments, step_model, card)

    def first_process(self) -> Any:
        """The first process goes first, the others wait."""
        if self.launched.world_size == 1:
            return nullcontext()
        return self.launched.main_process_first(local=False, desc="preparing the data")

    def train(self) -> Trained:
        """Run the updates that are left, and write the model."""
        from mprm.training.arguments import trainer_arguments
        from mprm.training.batches import BatchPlan
        from mprm.training.dataset import TrainingSet
        from mprm.training.trainer import StepTrainer

        config = self.config
        summary = msgspec.json.decode(self.summary_path.read_bytes())
        self.card = replace(self.card, data=summary)
        examples = TrainingSet(self.out / DATA / "train.arrow", self.encoder, tau=config.tau, soft=config.soft)
        plan = BatchPlan(
            lengths=examples.lengths,
            batch_size=config.batch_size,
            per_device=config.per_device,
            world=self.launched.world_size,
            seed=config.seed,
        )
        trainer = StepTrainer(
            self.model,
            trainer_arguments(config, plan),
            plan=plan,
            examples=examples,
            processing_class=self.encoder.tokenizer,
            finish_checkpoint=self.finish,
            keep=max(1, config.keep),
        )
        self._add_callbacks(trainer)
        result = trainer.train(resume_from_checkpoint=self._last_checkpoint())
        is_finished = trainer.state.global_step >= trainer.state.max_steps
        if is_finished:
            trainer.save_model(str(self.out))
            if trainer.args.should_save:
                self.finish(self.out)
        trainer.accelerator.wait_for_everyone()
        return Trained(
            config.out,
            trainer.state.global_step,
            is_finished,
            trainer.args.process_index == 0,
            result.training_loss,
            summary,
        )

    def _add_callbacks(self, trainer: Any) -> None:
        from transformers import PrinterCallback

        from mprm.training.progress import ShowProgress
        from mprm.training.stop import StopAfter

        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(ShowProgress())
        if self.config.max_updates is not None:
            trainer.add_callback(StopAfter(self.config.max_updates))
        if self.config.eval_every:
            from mprm.training.curve import LearningCurve

            trainer.add_callback(LearningCurve(trainer, self.config, self.encoder))

    def _last_checkpoint(self) -> str | None:
        """The newest whole checkpoint; what a killed run left half-written is removed."""
        from mprm.training.trainer import checkpoints

        whole = None
        for folder in checkpoints(self.out / "checkpoints"):
            if (folder / CARD).is_file():
                whole = str(folder)
            elif self.launched.process_index == 0:
                shutil.rmtree(folder)
        return whole

    def finish(self, folder: Path) -> None:
        """Put beside the weights what it takes to load them; the card last, as the sign that all is there."""
        self.step_model.save_beside(folder)
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle, and of no use without Trainer
        write_card(folder, self.card)

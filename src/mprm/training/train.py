"""``mprm train``: from rollouts to a process reward model, in a folder that only the same run can resume."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from mprm.config import EngineOptions, takes
from mprm.data.corpus import Corpus, open_corpus
from mprm.data.engine import make_engine
from mprm.data.hub import local_checkpoint
from mprm.data.output import DroppedRecords, InputHashes, _sync, atomic_write, hash_file, printable
from mprm.errors import ConfigError, MprmError, OutputExistsError, counted
from mprm.hub.cards import selections_of
from mprm.models.checkpoint import PRMConfig, checkpoints, damage_of, need_torch, prm_config_path, read_prm_config
from mprm.models.prm import PRM
from mprm.progress import Progress, silent
from mprm.selection.select import select
from mprm.selection.stats import label_warnings, statistics_by_source
from mprm.training.config import TrainConfig

FREE_TO_CHANGE = {
    *("per_device", "pack", "liger", "device", "image_root", "files", "dataloader_workers", "report_to", "out"),
    *("model", "save_every", "save_every_min", "save_total_limit", "max_optimizer_steps"),
}
"""Options that may differ when a run is resumed: they do not change the result, up to rounding. The model and the
rollouts are compared by their content."""
FEW_OPTIMIZER_STEPS = 20
"""Fewer teach little at the default learning rate."""
DISK_FULL = ("PytorchStreamWriter", "No space left", "File too large", "quota exceeded")
"""How libraries say it that raise no OSError."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training run made."""

    out: str
    n_optimizer_steps: int
    is_finished: bool
    is_first: bool
    """Whether this is the first process, which speaks for all."""
    loss: float | None
    """Mean over the optimizer steps since the last start; None where none was left to do."""
    data: dict[str, Any] = field(repr=False)
    last_loss: float | None = None


@takes(TrainConfig)
def train(
    paths: Any,
    config: TrainConfig | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress = silent,
    **options: Any,
) -> Trained:
    """Train a process reward model on annotated rollouts: whatever `mprm.open_corpus` takes.

    Every rank of a distributed launch calls it alike. The first prepares the data. At the end ``out`` holds the model
    and ``prm_config.json``, which says how it was trained.

    ``resume`` continues from the last complete checkpoint in ``out``, or starts where there is none; ``force``
    replaces a run that is in ``out``, once the new one is finished.
    """
    config = TrainConfig.of(config, options)
    local_checkpoint(config.model)  # a wrong name is told before torch is loaded
    need_torch()
    from transformers import set_seed

    from mprm.training.trainer import run_trainer, trainer_arguments, untrained_prm

    run_dir = RunDir(config)
    corpus = open_corpus(paths, **config.reading())
    inputs = [config.model, config.image_root, *config.benchmark, config.benchmark_root]
    inputs += [file.path for file in corpus.files]
    if os.environ.get("RANK", "0") == "0":  # another rank may come when the first has prepared the folder
        run_dir.check([path for path in inputs if path], resume=resume, force=force)
    arguments = trainer_arguments(config)  # before the weights: DeepSpeed shards them while they are loaded
    if config.sharding == "zero3":
        import deepspeed

        deepspeed.init_distributed()  # joins the ranks that are there; without it each would be alone
    set_seed(config.seed)
    prm = untrained_prm(config, str(arguments.device))
    is_first = arguments.process_index == 0
    try:
        with arguments.main_process_first(local=False, desc="preparing the data"):
            if is_first:
                _prepare(corpus, run_dir, prm, resume=resume, progress=progress)
        data = read_json(run_dir.summary)
        prm.config = replace(prm.config, labels=data.pop("labels", {}), data=data)
        if resume and run_dir.is_finished:
            return Trained(config.out, 0, True, is_first, None, prm.config.data)
        return run_trainer(run_dir, prm, progress, is_first=is_first, world_size=arguments.world_size)
    except Exception as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full or any(words in str(error) for words in DISK_FULL):
            what = f"the disk is full, and {run_dir.path} could not be written ({str(error).splitlines()[0]:.200})"
            raise MprmError(f"{what}. Free some space. {resume_hint(run_dir.path)}") from error
        raise
    finally:
        run_dir.release()


def _prepare(corpus: Corpus, run_dir: RunDir, prm: PRM, *, resume: bool, progress: Progress) -> None:
    """Lock the folder and write the training set, unless an earlier start of this run has."""
    from mprm.training.dataset import prepare

    config = run_dir.config
    entries = corpus.manifest_entries(InputHashes(corpus.files, make_engine(EngineOptions(), n_bytes=corpus.n_bytes)))
    identity = {"rollouts_xxh3_128": [entry["xxh3_128"] for entry in entries]}
    run_dir.lock({**identity, "base_fingerprint": prm.config.base_fingerprint}, resume=resume)
    if run_dir.summary.is_file():
        return
    selected, dropped = None, DroppedRecords()
    subsets = selections_of({**e, "path": file.path} for e, file in zip(entries, corpus.files, strict=True))
    if config.strategy is not None:
        names = ("strategy", "rho", "alpha", "tau", "stratify", "columns", "skip_bad")
        same = {name: value for name in names if (value := getattr(config, name)) is not None}
        chosen = select(corpus, seed=config.select_seed, **same)
        subset = chosen.write(str(run_dir.data / "selected.jsonl"), force=True)
        written_as = None if chosen.corpus.origins else config.format
        corpus = open_corpus(subset.paths[0], format=written_as, text_only=corpus.options.text_only)
        manifest = str(Path(subset.manifest).relative_to(run_dir.path))
        dropped, warnings = chosen.dropped, subset.subset.warnings
        selected = {"strategy": config.strategy, "rho": subset.subset.rho, "manifest": manifest}
        subsets += selections_of([{"path": path, "xxh3_128": hash_file(path)} for path in subset.paths])
    counts, label_counts = prepare(corpus, prm.encoder, run_dir.training_set, config, dropped, progress)
    _sync(run_dir.training_set)
    if selected is None:
        warnings = label_warnings(label_counts, statistics_by_source(label_counts, alpha=config.alpha))
    n_optimizer_steps = -(-counts["rollouts"] // config.batch_size) * config.epochs
    if n_optimizer_steps < FEW_OPTIMIZER_STEPS:
        few = f"Only {counted(n_optimizer_steps, 'optimizer step')}, of {config.batch_size} rollouts"
        warnings = [*warnings, f"{few}; take a smaller --batch-size, more --epochs or a higher --learning-rate."]
    for warning in warnings:  # before hours of training, not after
        print(printable(f"mprm train: warning: {warning}"), file=sys.stderr)
    selected_by = {"select": selected, "subsets": subsets}
    write_json(run_dir.summary, {"inputs": entries, **selected_by, **counts, "warnings": warnings})


def resume_hint(out: str | Path) -> str:
    """How a run that was stopped goes on, and from where."""
    saved = [folder for folder in checkpoints(out) if prm_config_path(folder)]
    if saved:
        return f"The same command with --resume continues from {saved[-1]}."
    return f"There is no checkpoint in {out} yet: the same command with --resume starts at optimizer step 0."


def leave_process_group() -> None:
    """Leave the group of torchrun's processes, whose running threads can crash a process that ends."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class RunDir:
    """The files of a run in ``out``, and the lock on it."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.path = config, Path(config.out)
        self.options = self.path / "train.json"
        self.data = self.path / "data"
        self.training_set = self.data / "train.arrow"
        self.summary = self.data / "summary.json"
        """Counts of the training set; written last, as the mark that it is complete."""
        self._lock = ExitStack()
        self._replaced: Path | None = None

    @property
    def is_finished(self) -> bool:
        path = prm_config_path(self.path)
        return path is not None and bool(path.read_bytes().strip())  # earlier versions left it empty on a full disk

    def check(self, inputs: list[str], *, resume: bool, force: bool) -> None:
        """Raise an error where the run cannot go there; changes nothing."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is no folder; choose another --out")
        for name in [] if resume else inputs:
            if Path(name).resolve().is_relative_to(self.path.resolve()):
                raise ConfigError(f"{name} is in {self.path}, the folder of the run; choose another --out")
        # what is there before train.json has its name
        is_started = all(path.name == "lock" or path.name.startswith(".train.json.") for path in self.path.glob("*"))
        if not self.options.is_file() and not is_started:
            raise ConfigError(f"{self.path} is not empty and not the folder of a training run; choose another --out")
        if self.summary.is_file() and not (resume or force):
            raise OutputExistsError(f"{self.path} exists already; continue with --resume, or replace it with --force")

    def lock(self, identity: dict[str, Any], *, resume: bool) -> None:
        """Lock the folder, for a new run or the same one as before.

        An earlier run is moved aside until the new one is finished; a start that never came to training is removed.
        """
        options = msgspec.json.decode(msgspec.json.encode({**self.config.as_dict(), **identity}))  # tuples as lists
        if resume and self.summary.is_file():
            self._take_lock()
            before = read_json(self.options)
            changed = [name for name in options if name not in FREE_TO_CHANGE and before.get(name) != options[name]]
            if changed:
                differences = "; ".join(f"{name} was {before.get(name)!r}, now {options[name]!r}" for name in changed)
                raise ConfigError(f"{self.path} holds another run and cannot be resumed: {differences}")
            return
        if resume:
            print(f"there is no run in {self.path} to resume; it starts now", file=sys.stderr)
        if self.options.is_file():
            self._take_lock()
            if self.summary.is_file():
                replaced = self.path.with_name(self.path.name + ".replaced")
                if replaced.exists():
                    raise ConfigError(f"{replaced} is in the way: an earlier --force was not finished; move it")
                self._replaced = self.path.rename(replaced)
                print(f"the earlier run is kept in {replaced} until this one is finished", file=sys.stderr)
            else:
                shutil.rmtree(self.data, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        write_json(self.options, options)  # before anything else: it says whose folder this is
        self.data.mkdir(exist_ok=True)

    def _take_lock(self) -> None:
        self._lock.close()
        file = self._lock.enter_context((self.path / "lock").open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(f"another process is training in {self.path}; choose another --out") from error

    def release(self) -> None:
        """Unlock the folder; the run that it replaced is removed once this one is finished."""
        self._lock.close()
        if self._replaced is not None and self.is_finished:
            shutil.rmtree(self._replaced)

    def last_checkpoint(self) -> str | None:
        """The newest whole checkpoint; newer ones that a kill or the disk has damaged are removed, with a word."""
        for folder in reversed(checkpoints(self.path)):
            damage = _damage(folder)
            if damage is None:
                read_prm_config(folder)  # stops where this version of mprm has another prompt
                return str(folder)
            print(f"{folder} is not used: {damage}; the one before it is looked for", file=sys.stderr)
            shutil.rmtree(folder)
        return None

    def take_model(self, folder: Path) -> None:
        """Move the model's files from the folder into that of the run, and force them onto the disk."""
        for path in folder.iterdir():
            _sync(path)
            if (self.path / path.name).is_dir():
                shutil.rmtree(self.path / path.name)
            path.replace(self.path / path.name)
        _sync(self.path)
        folder.rmdir()


def _damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be used: it has no config, or a file is not as it was; None for a whole one."""
    config = prm_config_path(folder)
    if config is None:
        return "it was not written to its end"
    try:
        files = msgspec.json.decode(config.read_bytes(), type=PRMConfig).files
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"{config.name} is damaged"
    return damage_of(folder, files)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write indented JSON, all of it or nothing."""
    with atomic_write(str(path)) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """The values of a file that `write_json` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}; start again with --force") from error

"""``mprm train``: from rollouts to a process reward model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mprm.config import EngineOptions, takes
from mprm.data.corpus import Corpus, open_corpus
from mprm.data.engine import make_engine
from mprm.data.output import InputHashes
from mprm.errors import MprmError
from mprm.models.checkpoint import need_torch
from mprm.models.prm import PRM
from mprm.progress import Progress, silent
from mprm.selection.select import select
from mprm.training.config import TrainConfig
from mprm.training.run_dir import RunDir, read_json, write_json


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
    data: dict[str, Any]
    last_loss: float | None = None
    """Of the last optimizer step."""


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
    """Train a process reward model on annotated rollouts.

    Every rank of a distributed launch calls it alike. The first prepares the data. At the end ``out`` holds the model
    and ``prm_config.json``, which says how it was trained.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes: a corpus, or a subset that ``mprm select`` wrote.
    config, options
        A `TrainConfig`, its fields as keywords, or both; keywords win.
    resume
        Continue from the last complete checkpoint in ``out``; from the start where there is none.
    force
        Replace a run that is in ``out``, once the new one is finished.
    progress
        Reports rollouts prepared and optimizer steps done; see `mprm.progress`.
    """
    config = TrainConfig.of(config, options)
    need_torch()
    from transformers import set_seed

    from mprm.training.trainer import run_trainer, trainer_arguments, untrained_prm

    run_dir = RunDir(config)
    corpus = open_corpus(paths, format=config.format, text_only=config.text_only)
    inputs = [config.model, config.image_root, *config.benchmark, config.benchmark_root]
    inputs += [file.path for file in corpus.files]
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
                _prepare(corpus, config, run_dir, prm, resume=resume, progress=progress)
        prm.config = replace(prm.config, data=read_json(run_dir.summary))
        if resume and run_dir.is_finished:
            return Trained(config.out, 0, True, is_first, None, prm.config.data)
        return run_trainer(config, run_dir, prm, progress, is_first=is_first, world_size=arguments.world_size)
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "No space left" in str(error):
            raise MprmError(f"a checkpoint could not be written below {run_dir.path}: is the disk full?") from error
        raise
    finally:
        run_dir.release()


def _prepare(
    corpus: Corpus, config: TrainConfig, run_dir: RunDir, prm: PRM, *, resume: bool, progress: Progress
) -> None:
    """Lock the folder and write the training set, unless an earlier start of this run has."""
    from mprm.training.dataset import prepare

    entries = corpus.manifest_entries(InputHashes(corpus.files, make_engine(EngineOptions(), n_bytes=corpus.n_bytes)))
    identity = {"rollouts_xxh3_128": [entry["xxh3_128"] for entry in entries]}
    run_dir.lock({**identity, "base_fingerprint": prm.config.base_fingerprint}, resume=resume)
    if run_dir.summary.is_file():
        return
    selected = None
    if config.strategy is not None:
        selection = select(
            corpus,
            strategy=config.strategy,
            rho=config.rho,
            alpha=config.alpha,
            tau=config.tau,
            seed=config.select_seed,
            skip_bad=config.skip_bad,
        )
        subset = selection.write(str(run_dir.data / "selected.jsonl"), force=True)
        corpus = open_corpus(subset.paths[0], format=config.format, text_only=config.text_only)
        manifest = str(Path(subset.manifest).relative_to(run_dir.path))
        selected = {"strategy": config.strategy, "rho": config.rho, "manifest": manifest}
    counts = prepare(
        corpus,
        prm.encoder,
        run_dir.training_set,
        tau=config.tau,
        soft=config.soft,
        skip_bad=config.skip_bad,
        progress=progress,
    )
    write_json(run_dir.summary, {"inputs": entries, "select": selected, **counts})


def leave_process_group() -> None:
    """Leave the group of processes that torchrun started, if there is one.

    A process that ends with the group's threads still running can crash, after all is written.
    """
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

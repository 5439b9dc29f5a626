"""Train and evaluate runs, one after the other, and keep their records."""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import xxhash

import mprm
from mprm import models
from mprm.data import Benchmark, StepScorer, atomic_write, check_images_exist, read_benchmark
from mprm.errors import ConfigError, DataError
from mprm.evaluation import FloatArray
from mprm.training import TrainConfig, Trained
from mprm_lab.folder import WORK, LabFolder
from mprm_lab.reproduce.measure import (
    auc_at_same_position,
    best_of_n_accuracies,
    own_thresholds,
    scored_table,
    step_metrics,
)
from mprm_lab.reproduce.plan import ReproducePlan, Run
from mprm_lab.reproduce.references import CachedLogProbs, LogProbScorer, PositionScorer, made_once

TOKENS_PER_BATCH = 65_536
"""When models of a few million parameters score."""
READ_OUT_LINES = 4500
"""Rollouts that a read-out may be fitted to: 3,000 are left when a quarter of them was trained on."""
SPEED_OPTIONS: dict[str, Any] = {
    "gradient_checkpointing": False,
    "save_every": 0,
    "dataloader_workers": 0,
    "report_to": ("none",),
}
"""Fields of `mprm.TrainConfig` that change speed alone."""


class RunStore:
    """A folder of a lab, ``results``: a small JSON file for each finished run, and the step scores of some."""

    def __init__(self, lab: Path, name: str = "results") -> None:
        self.folder = lab / name

    def path(self, run: Run) -> Path:
        """Where the run's record lies once it is finished."""
        return self.folder / f"{run.name}.json"

    def read(self, run: Run) -> dict[str, Any] | None:
        """The record of a finished run, None where it is not finished."""
        path = self.path(run)
        if not path.is_file():
            return None
        try:
            record: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict)
        except msgspec.DecodeError as error:
            raise DataError(f"{path} is damaged: {error}; remove it, and the run is repeated") from error
        if missing := [name for name in ("settings", "metrics", "seconds") if name not in record]:
            raise DataError(f"{path} is damaged: it has no {missing[0]}; remove it, and the run is repeated")
        return record

    def write(self, run: Run, record: dict[str, Any], scores: FloatArray | None = None) -> None:
        """Keep a finished run; its record comes last, as the sign that all is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if scores is not None:
            with atomic_write(str(self._scores(run))) as temporary, temporary.open("wb") as out:
                np.savez_compressed(out, scores=scores.astype(np.float32))
        with atomic_write(str(self.path(run))) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")

    def scores(self, run: Run) -> FloatArray | None:
        """The score of each of the benchmark's steps, shape (S,); None where they were not kept."""
        path = self._scores(run)
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            scores: FloatArray = arrays["scores"].astype(np.float64)
        return scores

    def _scores(self, run: Run) -> Path:
        return self.folder / f"{run.name}.npz"

    def check_settings(self, run: Run, settings: dict[str, Any]) -> None:
        """Stop when the run was done on other data or with other settings than these."""
        record = self.read(run)
        before = {} if record is None else record["settings"]
        now = msgspec.json.decode(msgspec.json.encode(settings), type=dict)
        changed = [name for name in {**before, **now} if record and before.get(name) != now.get(name)]
        if changed:
            listed = "; ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
            raise ConfigError(
                f"{self.path(run)} was made otherwise: {listed}. Remove {self.folder} to repeat all runs"
            )


@lru_cache
def _policy(path: Path, device: str, images: Path) -> models.StepLogProbs:
    """Loaded once in a worker process."""
    # in float32 there is no flash attention, without which many small shared prefixes take longer than padding
    return models.StepLogProbs.from_pretrained(
        path, device=device, dtype="float32", image_root=images, share_prefixes=False
    )


@lru_cache
def _benchmark(path: str, images: Path) -> Benchmark:
    """Read once in a worker process."""
    benchmark = read_benchmark(path)
    check_images_exist(benchmark, images)
    return benchmark


@dataclass(frozen=True, slots=True)
class Runner:
    """Does runs, each from its training to its record."""

    lab: LabFolder
    plan: ReproducePlan

    @property
    def _store(self) -> RunStore:
        return RunStore(self.lab.path, self.plan.results)

    def __call__(self, run: Run, settings: dict[str, Any]) -> float:
        """Train, evaluate and keep one run; returns its overall value."""
        columns = self._columns(run) if run.subset in self.plan.model_based else None
        start = monotonic()
        folder = self.lab.path / WORK / f"{run.name}.{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            trained = self._train(run, folder, settings, columns) if run.is_trained else None
            train_s = monotonic() - start
            evaluated, scores = self._evaluate(run, folder)
            record = {
                "name": run.name,
                "run": asdict(run),
                "settings": settings,
                **_counts(trained),
                "seconds": round(monotonic() - start, 2),
                "train_seconds": round(train_s, 2),
                "columns_seconds": columns and msgspec.json.decode(columns.with_suffix(".json").read_bytes()),
                "device": models.device_name(models.resolve_device(self.plan.device)),
                **evaluated,
            }
            if self.plan.keeps_weights(run):
                kept = self.lab.path / "runs" / run.name
                shutil.rmtree(kept, ignore_errors=True)
                kept.parent.mkdir(exist_ok=True)
                shutil.rmtree(folder / "data", ignore_errors=True)
                folder.rename(kept)
            self._store.write(run, record, scores)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            gc.collect()
        overall: float = record["metrics"]["held_out"]["overall"]
        return overall

    def _train(self, run: Run, folder: Path, settings: dict[str, Any], columns: Path | None = None) -> Trained:
        config = TrainConfig(
            model=str(self.lab.policy(run.backbone)),
            out=str(folder),
            image_root=str(self.lab.images),
            device=self.plan.device,
            **SPEED_OPTIONS,
            **settings["training"],
            **self._curve_options(run),
            columns=None if columns is None else str(columns),
        )
        return mprm.train(str(self.lab.file("corpus")), config)

    def _made_of(self, run: Run, name: str, ending: str) -> Path:
        """A file that the backbone's runs share, named by the corpus and the weights that it was made of."""
        key = xxhash.xxh3_64_hexdigest("".join([self.lab.hashes["corpus"], self.lab.hashes[run.backbone]]).encode())
        return self._store.folder / "shared" / f"{name}.{run.backbone}.{key}.{ending}"

    def _columns(self, run: Run) -> Path:
        """The scores of a model trained on a random tenth, of the run's backbone and seed; made once for all runs.

        Beside it lies a file that says how long that took.
        """

        def make(path: Path) -> None:
            start, tenth = monotonic(), Run(backbone=run.backbone, subset="random", rho=0.1, seed=run.seed)
            folder = self.lab.path / WORK / f"columns.{run.backbone}.seed{run.seed}"
            shutil.rmtree(folder, ignore_errors=True)  # what a failed attempt left
            self._train(tenth, folder, {"training": self.plan.train_options(tenth)})  # not itself by a model
            scores = path.with_name(f"unfinished.{path.name}")
            mprm.score(str(self.lab.file("corpus")), str(scores), model=self._load(folder), force=True)
            path.with_suffix(".json").write_bytes(msgspec.json.encode(round(monotonic() - start, 2)))
            scores.rename(path)
            shutil.rmtree(folder, ignore_errors=True)

        return made_once(self._made_of(run, f"scores.seed{run.seed}", "parquet"), make)

    def _read_out(self, run: Run, prm: models.PRM, folder: Path) -> mprm.ReadOut:
        """The model with a read-out that is fitted to rollouts of the corpus, whoever selected the model's."""

        def draw(path: Path) -> None:
            lines = self.lab.file("corpus").read_bytes().splitlines(keepends=True)
            drawn = np.random.default_rng(0).permutation(len(lines))[:READ_OUT_LINES]
            with atomic_write(str(path)) as temporary:
                temporary.write_bytes(b"".join(lines[index] for index in drawn))

        rollouts = made_once(self._made_of(run, "rollouts", "jsonl"), draw)
        policy = _policy(self.lab.policy(run.backbone), self.plan.device, self.lab.images)
        fitted = mprm.readout(str(rollouts), prm, policy, run=folder, seed=run.seed)
        return replace(fitted, policy=CachedLogProbs(policy, rollouts.parent))  # type: ignore[arg-type]

    def _curve_options(self, run: Run) -> dict[str, Any]:
        if not self.plan.has_curve(run):
            return {}
        n_steps = self.lab.n_rollouts * run.passes / self.plan.training["batch_size"]
        return {
            "benchmark": (str(self.lab.file("benchmark")),),
            "eval_every": max(1, round(n_steps / self.plan.curve_points)),
        }

    def _evaluate(self, run: Run, folder: Path) -> tuple[dict[str, Any], FloatArray | None]:
        """Metrics of the run's model, and its step scores where they are kept."""
        prm: Any = self._load(folder) if run.is_trained else self._reference(run)
        evaluated: dict[str, Any] = {}
        if run.subset in self.plan.read_out:
            start = monotonic()
            prm = self._read_out(run, prm, folder)
            evaluated["read_out_seconds"] = round(monotonic() - start, 2)
        split = "benchmark" if run.learning_rate is None else "validation"
        table = scored_table(_benchmark(str(self.lab.file(split)), self.lab.images), prm)
        evaluated |= {"split": split, "metrics": step_metrics(table), "auc_same": auc_at_same_position(table)}
        evaluated["own_thresholds"] = own_thresholds(table)
        if self.plan.has_curve(run):
            points = map(msgspec.json.decode, (folder / "curve.jsonl").read_bytes().splitlines())
            evaluated["curve"] = [
                {"optimizer_step": point["update"], "overall": point["overall"]} for point in points
            ]
        if self.plan.chooses(run):
            evaluated["best_of_n"] = best_of_n_accuracies(self.lab.graded, prm)
        return evaluated, table.scores if self.plan.keeps_scores(run) else None

    def _load(self, path: Path, config: models.PRMConfig | None = None) -> models.PRM:
        return models.PRM.from_pretrained(
            path, config, device=self.plan.device, image_root=self.lab.images, tokens_per_batch=TOKENS_PER_BATCH
        )

    def _reference(self, run: Run) -> StepScorer:
        """What scores steps without any training."""
        path = self.lab.policy(run.backbone)
        if run.subset == "base":
            settings, max_length = models.family_of(path).image_settings, self.plan.training["max_length"]
            return self._load(path, models.PRMConfig(image_settings=settings, max_length=max_length))
        if run.subset == "position":
            rollouts = mprm.open_corpus(self.lab.file("corpus"))
            return PositionScorer((rollout.source or "", rollout.scores) for rollout in rollouts)
        policy = _policy(path, self.plan.device, self.lab.images)
        return LogProbScorer(policy, is_running_minimum=run.subset == "logp-min")


def _counts(trained: Trained | None) -> dict[str, Any]:
    """How much was trained on, and with which loss."""
    if trained is None:
        names = ("n_rollouts", "n_steps", "n_positive", "n_optimizer_steps")
        return {**dict.fromkeys(names, 0), "mean_loss": None, "last_loss": None}
    return {
        "n_rollouts": trained.data["rollouts"],
        "n_steps": trained.data["steps"],
        "n_positive": trained.data["positive_steps"],
        "n_optimizer_steps": trained.n_optimizer_steps,
        "mean_loss": trained.loss,
        "last_loss": trained.last_loss,
    }

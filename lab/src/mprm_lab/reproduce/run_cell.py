"""Train and measure cells, one after the other; the benchmarks are read once."""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from mprm.data.benchmarks import Benchmark, check_images_exist, read_benchmark
from mprm.models import PRM, PRMConfig, device_name, family_of, resolve_device
from mprm.progress import progress_bar
from mprm.training import TrainConfig, Trained, train
from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.inputs import WORK, LabInputs
from mprm_lab.reproduce.measure_cell import best_of_n_accuracies, scored_table, step_metrics
from mprm_lab.reproduce.reproduce_plan import ReproducePlan

TOKENS_PER_BATCH = 65_536
"""When models of a few million weights score."""
FIXED = {
    "gradient_checkpointing": False,
    "save_every": 0,
    "dataloader_workers": 0,
    "report_to": ("none",),
}
"""Fields of `TrainConfig` that change speed alone."""


class Workbench:
    """Runs cells in this process."""

    def __init__(self, inputs: LabInputs, plan: ReproducePlan) -> None:
        self.inputs, self.plan = inputs, plan
        self.files = CellFiles(inputs.folder)
        self._benchmark = lru_cache(maxsize=None)(self._read)

    def run(self, cell: Cell, settings: dict[str, Any]) -> dict[str, Any]:
        """Train, measure and keep one cell; returns its record."""
        began = monotonic()
        folder = self.inputs.folder / WORK / f"{cell.name}.{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            trained = None if cell.subset == "base" else self._trained(cell, folder, settings)
            train_s = monotonic() - began
            record, scores = self._measured(cell, folder)
            record = {
                "name": cell.name,
                "cell": asdict(cell),
                "settings": settings,
                **_counts(trained),
                "seconds": round(monotonic() - began, 2),
                "train_seconds": round(train_s, 2),
                "device": device_name(resolve_device(self.plan.device)),
                **record,
            }
            if self.plan.keeps_weights(cell):
                kept = self.inputs.folder / "runs" / cell.name
                shutil.rmtree(kept, ignore_errors=True)
                kept.parent.mkdir(exist_ok=True)
                shutil.rmtree(folder / "data", ignore_errors=True)
                folder.rename(kept)
            self.files.write(cell, record, scores)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            gc.collect()
        return record

    def _trained(self, cell: Cell, folder: Path, settings: dict[str, Any]) -> Trained:
        config = TrainConfig(
            model=str(self.inputs.policy(cell.backbone)),
            out=str(folder),
            image_root=str(self.inputs.images),
            device=self.plan.device,
            **FIXED,  # type: ignore[arg-type]
            **settings["training"],
            **self._curve(cell),
        )
        return train(str(self.inputs.file("corpus")), config, progress=progress_bar)

    def _curve(self, cell: Cell) -> dict[str, Any]:
        if not self.plan.has_curve(cell):
            return {}
        n_updates = self.inputs.n_rollouts * cell.passes / self.plan.training["batch_size"]
        return {
            "benchmark": (str(self.inputs.file("benchmark")),),
            "eval_every": max(1, round(n_updates / self.plan.curve_points)),
        }

    def _measured(self, cell: Cell, folder: Path) -> tuple[dict[str, Any], Any]:
        """What the cell's model is worth, and its step scores where they are kept."""
        prm = self._base(cell.backbone) if cell.subset == "base" else self._load(folder)
        split = "benchmark" if cell.learning_rate is None else "validation"
        table = scored_table(self._benchmark(split), prm)
        record: dict[str, Any] = {"split": split, "metrics": step_metrics(table)}
        if self.plan.has_curve(cell):
            lines = (folder / "curve.jsonl").read_bytes().splitlines()
            record["curve"] = [msgspec.json.decode(line) for line in lines]
        if cell.arm in self.plan.best_of_n:
            record["best_of_n"] = best_of_n_accuracies(self.inputs.judged, prm)
        return record, table.scores if self.plan.keeps_scores(cell) else None

    def _read(self, split: str) -> Benchmark:
        benchmark = read_benchmark(str(self.inputs.file(split)))
        check_images_exist(benchmark, self.inputs.images)
        return benchmark

    def _load(self, folder: Path) -> PRM:
        return PRM.from_pretrained(
            folder,
            device=self.plan.device,
            image_root=self.inputs.images,
            tokens_per_batch=TOKENS_PER_BATCH,
        )

    def _base(self, backbone: str) -> PRM:
        """The weights that training begins with, as a reward model."""
        path = self.inputs.policy(backbone)
        config = PRMConfig(image_settings=family_of(path).image_settings, max_length=self.plan.training["max_length"])
        return PRM.from_pretrained(
            path,
            config,
            device=self.plan.device,
            image_root=self.inputs.images,
            tokens_per_batch=TOKENS_PER_BATCH,
        )


def _counts(trained: Trained | None) -> dict[str, Any]:
    """How much was trained on, and with which loss."""
    if trained is None:
        return {"n_rollouts": 0, "n_steps": 0, "n_positive": 0, "n_updates": 0, "mean_loss": None, "last_loss": None}
    return {
        "n_rollouts": trained.data["rollouts"],
        "n_steps": trained.data["steps"],
        "n_positive": trained.data["positive_steps"],
        "n_updates": trained.n_optimizer_steps,
        "mean_loss": trained.loss,
        "last_loss": trained.last_loss,
    }

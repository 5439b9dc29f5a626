"""Records of cells that nobody trained: numbers that a test says, in the form that cells leave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.inputs import FILES, LabInputs
from mprm_lab.reproduce.reproduce_plan import ReproducePlan

TINY = ReproducePlan(
    backbones=("internvl",),
    seeds=2,
    rhos=(0.1,),
    ablated=(),
    alphas=(),
    matched=(),
    tau_counts=(),
    learning_rates=(0.1, 0.2),
    curves=(),
    best_of_n=(),
    keep=(),
    device="cpu",
)
"""Two cells that choose; base; and of each seed full, full-soft, random-10 and bis-10."""


def record_of(cell: Cell, overall: float, **more: Any) -> dict[str, Any]:
    metrics = {"overall": overall, "macro_f1": overall, "auc": overall, "sources": {"grid-sum": overall}}
    return {
        "name": cell.name,
        "cell": asdict(cell),
        "settings": {},
        **{"n_rollouts": 100, "n_steps": 500, "n_positive": 480, "n_updates": 10},
        **{"seconds": 2.0, "train_seconds": 1.0, "mean_loss": 0.5, "last_loss": 0.4, "device": "cpu"},
        "metrics": {"held_out": metrics, "test_threshold": metrics},
        **more,
    }


def make_folder(folder: Path) -> Path:
    """A lab with files in it that only a worker would read."""
    for name in FILES:
        (folder / f"{name}.jsonl").write_text("{}\n" * 100)
    (folder / "images").mkdir()
    policy = folder / "policies" / "internvl"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    return folder


def measure_nothing(inputs: LabInputs, plan: ReproducePlan) -> Callable[[Any], Any]:
    """What a worker does its cells with: notes each in ``ran``, and writes what ``behaviour.json`` says of it."""
    from mprm_lab.reproduce.cell_files import CellFiles

    files = CellFiles(inputs.folder)
    how = inputs.folder / "behaviour.json"
    behaviour = json.loads(how.read_text()) if how.is_file() else {}

    def work(asked: tuple[Cell, dict[str, Any]]) -> float:
        import os
        import time

        cell, settings = asked
        asked_for = behaviour.get(cell.arm)
        if asked_for == "hang":
            (inputs.folder / "pid").write_text(str(os.getpid()))
        with (inputs.folder / "ran").open("a") as log:
            log.write(f"{cell.name} {settings['training'].get('learning_rate')}\n")
        if asked_for == "fail":
            raise ValueError("nothing comes of it")
        if asked_for == "die":
            os._exit(3)
        if asked_for == "hang":
            time.sleep(600)
        overall = 0.5 + (cell.learning_rate or 0.0)
        files.write(cell, record_of(cell, overall) | {"settings": settings})
        return overall

    return work


def made_results(plan: ReproducePlan | None = None) -> dict[str, Any]:
    """A results file of every cell of a plan, with numbers that rise with the share that is kept."""
    from mprm_lab.reproduce.aggregate import summary_of

    plan = plan or ReproducePlan(seeds=3)
    records = []
    for cell in plan.cells():
        overall = 0.60 + 0.05 * min(1.0, cell.passes) + 0.03 * (cell.subset == "bis") + 0.001 * cell.seed
        more: dict[str, Any] = {}
        if plan.has_curve(cell):
            more["curve"] = [{"update": update, "overall": overall - 0.1 / (1 + update)} for update in (0, 5, 10)]
        if cell.arm in plan.best_of_n:
            row = {str(n): overall + 0.01 * n for n in (1, 2, 4, 8, 16)}
            level = dict.fromkeys(row, 0.5)
            accuracy = {"prm": row, "majority_vote": level, "random": level, "oracle": level}
            more["best_of_n"] = {"accuracy": accuracy, "sources": {"grid-sum": overall}}
        record = record_of(cell, round(overall, 6), **more)
        records.append({name: value for name, value in record.items() if name not in ("settings", "train_seconds")})
    tried = [{"learning_rate": rate, "overall": 0.6 + rate, "auc": 0.7, "seed": 1000} for rate in plan.learning_rates]
    return {
        "mprm": "0",
        "plan": json.loads(json.dumps(asdict(plan))),
        "n_planned": len(records),
        "corpus": {"rollouts": 40_000, "steps": 224_000, "error_share": 0.04, "mixed_share": 0.08, "mean_mc": 0.85},
        "truth": {
            "N": 1,
            "reliable": 0.5,
            "rows": [
                {"k": 0, "n_steps": 9_000, "n_wrong": 8_000, "n_neutral": 500, "eta_eff": 0.99}
                | {"n_again": 40, "n_below": 38, "below": 0.97},
                {"k": 1, "n_steps": 215_000, "n_wrong": 1_950, "n_neutral": 20_000, "eta_eff": None}
                | {"n_again": 0, "n_below": 0, "below": None},
            ],
        },
        "benchmark": {"n_solutions": 2400, "n_correct": 9000, "n_error": 4000, "n_sources": 15},
        "choice": {name: {"learning_rate": plan.learning_rates[-1], "tried": tried} for name in plan.backbones},
        "cells": records,
        "summary": summary_of(records),
        "bis_less_random_over_problems": {
            name: {"10": {"value": 0.03, "low": 0.01, "high": 0.05, "n_draws": 1000, "n_seeds": 3}}
            for name in plan.backbones
        },
        "place_alone": {"overall": 0.5, "macro_f1": 0.55, "auc": 0.66},
        "auc_at_same_place": {
            name: {"bis-10": {"mean": 0.58, "low": 0.57, "high": 0.59, "n": 3}} for name in plan.backbones
        },
        "own_thresholds": {
            name: {
                arm: {str(seed): {"overall": value + seed / 100, "auc": value} for seed in range(3)}
                for arm, value in (("full", 0.63), ("bis-10", 0.62), ("random-10", 0.61))
            }
            for name in plan.backbones
        },
    }

"""Records of runs that nobody trained: numbers that a test says, in the form that runs leave."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mprm_lab.folder import RECORDS
from mprm_lab.make import PARTS, LabPlan, make_lab
from mprm_lab.reproduce.plan import ReproducePlan, Run
from mprm_lab.reproduce.reproduce import Reproduction, reproduce
from mprm_lab.reproduce.results import summary_of
from mprm_lab.reproduce.run import RunStore
from tests.conftest import write_jsonl

TINY = ReproducePlan(
    backbones=("internvl",),
    seeds=2,
    rhos=(0.1,),
    ablated=(),
    alphas=(),
    matched=(),
    tau_counts=(),
    rates=((0.5, 0.2), (1.0, 0.1)),
    tried_rates=(0.1, 0.2),
    curves=(),
    best_of_n=(),
    keep=(),
    device="cpu",
)
"""Four trials of rates; four references; and of each seed full, full-soft, random-10 and bis-10."""


def record_of(run: Run, overall: float, **more: Any) -> dict[str, Any]:
    metrics = {"overall": overall, "macro_f1": overall, "auc": overall, "sources": {"grid-sum": overall}}
    return {
        "name": run.name,
        "run": asdict(run),
        "settings": {},
        **{"n_rollouts": 100, "n_steps": 500, "n_positive": 480, "n_optimizer_steps": 10},
        **{"seconds": 2.0, "train_seconds": 1.0, "mean_loss": 0.5, "last_loss": 0.4, "device": "cpu"},
        "metrics": {"held_out": metrics, "test_threshold": metrics},
        **more,
    }


def make_folder(folder: Path) -> Path:
    """A lab with files in it that only a worker would read."""
    for name in RECORDS:
        (folder / f"{name}.jsonl").write_text("{}\n" * 100)
    (folder / "images").mkdir()
    policy = folder / "policies" / "internvl"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    return folder


@dataclass(frozen=True)
class MeasureNothing:
    """Does runs in a worker: notes each in ``ran``, and writes what ``behaviour.json`` says of it."""

    folder: Path

    def __call__(self, run: Run, settings: dict[str, Any]) -> float:
        how = self.folder / "behaviour.json"
        behaviour = json.loads(how.read_text()).get(run.condition) if how.is_file() else None
        if behaviour == "hang":
            (self.folder / "pid").write_text(str(os.getpid()))
        with (self.folder / "ran").open("a") as log:
            log.write(f"{run.name} {settings['training'].get('learning_rate')}\n")
        print(f"works on {run.name}")
        if behaviour == "fail":
            raise ValueError("nothing comes of it")
        if behaviour == "die":
            os._exit(3)
        if behaviour == "hang":
            time.sleep(600)
        overall = 0.5 + (run.learning_rate or 0.0)
        RunStore(self.folder).write(run, record_of(run, overall) | {"settings": settings})
        return overall


def made_results(plan: ReproducePlan | None = None) -> dict[str, Any]:
    """A results file of every run of a plan, with numbers that rise with the share that is kept."""
    plan = plan or ReproducePlan(seeds=3)
    records = []
    for run in plan.runs():
        overall = 0.60 + 0.05 * min(1.0, run.passes) + 0.03 * (run.subset == "bis") + 0.001 * run.seed
        more: dict[str, Any] = {}
        if plan.has_curve(run):
            more["curve"] = [
                {"optimizer_step": update, "overall": overall - 0.1 / (1 + update)} for update in (0, 5, 10)
            ]
        if run.condition in plan.best_of_n:
            row = {str(n): overall + 0.01 * n for n in (1, 2, 4, 8, 16)}
            level = dict.fromkeys(row, 0.5)
            accuracy = {"prm": row, "majority_vote": level, "random": level, "oracle": level}
            more["best_of_n"] = {"accuracy": accuracy, "sources": {"grid-sum": overall}}
        record = record_of(run, round(overall, 6), **more)
        records.append({name: value for name, value in record.items() if name not in ("settings", "train_seconds")})
    trials = [
        {"backbone": run.backbone, "rho": run.rho, "learning_rate": run.learning_rate, "seed": 1000}
        | {"overall": 0.6 + (run.learning_rate or 0.0), "auc": 0.7}
        for run in plan.rate_trials()
    ]
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
        "rate_trials": trials,
        "runs": records,
        "summary": summary_of(records),
        "bis_minus_random_over_problems": {
            name: {"10": {"value": 0.03, "low": 0.01, "high": 0.05, "n_draws": 1000, "n_seeds": 3}}
            for name in plan.backbones
        },
        "auc_at_same_position": {
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


def done(folder: Path, plan: ReproducePlan = TINY, **options: Any) -> Reproduction:
    """The experiments, with nothing trained."""
    quiet = {"jobs": 1, "log": lambda _line: None, "do_run": MeasureNothing(folder)}
    return reproduce(folder, plan, **{**quiet, **options})


def make_with_both_labels(folder: Path, plan: LabPlan) -> None:
    """Make a lab whose rollouts begin right: policies as hasty as these do nothing right, and one label is no data."""
    make_lab(folder, plan, only=tuple(part for part in PARTS if part != "scores"), log=lambda _: None)
    path = folder / "corpus.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        first = record["steps_with_score"][0]
        first["score"], first["num_mc_correct"] = 1.0, first["num_mc_total"]
    write_jsonl(path, records)
    make_lab(folder, plan, only=("scores",), log=lambda _: None)

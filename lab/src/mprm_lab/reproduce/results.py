"""The results file: every finished cell, what was chosen, and the numbers made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mprm import __version__
from mprm.data.benchmarks import Benchmark, read_benchmark
from mprm.data.corpus import open_corpus
from mprm.data.output import atomic_write
from mprm.errors import DataError
from mprm.evaluation import (
    FloatArray,
    StepTable,
    bootstrap_overall,
    choose_thresholds,
    count_units,
    estimate,
    step_counts,
    with_scores,
)
from mprm.selection.stats import stats
from mprm_lab.corpus_truth import corpus_truth
from mprm_lab.reproduce.aggregate import summary_of
from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.choice import choices_of
from mprm_lab.reproduce.measure_cell import FOLDS, SEED, step_metrics
from mprm_lab.reproduce.own_thresholds import own_thresholds
from mprm_lab.reproduce.reproduce_plan import ReproducePlan
from mprm_lab.reproduce.same_place import auc_at_same_place, scored_by_place
from mprm_lab.reproduce.seed_interval import seed_mean

DRAWS = 1000
FROM_RECORD = (
    *("name", "cell", "n_rollouts", "n_steps", "n_positive", "n_updates", "seconds", "mean_loss", "last_loss"),
    *("device", "metrics", "curve", "best_of_n"),
)
"""What the results file has of a cell's record."""


def results_of(lab: Path, plan: ReproducePlan) -> dict[str, Any]:
    """Everything that the page says, from the cells of the plan that are finished."""
    files = CellFiles(lab)
    found = [(cell, record) for cell in plan.cells() if (record := files.read(cell)) is not None]
    if not found:
        raise DataError(f"{files.folder}: no cell is finished; mprm lab reproduce {lab} measures them")
    cells = [{name: record[name] for name in FROM_RECORD if name in record} for _, record in found]
    backbones = tuple(dict.fromkeys(cell.backbone for cell, _ in found))
    benchmark = read_benchmark(str(lab / "benchmark.jsonl"))
    return {
        "mprm": __version__,
        "plan": msgspec.to_builtins(plan),
        "n_planned": len(plan.cells()),
        "corpus": _corpus(lab),
        "truth": asdict(corpus_truth(lab / "corpus.jsonl")),
        "benchmark": _benchmark(benchmark),
        "choice": choices_of(files, plan, backbones),
        "cells": cells,
        "summary": summary_of(cells),
        "bis_less_random_over_problems": {
            backbone: _over_problems(files, plan, backbone, benchmark) for backbone in backbones
        },
        "place_alone": _place_alone(lab, benchmark),
        "auc_at_same_place": {backbone: _at_same_place(files, plan, backbone, benchmark) for backbone in backbones},
        "own_thresholds": {backbone: _own_thresholds(files, plan, backbone, benchmark) for backbone in backbones},
    }


def _corpus(lab: Path) -> dict[str, Any]:
    total = stats(str(lab / "corpus.jsonl")).total
    return {
        "rollouts": total.n_rollouts,
        "steps": total.n_steps,
        "error_share": round(total.error_step_ratio, 6),
        "mixed_share": round(total.mixed_share, 6),
        "mean_mc": round(total.mean_mc, 6),
    }


def _benchmark(benchmark: Benchmark) -> dict[str, Any]:
    table = _table(benchmark)
    return {**asdict(step_counts(table)), "n_sources": len(table.sources)}


def _table(benchmark: Benchmark) -> StepTable:
    """The benchmark's steps, with scores yet to be put in."""
    return StepTable.of([with_scores(solution, "", [0.0] * len(solution.steps)) for solution in benchmark.solutions])


def _over_problems(
    files: CellFiles, plan: ReproducePlan, backbone: str, benchmark: Benchmark
) -> dict[str, dict[str, Any]]:
    """BIS less random choice at each fraction: the mean over seeds, its interval by drawing problems, paired."""
    table, found = _table(benchmark), {}
    for rho in plan.rhos:
        pairs = []
        for seed in range(plan.seeds):
            both = [files.scores(_cell(backbone, how, rho, seed)) for how in ("bis", "random")]
            if both[0] is not None and both[1] is not None:
                pairs.append([_drawn(table, scores) for scores in both if scores is not None])
        if pairs:
            apart = np.mean([bis - random for bis, random in pairs], axis=0)
            found[f"{100 * rho:g}"] = {**asdict(estimate(float(apart[0]), apart[1:])), "n_seeds": len(pairs)}
    return found


def _place_alone(lab: Path, benchmark: Benchmark) -> dict[str, Any]:
    """What a score is worth that reads nothing."""
    rollouts = ((rollout.source or "", rollout.scores) for rollout in open_corpus(lab / "corpus.jsonl"))
    found = step_metrics(scored_by_place(_table(benchmark), rollouts))["held_out"]
    return {name: found[name] for name in ("overall", "macro_f1", "auc")}


def _at_same_place(
    files: CellFiles, plan: ReproducePlan, backbone: str, benchmark: Benchmark
) -> dict[str, dict[str, Any]]:
    """`auc_at_same_place` of the arms whose step scores are kept, over seeds."""
    found: dict[str, list[float]] = {}
    for cell, table in _scored(files, plan, backbone, benchmark):
        value = auc_at_same_place(table)
        if value is not None:
            found.setdefault(cell.arm, []).append(value)
    return {arm: asdict(seed_mean(values)) for arm, values in found.items()}


def _own_thresholds(
    files: CellFiles, plan: ReproducePlan, backbone: str, benchmark: Benchmark
) -> dict[str, dict[str, dict[str, float]]]:
    """`own_thresholds` of the arms whose step scores are kept, by seed."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for cell, table in _scored(files, plan, backbone, benchmark):
        values = own_thresholds(table)
        if values is not None:
            found.setdefault(cell.arm, {})[str(cell.seed)] = values
    return found


def _scored(
    files: CellFiles, plan: ReproducePlan, backbone: str, benchmark: Benchmark
) -> Iterator[tuple[Cell, StepTable]]:
    """The backbone's cells whose step scores are kept, and the benchmark's steps with them."""
    table = _table(benchmark)
    for cell in plan.cells():
        if cell.backbone == backbone and (scores := files.scores(cell)) is not None:
            yield cell, replace(table, scores=scores)


def _cell(backbone: str, how: Any, rho: float, seed: int) -> Cell:
    return Cell(backbone=backbone, subset=how, rho=rho, seed=seed)


def _drawn(table: StepTable, scores: FloatArray) -> FloatArray:
    """The overall value, then that of each draw, shape (1 + draws,)."""
    scored = replace(table, scores=scores)
    counts = count_units(scored, choose_thresholds(scored, "held-out", folds=FOLDS, seed=SEED))
    return bootstrap_overall(counts, draws=DRAWS, seed=SEED)


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write the file, a line for each cell."""
    parts = []
    for name, value in results.items():
        text = msgspec.json.encode(value).decode()
        if isinstance(value, list):
            text = "[\n" + ",\n".join(msgspec.json.encode(one).decode() for one in value) + "\n]"
        parts.append(f'"{name}": {text}')
    with atomic_write(str(path)) as temporary:
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def read_results(path: Path) -> dict[str, Any]:
    """What `write_results` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=dict)

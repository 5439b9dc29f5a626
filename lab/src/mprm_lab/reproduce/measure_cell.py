"""What a reward model is worth: on the step benchmark, and in choosing among candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mprm
from mprm.data.benchmarks import Benchmark
from mprm.data.types import StepScorer
from mprm.evaluation import EvaluateConfig, StepTable, bootstrap_metrics, choose_thresholds, score_benchmark

FOLDS, SEED = EvaluateConfig().folds, EvaluateConfig().seed
VOTE_SUBSETS = 200
"""Subsets that a vote is averaged over; the model's own choice has a closed form."""
SCHEMES = {"held_out": "held-out", "test_threshold": "test"}
"""Where the threshold is chosen: on other problems, or on those that it is reported on, as the paper's code does."""


def scored_table(benchmark: Benchmark, scorer: StepScorer) -> StepTable:
    """The benchmark's steps with the model's scores."""
    return StepTable.of(score_benchmark(benchmark, scorer, model="the cell's model").solutions)


def step_metrics(table: StepTable) -> dict[str, dict[str, Any]]:
    """Overall value, pooled macro-F1, AUC and macro-F1 of each source, by where the threshold is chosen."""
    found = {}
    for name, scheme in SCHEMES.items():
        thresholds = choose_thresholds(table, scheme, folds=FOLDS, seed=SEED)  # type: ignore[arg-type]
        result = bootstrap_metrics(table, thresholds)
        found[name] = {
            **{metric: _number(result.value(metric)) for metric in ("overall", "macro_f1", "auc")},
            "sources": {source: _number(result.value("macro_f1", source)) for source in table.sources},
        }
    return found


def best_of_n_accuracies(judged: Path, scorer: StepScorer) -> dict[str, Any]:
    """Accuracy by method and N, and that of the model's choice at the largest N by source."""
    found = mprm.rerank(str(judged), scorer, draws=VOTE_SUBSETS)
    largest = max(found.ns)
    return {
        "accuracy": {
            method: {str(n): _rounded(estimate.value) for n, estimate in row.items()}
            for method, row in found.best_of_n.total.accuracy.items()
        },
        "sources": {
            source: _rounded(group.accuracy["prm"][largest].value)
            for source, group in found.best_of_n.sources.items()
        },
    }


def _number(value: float | None) -> float | None:
    return None if value is None else _rounded(value)


def _rounded(value: float) -> float:
    return round(value, 6)

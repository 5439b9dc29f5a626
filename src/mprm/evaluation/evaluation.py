"""The outcome of an evaluation: numbers for programs, tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from mprm import __version__
from mprm.evaluation.benchmark import BenchmarkFile
from mprm.evaluation.bootstrap import Estimate
from mprm.evaluation.compare import Comparison
from mprm.evaluation.config import EvaluateConfig
from mprm.evaluation.measure import Key
from mprm.evaluation.step_table import BoolArray, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """How much there is to measure by."""

    n_problems: int
    n_solutions: int
    n_steps: int
    n_correct: int
    """Steps labelled correct that have a score."""
    n_error: int
    """Steps labelled incorrect that have a score."""
    n_unscored: int
    """Labelled steps that truncation cut off; they count as no prediction at all."""
    n_unscored_solutions: int
    """Solutions with a step that was cut off; they are left out of first-error metrics."""

    @property
    def n_counted(self) -> int:
        """Steps that step metrics count."""
        return self.n_correct + self.n_error


def step_counts(table: StepTable, is_here: BoolArray) -> StepCounts:
    """Counts of some of the solutions."""
    steps = is_here[table.solution]
    labels, is_counted = table.labels[steps], table.is_counted[steps]
    return StepCounts(
        n_problems=len(np.unique(table.problem[is_here])),
        n_solutions=int(is_here.sum()),
        n_steps=len(labels),
        n_correct=int((is_counted & (labels == 1)).sum()),
        n_error=int((is_counted & (labels == -1)).sum()),
        n_unscored=int((~is_counted & (labels != 0)).sum()),
        n_unscored_solutions=int((is_here & ~table.is_whole).sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    """How good one model is."""

    name: str
    counts: StepCounts
    source_counts: dict[str, StepCounts]
    scheme: Literal["held-out", "test", "fixed"]
    """How the thresholds were chosen."""
    step_thresholds: tuple[float, ...]
    """For step metrics: of each fold, or the one."""
    solution_thresholds: tuple[float, ...]
    """For first-error metrics, likewise."""
    metrics: dict[Key, Estimate]
    """By (source, metric); the source is None for all together."""
    warnings: tuple[str, ...]
    """What a reader of the numbers must know."""

    def value(self, metric: str, source: str | None = None) -> float | None:
        """A metric of all sources together, or of one."""
        return self.metrics[source, metric].value


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One or more models measured on one benchmark."""

    config: EvaluateConfig
    files: tuple[BenchmarkFile, ...]
    """The benchmark's, where it was read."""
    notes: tuple[str, ...]
    """What is odd about the benchmark's records."""
    models: tuple[ModelEvaluation, ...]
    comparisons: tuple[Comparison, ...]
    """Every other model against the first."""

    def to_json(self) -> dict[str, Any]:
        """Everything, in values that JSON can hold; undefined values are None."""
        return {
            "mprm": __version__,
            "config": asdict(self.config),
            "benchmark": [asdict(file) for file in self.files],
            "notes": list(self.notes),
            "threshold": threshold_words(self.config),
            "models": [_model_json(model) for model in self.models],
            "comparisons": [_comparison_json(comparison) for comparison in self.comparisons],
        }


def threshold_words(config: EvaluateConfig) -> str:
    """How thresholds were chosen, in words that go with every number."""
    if config.threshold == "held-out":
        return f"Threshold held out: chosen on the other {config.folds - 1} of {config.folds} folds of problems"
    if config.threshold == "test":
        return "Threshold CHOSEN ON THE REPORTED DATA ITSELF: optimistic, not comparable with held-out numbers"
    return f"Threshold fixed at {config.threshold}"


def _by_source(values: Mapping[Key, Any]) -> dict[str, Any]:
    sources = dict.fromkeys(source for source, _ in values if source is not None)
    return {
        "all": {metric: asdict(value) for (source, metric), value in values.items() if source is None},
        "sources": {
            name: {metric: asdict(value) for (source, metric), value in values.items() if source == name}
            for name in sources
        },
    }


def _model_json(model: ModelEvaluation) -> dict[str, Any]:
    return {
        "name": model.name,
        "counts": asdict(model.counts),
        "source_counts": {source: asdict(counts) for source, counts in model.source_counts.items()},
        "scheme": model.scheme,
        "step_thresholds": list(model.step_thresholds),
        "solution_thresholds": list(model.solution_thresholds),
        "metrics": _by_source(model.metrics),
        "warnings": list(model.warnings),
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "model": comparison.model,
        "baseline": comparison.baseline,
        "differences": _by_source(comparison.differences),
        "permutation_p": comparison.permutation_p,
        "n_permutations": comparison.n_permutations,
        "is_exact": comparison.is_exact,
        "n_left_out": comparison.n_left_out,
    }

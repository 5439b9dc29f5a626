"""The outcome of an evaluation: numbers for programs, tables for people.

Tables of an evaluation, to be printed or written as Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from mprm import __version__
from mprm.data.benchmarks import BenchmarkFile
from mprm.errors import printable
from mprm.evaluation.bootstrap import METRICS, Estimate, Key
from mprm.evaluation.compare import Comparison
from mprm.evaluation.step_table import BoolArray, StepTable
from mprm.evaluation.thresholds import EvaluateConfig


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


SOURCE_COLUMNS = {
    "macro_f1": "macro-F1",
    "f1_correct": "F1 correct",
    "f1_error": "F1 error",
    "auc": "AUC",
    "ap_error": "AP error",
    "first_error_accuracy": "first-error accuracy",
    "processbench_f1": "ProcessBench F1",
}
"""Metrics that the table of sources shows, with short heads."""
ONE_CLASS = "*"
"""Marks a source whose steps are all correct or all incorrect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """A table and what must be said below it."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    below: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table in Markdown, under its title."""
        lines = [self.heads, ["---"] + ["---:"] * (len(self.heads) - 1), *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return "\n\n".join([f"## {self.title}", table, *self.below]) + "\n"


def evaluation_tables(evaluation: Evaluation) -> list[MetricsTable]:
    """The metrics of all models side by side, each model's sources, and the comparisons; all of it printable."""
    tables = [
        _metrics_table(evaluation),
        *(_source_table(model, evaluation) for model in evaluation.models),
        *(_comparison_table(comparison, evaluation) for comparison in evaluation.comparisons),
    ]
    return [_printable(table) for table in tables]


def _printable(table: MetricsTable) -> MetricsTable:
    """The table with what names from data could do to a terminal escaped."""
    return replace(
        table,
        title=printable(table.title),
        heads=[printable(head) for head in table.heads],
        rows=[[printable(cell) for cell in row] for row in table.rows],
        below=tuple(printable(line) for line in table.below),
    )


def _metrics_table(evaluation: Evaluation) -> MetricsTable:
    heads, rows = ["metric"], [[title] for title in METRICS.values()]
    for model in evaluation.models:
        heads += [model.name, "95% interval"]
        for row, metric in zip(rows, METRICS, strict=True):
            found = model.metrics[None, metric]
            row += [_number(found.value), _interval(found)]
    below = [f"{threshold_words(evaluation.config)}."]
    if evaluation.config.draws:
        below.append(f"Intervals: {evaluation.config.draws:,} bootstrap draws of problems, thresholds as chosen.")
    below += [f"{note}." for note in evaluation.notes]
    return MetricsTable(title="Metrics", heads=heads, rows=rows, below=tuple(below))


def _source_table(model: ModelEvaluation, evaluation: Evaluation) -> MetricsTable:
    rows = []
    for source, counts in [*model.source_counts.items(), (None, model.counts)]:
        name = "all" if source is None else source
        if source is not None and not (counts.n_correct and counts.n_error):
            name += ONE_CLASS
        cells = [f"{n:,}" for n in (counts.n_solutions, counts.n_counted, counts.n_error, counts.n_unscored)]
        found = [_number(model.value(metric, source)) for metric in SOURCE_COLUMNS]
        if source is None:  # the paper's value stands in the row of all, under the macro-F1 that it is a mean of
            found[0] = _number(model.value("overall"))
        rows.append([name, *cells, *found])
    cuts = ", ".join(f"{threshold:.4g}" for threshold in model.step_thresholds)
    solution_cuts = ", ".join(f"{threshold:.4g}" for threshold in model.solution_thresholds)
    return MetricsTable(
        title=f"{model.name} by source",
        heads=["source", "solutions", "steps counted", "error steps", "steps unscored", *SOURCE_COLUMNS.values()],
        rows=rows,
        below=(
            f"{threshold_words(evaluation.config)}; for steps {cuts}; for first errors {solution_cuts}.",
            "In the row of all, macro-F1 is the mean over sources weighted by steps, ProcessBench F1 the plain mean.",
            *(f"{warning}." for warning in model.warnings),
        ),
    )


def _comparison_table(comparison: Comparison, evaluation: Evaluation) -> MetricsTable:
    rows = []
    for metric, title in METRICS.items():
        found = comparison.differences[None, metric]
        rows.append([title, _number(found.estimate.value, "+.4f"), _interval(found.estimate), _number(found.p_value)])
    below = [f"{threshold_words(evaluation.config)}."]
    if comparison.permutation_p is not None:
        how = "all" if comparison.is_exact else "random"
        below.append(
            f"Overall value, test by swapping the models' predictions problem by problem:"
            f" p = {comparison.permutation_p:.4f} ({comparison.n_permutations:,} {how} permutations)."
        )
    if comparison.n_left_out:
        below.append(f"{comparison.n_left_out:,} labelled steps that only one of them scored are left out.")
    return MetricsTable(
        title=f"{comparison.model} less {comparison.baseline}",
        heads=["metric", "difference", "95% interval", "p"],
        rows=rows,
        below=tuple(below),
    )


def _number(value: float | None, form: str = ".4f") -> str:
    return "–" if value is None else format(value, form)


def _interval(found: Estimate) -> str:
    return "–" if found.low is None else f"{found.low:.4f} to {found.high:.4f}"

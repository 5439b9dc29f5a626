"""Tables of an evaluation, to be printed or written as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mprm.evaluation.bootstrap import Estimate
from mprm.evaluation.compare import Comparison
from mprm.evaluation.evaluation import Evaluation, ModelEvaluation, threshold_words
from mprm.evaluation.measure import METRICS
from mprm.rollouts.printable import printable

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

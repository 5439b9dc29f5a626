"""A table for the page.

Tables and charts of training runs, evaluations and rerankings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from mprm.data.charts import Chart, Point, Series
from mprm.evaluation.best_of_n import METHODS
from mprm.evaluation.bootstrap import METRICS
from mprm.evaluation.metrics import BINS, StepTable, calibration_bin
from mprm.evaluation.scores import read_scores
from mprm.report.runs import FULL, EvaluationRun, RerankingRun, Runs, TrainedOn, TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells, of which some are the best of their column."""

    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    """Numbers of the cells to mark."""
    is_total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows under one head."""

    head: str | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption and what must be said below it."""

    caption: str
    heads: tuple[str, ...]
    groups: tuple[Group, ...]
    below: tuple[str, ...] = ()


def best_marked(head: str | None, rows: Sequence[tuple[str, Sequence[float | None]]], form: str) -> Group:
    """Rows of numbers under a head, the largest of each column marked where there is more than one row.

    Examples
    --------
    >>> group = best_marked("10%", [("bis", [0.5, 0.25]), ("random", [0.25, 0.25])], "{:.2f}")
    >>> [sorted(row.best) for row in group.rows]
    [[1, 2], [2]]
    """
    # equal when they are shown alike
    shown = [[None if value is None else form.format(value) for value in values] for _, values in rows]
    tops = []
    for column in zip(*(values for _, values in rows), strict=True):
        known = [value for value in column if value is not None]
        tops.append(form.format(max(known)) if known and len(rows) > 1 else None)
    made = [
        Row(
            cells=(name, *("–" if cell is None else cell for cell in cells)),
            best=frozenset(n for n, cell in enumerate(cells, 1) if cell is not None and cell == tops[n - 1]),
        )
        for (name, _), cells in zip(rows, shown, strict=True)
    ]
    return Group(head=head, rows=tuple(made))


Measured = tuple[str, TrainedOn | None, list[float | None]]
"""A model's name, what it was trained on, and its numbers."""


@dataclass(frozen=True, slots=True)
class RunsView:
    """What the page shows of runs."""

    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]


def view_runs(runs: Runs) -> RunsView:
    """Everything that the runs hold to be shown, curves first."""
    charts = [*_curve_charts(runs.training), *_scaling_charts(runs)]
    for number, run in enumerate(runs.rerankings, 1):
        charts.append(_best_of_n(run, number))
    charts += _calibration(runs.evaluations)
    tables = [*_curve_tables(runs.training), *_evaluation_tables(runs.evaluations)]
    tables += [table for run in runs.evaluations for table in _comparisons(run)]
    return RunsView(tuple(charts), tuple(tables))


def _curve_charts(training: Sequence[TrainingRun]) -> list[Chart]:
    """One chart of the overall value and one a source; a line for runs that differ by their seed alone."""
    measured = [run for run in training if run.curve]
    if not measured:
        return []
    groups = _by_settings(measured)
    sources = dict.fromkeys(source for run in measured for point in run.curve for source in point.macro_f1)
    views: list[tuple[str, str, str | None]] = [("curve_overall", "Overall F1 during training", None)]
    views += [(f"curve_source_{n}", f"Macro-F1 during training: {s}", s) for n, s in enumerate(sources, 1)]
    return [
        Chart(name=name, title=title, x="updates", y="F1", series=_curve_series(groups, source))
        for name, title, source in views
    ]


def _curve_series(groups: dict[str, list[TrainingRun]], source: str | None) -> tuple[Series, ...]:
    """A line a group, of the overall value or of one source."""
    series = []
    for name, runs in groups.items():
        found: dict[int, list[float]] = defaultdict(list)
        for point in (point for run in runs for point in run.curve):
            value = point.overall if source is None else point.macro_f1.get(source)
            if value is not None:
                found[point.update].append(value)
        # only where every seed was measured: else the mean jumps as runs come and go
        whole = {update: values for update, values in found.items() if len(values) == len(runs)}
        if whole:
            series.append(Series(name=name, points=tuple(_band(x, whole[x]) for x in sorted(whole))))
    return tuple(series)


def _band(x: float, values: Sequence[float]) -> Point:
    """The mean, between the least and the largest of several."""
    if len(values) == 1:
        return Point(x=x, y=values[0])
    return Point(x=x, y=sum(values) / len(values), low=min(values), high=max(values))


def _by_settings(training: Iterable[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """Runs that differ by their seed alone, under a name that tells them from the others."""
    runs = sorted(training, key=lambda run: (run.trained_on.rho, run.trained_on.strategy, run.seed))
    groups: dict[tuple[str, tuple[str, ...]], list[TrainingRun]] = defaultdict(list)
    for run, variant in zip(runs, _variants(runs), strict=True):
        groups[", ".join(filter(None, [run.trained_on.name, variant])), _told_apart_by(run)].append(run)
    found: dict[str, list[TrainingRun]] = {}
    for (name, _), members in groups.items():
        if sum(other == name for other, _ in groups) == 1 and len({run.seed for run in members}) == len(members):
            found[name] = members
        else:  # other models, rollouts or benchmarks, or the same seed again: no seeds of one
            found.update({f"{name} ({run.folder})": [run] for run in members})
    return found


def _told_apart_by(run: TrainingRun) -> tuple[str, ...]:
    """What seeds of one run share beside their options: model, rollouts, and the sources they were judged by."""
    return *run.identity, *sorted({source for point in run.curve for source in point.macro_f1})


def _variants(runs: Sequence[TrainingRun]) -> list[str]:
    """The options by which each run differs from others, in words."""
    options = dict.fromkeys(name for run in runs for name in run.settings)
    differ = [name for name in options if len({run.settings.get(name) for run in runs}) > 1]
    return [", ".join(f"{name} {run.settings.get(name)}" for name in differ) for run in runs]


def _curve_tables(training: Sequence[TrainingRun]) -> list[Table]:
    measured = [run for run in training if run.curve]
    unmeasured = [str(run.folder) for run in training if not run.curve]
    without = (
        [f"Not shown, without a learning curve (mprm train --benchmark writes one): {', '.join(unmeasured)}."]
        if unmeasured
        else []
    )
    if not measured:
        return (
            [Table(caption="After training", heads=("model",), groups=(), below=tuple(without))] if training else []
        )
    sources = list(dict.fromkeys(source for run in measured for source in run.curve[-1].macro_f1))
    found: list[Measured] = []
    for name, runs in _by_settings(measured).items():
        last = [run.curve[-1] for run in runs]
        columns: list[list[float | None]] = [
            [point.overall for point in last],
            *([point.macro_f1.get(s) for point in last] for s in sources),
        ]
        means = [_mean(column) for column in columns]
        several = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
        found.append((name + several, runs[0].trained_on, means))
    assumed = [run.folder.name for run in measured if run.is_assumed]
    below = ["Last point of each learning curve; of several seeds the mean. The best of each group is marked."]
    below += _assumed_words(assumed)
    return [_paper_table("After training", sources, found, (*below, *without))]


def _assumed_words(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [f"Nothing says that these were trained on a subset, so they count as all data: {', '.join(names)}."]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _paper_table(caption: str, sources: Sequence[str], found: Sequence[Measured], below: tuple[str, ...]) -> Table:
    """Overall and per-source F1 in percent, grouped by how much the models were trained on, as in the paper."""
    percent = [(n, on, [None if v is None else 100 * v for v in values]) for n, on, values in found]
    ranked = sorted(
        percent, key=lambda row: (-2.0, False) if row[1] is None else (-row[1].rho, row[1].strategy != FULL)
    )
    groups = [
        best_marked(head, [(name, values) for name, _, values in rows], "{:.2f}")
        for head, rows in groupby(ranked, key=lambda row: _group_head(row[1]))
    ]
    return Table(caption=caption, heads=("model", "overall", *sources), groups=tuple(groups), below=below)


def _group_head(trained_on: TrainedOn | None) -> str | None:
    if trained_on is None:
        return None
    return "Full data" if trained_on.strategy == FULL else f"{100 * trained_on.rho:g}% subsets"


def _evaluation_tables(evaluations: Sequence[EvaluationRun]) -> list[Table]:
    """One table for each set of sources and way to choose thresholds: only those can be compared."""
    known = {run.content.models[0].name: run.trained_on for run in evaluations if run.trained_on is not None}
    assumed = {run.content.models[0].name for run in evaluations if run.is_assumed and len(run.content.models) == 1}
    found: dict[tuple[str, tuple[str, ...]], dict[str, Measured]] = defaultdict(dict)
    measured: set[tuple[Any, ...]] = set()
    for run in evaluations:
        for model in run.content.models:
            by_source = model.metrics.sources
            values = [
                model.metrics.all["overall"].value,
                *(source["macro_f1"].value for source in by_source.values()),
            ]
            on = run.trained_on if len(run.content.models) == 1 else known.get(model.name)
            rows = found[run.content.threshold, tuple(by_source)]
            key = (run.content.threshold, tuple(by_source), model.name, *values)
            if key in measured:
                continue  # measured before, and compared here
            measured.add(key)
            name = model.name if model.name not in rows else f"{model.name} ({run.folder})"
            rows[name] = (name, on, values)
    return [
        _paper_table(
            "Evaluation",
            sources,
            list(models.values()),
            (
                f"{threshold}. The best of each group is marked.",
                *_assumed_words([name for name in models if name in assumed]),
            ),
        )
        for (threshold, sources), models in found.items()
    ]


def _comparisons(run: EvaluationRun) -> list[Table]:
    """Every paired comparison of an evaluation."""
    tables = []
    for pair in run.content.comparisons:
        rows = []
        for metric, title in METRICS.items():
            difference = pair.differences.all.get(metric)
            if difference is not None and difference.estimate.value is not None:
                value, low, high = difference.estimate.value, difference.estimate.low, difference.estimate.high
                interval = "–" if low is None or high is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
                p = "–" if difference.p_value is None else f"{difference.p_value:.4f}"
                rows.append(Row(cells=(title, f"{100 * value:+.2f}", interval, p)))
        swapped = pair.permutation_p
        below = [f"{run.content.threshold}. Differences in points, on the same problems."]
        if swapped is not None:
            below.append(f"Overall value, by swapping the models problem by problem: p = {swapped:.4f}.")
        tables.append(
            Table(
                caption=f"{pair.model} less {pair.baseline}",
                heads=("metric", "difference", "95% interval", "p"),
                groups=(Group(head=None, rows=tuple(rows)),),
                below=tuple(below),
            )
        )
    return tables


def _scaling_charts(runs: Runs) -> list[Chart]:
    """F1 against rho, from the ends of learning curves and from evaluations, each where it has two values of rho."""
    measured = [run for run in runs.training if run.curve]
    # (what to call it, what else must be the same): a subset's rollouts are not those of the full data
    ends: dict[tuple[str, str], list[tuple[TrainedOn, float]]] = defaultdict(list)
    for run, variant in zip(measured, _variants(measured), strict=True):
        key = ", ".join(filter(None, [variant, *run.curve[-1].macro_f1]))
        ends[key, run.identity[0]].append((run.trained_on, run.curve[-1].overall))
    judged: dict[tuple[str, str], list[tuple[TrainedOn, float]]] = defaultdict(list)
    for one in runs.evaluations:
        value = one.content.models[0].metrics.all["overall"].value
        if one.trained_on is not None and len(one.content.models) == 1 and value is not None:
            sources = ", ".join(one.content.models[0].metrics.sources)
            judged[sources, one.content.threshold].append((one.trained_on, value))
    found = []
    for name, title, groups in (
        ("scaling_curves", "Overall F1 against ρ, at the end of training", ends),
        ("scaling_evaluations", "Overall F1 against ρ, as evaluated", judged),
    ):
        # only what was measured alike can be one line: a chart for each kind
        several = [(key, pairs) for (key, _), pairs in groups.items() if len({on.rho for on, _ in pairs}) > 1]
        for number, (key, pairs) in enumerate(several, 1):
            words = f": {key}" if len(several) > 1 else ""
            file = name if number == 1 else f"{name}_{number}"
            found.append(Chart(name=file, title=title + words, x="ρ (%)", y="F1", series=_scaling(pairs)))
    return found


def _scaling(pairs: Sequence[tuple[TrainedOn, float]]) -> tuple[Series, ...]:
    """A line a strategy; all strategies end in the full data."""
    full = [value for on, value in pairs if on.strategy == FULL]
    series = []
    for strategy in dict.fromkeys(on.strategy for on, _ in pairs if on.strategy != FULL):
        by_rho: dict[float, list[float]] = defaultdict(list)
        for on, value in pairs:
            if on.strategy == strategy:
                by_rho[on.rho].append(value)
        if full:
            by_rho.setdefault(1.0, full)
        series.append(Series(name=strategy, points=tuple(_band(100 * rho, by_rho[rho]) for rho in sorted(by_rho))))
    return tuple(series)


def _best_of_n(run: RerankingRun, number: int) -> Chart:
    series = []
    for method, row in run.content.total.accuracy.items():
        points = [
            Point(x=int(n), y=found.value, low=found.low, high=found.high)
            for n, found in row.items()
            if found.value is not None
        ]
        series.append(Series(name=METHODS.get(method, method), points=tuple(sorted(points, key=lambda p: p.x))))
    return Chart(
        name=f"best_of_n_{number}",
        title=f"Best of N: {run.content.model}, {run.content.total.n_questions:,} questions",
        x="candidates a question (N)",
        y="accuracy",
        series=tuple(series),
        is_log=True,
    )


def _calibration(evaluations: Sequence[EvaluationRun]) -> list[Chart]:
    """Share of correct steps against their scores, for every evaluation that holds its scores."""
    series: list[Series] = []
    for run in evaluations:
        if run.scores is None:
            continue
        scored = read_scores(run.scores)
        table = StepTable.of(scored.solutions)
        scores, is_correct = table.scores[table.is_counted], table.labels[table.is_counted] == 1
        place = calibration_bin(scores)
        n, sums, right = (np.bincount(place, w, BINS) for w in (np.ones(len(place)), scores, is_correct))
        points = [Point(x=float(sums[b] / n[b]), y=float(right[b] / n[b])) for b in range(BINS) if n[b]]
        is_new = scored.model not in [one.name for one in series]
        series.append(Series(name=scored.model if is_new else f"{scored.model} ({run.folder})", points=tuple(points)))
    if not series:
        return []
    return [
        Chart(
            name="calibration",
            title="Calibration of step scores",
            x="mean score of the bin",
            y="share of correct steps",
            series=tuple(series),
            is_unit=True,
        )
    ]

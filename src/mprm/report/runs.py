"""Runs of `mprm train`, `mprm evaluate` and `mprm rerank`: read from their folders, shown as charts and tables."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from mprm.data.charts import Chart, Point, Series
from mprm.data.output import MANIFEST_SUFFIX, Table
from mprm.errors import DataError, InputNotFoundError
from mprm.evaluation.best_of_n import BestOfN, best_of_n_chart
from mprm.evaluation.bootstrap import METRICS, Difference, Estimate
from mprm.evaluation.metrics import BINS, StepTable, calibration_bin
from mprm.evaluation.scores import SCORES, read_scores
from mprm.models.checkpoint import checkpoints
from mprm.report.page import Best

LOSS_POINTS = 100
ALL_DATA = "all"  # the strategy of a run that was given no subset
NOT_COMPARED = frozenset(
    (
        *("out", "seed", "strategy", "rho", "select_seed", "rollouts_xxh3_128", "base_fingerprint"),
        *("benchmark", "benchmark_root", "image_root", "format", "per_device", "dataloader_workers"),
        *("save_total_limit", "save_every", "save_every_min", "eval_every", "report_to", "device"),
    )
)
"""Training options that do not make two runs different: seeds, training data, paths, and what changes no result."""
AUC = "\0AUC"  # key of the AUC among values by source; no source is called so
HEADLINES = {
    "overall": ("overall F1", "macro-F1 by source; overall, their mean weighted by steps"),
    "processbench_f1": ("ProcessBench F1", "by source, and their mean"),
    "prmscore": ("PRMScore", "by kind of error, and of all steps"),
}
"""Name of each headline metric, and what the table's columns are."""
Decoded = TypeVar("Decoded")
Values = Mapping[str | None, float | None]  # a metric by source, and that of all under None


# What is read of the files that runs leave; fields that no chart or table needs are not declared


class CurvePoint(Struct, frozen=True):
    """A line of ``curve.jsonl``."""

    update: int
    overall: float
    macro_f1: dict[str, float] = {}

    @property
    def f1(self) -> dict[str | None, float]:
        return dict([(None, self.overall), *self.macro_f1.items()])


class _Log(Struct):
    step: int = 0
    loss: float | None = None


class _TrainerState(Struct):  # trainer_state.json of transformers
    log_history: list[_Log] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """What a model was trained on."""

    strategy: str = ALL_DATA
    rho: float = 1.0
    is_assumed: bool = False  # whether nothing says that the data was a subset, so that it counts as all

    @property
    def name(self) -> str:
        return "all data" if self.strategy == ALL_DATA else f"{self.strategy} {100 * self.rho:g}%"


UNKNOWN = TrainedOn(strategy="", rho=2.0)  # of a model whose configuration is not known; sorted before all data


class _Input(Struct, frozen=True):
    path: str


class _TrainingData(Struct, frozen=True):  # data/summary.json of a training run, also in the model's configuration
    select: TrainedOn | None = None
    inputs: tuple[_Input, ...] = ()


class _PRMConfig(Struct, frozen=True):
    data: _TrainingData = _TrainingData()


class _ModelInfo(Struct, frozen=True):
    prm_config: _PRMConfig | None = msgspec.field(default=None, name="prm_config.json")
    mprm: _PRMConfig | None = msgspec.field(default=None, name="mprm.json")  # its name in earlier versions


class _ManifestConfig(Struct, frozen=True):
    model_info: _ModelInfo | None = None


class _Manifest(Struct):
    config: _ManifestConfig = _ManifestConfig()


class _OfSource(Struct):
    macro_f1: Estimate
    auc: Estimate
    processbench_f1: Estimate
    prmscore: Estimate


class _Overall(_OfSource):
    overall: Estimate


class _Metrics(Struct):
    all: _Overall
    sources: dict[str, _OfSource]

    def columns(self, metric: str) -> Values:
        """A benchmark's own metric, the AUC, and that metric (of ``overall``, macro-F1) by source."""
        own = "macro_f1" if metric == "overall" else metric
        sources: Values = {source: getattr(row, own).value for source, row in self.sources.items()}
        return {None: getattr(self.all, metric).value, AUC: self.all.auc.value, **sources}


class _Model(Struct):
    name: str
    metrics: _Metrics


class _Differences(Struct):
    all: dict[str, Difference]


class _Comparison(Struct):
    model: str
    baseline: str
    differences: _Differences
    permutation_p: float | None


class _Headline(Struct, frozen=True):
    benchmark: str
    metric: Literal["overall", "processbench_f1", "prmscore"]


class EvaluationMetrics(Struct):
    """``metrics.json`` of an evaluation."""

    models: Annotated[list[_Model], Meta(min_length=1)]
    threshold: str
    headline: _Headline
    comparisons: list[_Comparison]


class RerankingMetrics(Struct):
    """``metrics.json`` of a reranking."""

    model: str
    total: BestOfN

    def chart(self, name: str) -> Chart:
        title = f"Best of N: {self.model}, {self.total.n_questions:,} questions"
        return best_of_n_chart(name, title, self.total.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A folder of `mprm train`."""

    folder: Path
    trained_on: TrainedOn
    seed: int
    settings: dict[str, str]  # every option by which it may differ from other runs
    identity: tuple[str, ...]
    """Of the base model and the rollouts, where these are known: runs of different ones are not seeds of one."""
    curve: tuple[CurvePoint, ...]
    loss: tuple[tuple[int, float], ...]
    """(optimizer step, training loss), the mean of a few steps where there are many."""


class EvaluationRun(NamedTuple):
    """A folder of `mprm evaluate`."""

    folder: Path
    metrics: EvaluationMetrics
    trained_on: TrainedOn | None  # of the one model that was scored, where its configuration is known


class Runs(NamedTuple):
    """The runs in some folders."""

    training: list[TrainingRun]
    evaluations: list[EvaluationRun]
    rerankings: list[RerankingMetrics]


def read_runs(folders: Iterable[str | Path]) -> Runs:
    """Every run in the folders and below them."""
    runs, expected = Runs([], [], []), "expected one of mprm train, evaluate or rerank"
    files: dict[Path, Path] = {}
    for name in folders:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise InputNotFoundError(f"--runs {name}: no such folder; {expected}")
        here = sorted(path for kind in ("train.json", "metrics.json") for path in folder.rglob(kind))
        if not here:
            raise DataError(f"--runs {name}: there is neither train.json nor metrics.json in or below it; {expected}")
        for path in here:
            files.setdefault(path.resolve(), path)  # a folder may be named beside one above it
    for path in files.values():
        content = _read(dict[str, Any], path)
        if path.name == "train.json":
            runs.training.append(_read_training(path.parent, content))
        elif "models" in content:
            info = _read(_Manifest, Path(f"{path}{MANIFEST_SUFFIX}")).config.model_info or _ModelInfo()
            config = info.prm_config or info.mprm
            trained_on = None if config is None else _trained_on(config.data)
            runs.evaluations.append(EvaluationRun(path.parent, _read(EvaluationMetrics, path), trained_on))
        elif "total" in content:
            runs.rerankings.append(_read(RerankingMetrics, path))
        else:
            raise DataError(f"{path}: holds neither models nor totals; expected what mprm evaluate or rerank writes")
    return runs


def _read_training(folder: Path, options: dict[str, Any]) -> TrainingRun:
    if not isinstance(options.get("seed"), int) or not isinstance(options.get("model"), str):
        raise DataError(f"{folder / 'train.json'}: names no model or no seed; expected what mprm train writes")
    options = {name: value for name, value in options.items() if value is not None}
    identity = [str(options.get("base_fingerprint") or options["model"])]
    options["model"] = Path(options["model"]).name
    data = _read(_TrainingData, folder / "data" / "summary.json")
    trained_on = _trained_on(data)
    if data.select is not None or trained_on.is_assumed:
        # what mprm select wrote differs from seed to seed; a corpus does not
        identity.append(str(options.get("rollouts_xxh3_128")))
    lines = folder / "curve.jsonl"
    curve = enumerate(lines.read_bytes().splitlines() if lines.is_file() else [], 1)
    return TrainingRun(
        folder=folder,
        trained_on=trained_on,
        seed=options["seed"],
        settings={name: str(value) for name, value in options.items() if name not in NOT_COMPARED},
        identity=tuple(identity),
        curve=tuple(_decode(CurvePoint, line, f"{lines}:{number}") for number, line in curve),
        loss=_read_loss(folder),
    )


def _read_loss(folder: Path) -> tuple[tuple[int, float], ...]:
    """The loss of a finished run, or up to the last checkpoint of another; at most `LOSS_POINTS`."""
    states = [path / "trainer_state.json" for path in (*checkpoints(folder), folder)]
    path = next((path for path in reversed(states) if path.is_file()), None)
    if path is None:
        return ()
    # transformers writes a gradient norm that overflowed as NaN, which is no JSON
    data = re.sub(rb"\bNaN\b|-?\bInfinity\b", b"null", path.read_bytes())
    points = [(log.step, log.loss) for log in _decode(_TrainerState, data, path).log_history if log.loss is not None]
    size = max(1, -(-len(points) // LOSS_POINTS))
    windows = (points[start : start + size] for start in range(0, len(points), size))
    return tuple((window[-1][0], sum(loss for _, loss in window) / len(window)) for window in windows)


def _trained_on(data: _TrainingData) -> TrainedOn:
    """The subset that training selected, or that `mprm select` had written; all data where neither is known."""
    if data.select is not None:
        return data.select
    if len(data.inputs) == 1:
        match _read(dict[str, Any], Path(data.inputs[0].path + MANIFEST_SUFFIX)):
            case {"command": "select", "config": {"strategy": str(strategy), "rho": float(rho)}}:
                return TrainedOn(strategy=strategy, rho=rho)
    return TrainedOn(is_assumed=True)


def _read(kind: type[Decoded], path: Path) -> Decoded:
    """What the file holds; without a file, what an empty object is."""
    return _decode(kind, path.read_bytes() if path.is_file() else b"{}", path)


def _decode(kind: type[Decoded], data: bytes, where: Path | str) -> Decoded:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{where}: {error}; expected what mprm wrote there. Run that stage again.") from error


class RunsView(NamedTuple):
    """What the page shows of runs."""

    charts: list[Chart]
    tables: list[Table]


def view_runs(runs: Runs) -> RunsView:
    """The charts and tables of all runs, learning curves first."""
    measured = [run for run in runs.training if run.curve]
    shown = [run for run in runs.training if run.curve or run.loss]
    options = dict.fromkeys(name for run in shown for name in run.settings)
    differing = [name for name in options if len({run.settings.get(name) for run in shown}) > 1]
    settings = {run.folder: [f"{name} {run.settings.get(name)}" for name in differing] for run in shown}
    groups = _seed_groups(measured, settings)
    trained = [
        (", ".join([*settings[run.folder], *last.macro_f1]), run.identity[0], run.trained_on, last.overall)
        for run in measured
        for last in run.curve[-1:]
    ]
    evaluated = [
        (", ".join(metrics.sources), run.metrics.threshold, run.trained_on, metrics.all.overall.value)
        for run in runs.evaluations
        if run.trained_on is not None and len(run.metrics.models) == 1
        for metrics in [run.metrics.models[0].metrics]
    ]
    charts = [
        *_curve_charts(measured, groups),
        *_loss_charts(_seed_groups([run for run in shown if run.loss], settings)),
        *_scaling_charts("scaling_curves", "Overall F1 against ρ, at the end of training", trained),
        *_scaling_charts("scaling_evaluations", "Overall F1 against ρ, as evaluated", evaluated),
        *(metrics.chart(f"best_of_n_{number}") for number, metrics in enumerate(runs.rerankings, 1)),
        *_calibration_charts(runs.evaluations),
    ]
    tables = [
        *_training_tables(runs.training, groups),
        *_evaluation_tables(runs.evaluations),
        *(_comparison_table(pair, run.metrics) for run in runs.evaluations for pair in run.metrics.comparisons),
    ]
    return RunsView(charts, tables)


def _seed_groups(measured: Iterable[TrainingRun], settings: dict[Path, list[str]]) -> dict[str, list[TrainingRun]]:
    """Runs that differ by their seed alone, by a name that no other group has."""
    groups: dict[tuple[Any, ...], list[TrainingRun]] = defaultdict(list)
    for run in sorted(measured, key=lambda run: (run.trained_on.rho, run.trained_on.strategy, run.seed)):
        name = ", ".join([run.trained_on.name, *settings[run.folder]])
        groups[name, run.identity, frozenset(s for point in run.curve for s in point.macro_f1)].append(run)
    n_groups = Counter(name for name, *_ in groups)
    named: dict[str, list[TrainingRun]] = {}
    for (name, *_), members in groups.items():
        if n_groups[name] == 1 and len({run.seed for run in members}) == len(members):
            named[name] = members
        else:  # other models, rollouts or benchmarks, or the same seed again
            named |= {f"{name} ({run.folder})": [run] for run in members}
    return named


def _curve_charts(measured: Sequence[TrainingRun], groups: dict[str, list[TrainingRun]]) -> Iterator[Chart]:
    for number, source in enumerate(dict.fromkeys(s for run in measured for point in run.curve for s in point.f1)):
        curves = {
            name: [[(point.update, point.f1.get(source)) for point in run.curve] for run in runs]
            for name, runs in groups.items()
        }
        stem = "curve_overall" if source is None else f"curve_source_{number}"
        title = "Overall F1 during training" if source is None else f"Macro-F1 during training: {source}"
        yield Chart(name=stem, title=title, x="optimizer steps", y="F1", series=tuple(_mean_series(curves)))


def _loss_charts(groups: dict[str, list[TrainingRun]]) -> list[Chart]:
    series = tuple(_mean_series({name: [run.loss for run in runs] for name, runs in groups.items()}))
    chart = Chart(name="loss", title="Training loss", x="optimizer steps", y="loss", series=series, is_percent=False)
    return [chart] if series else []


def _mean_series(curves: Mapping[str, Sequence[Sequence[tuple[int, float | None]]]]) -> Iterator[Series]:
    """A line for each group of seeds."""
    for name, seeds in curves.items():
        values: dict[int, list[float]] = defaultdict(list)
        for x, value in (point for seed in seeds for point in seed):
            if value is not None:
                values[x].append(value)
        # only where every seed was measured: else the mean jumps as runs come and go
        points = tuple(_mean_point(x, values[x]) for x in sorted(values) if len(values[x]) == len(seeds))
        if points:
            yield Series(name=name, points=points)


def _mean_point(x: float, values: Sequence[float]) -> Point:
    """The mean, in a band from the least to the largest of several values."""
    if len(values) == 1:
        return Point(x=x, y=values[0])
    return Point(x=x, y=sum(values) / len(values), low=min(values), high=max(values))


Result = tuple[str, str, TrainedOn, float | None]  # settings and sources, identity or threshold, training data, F1


def _scaling_charts(stem: str, title: str, results: Iterable[Result]) -> Iterator[Chart]:
    """F1 against rho, a line for each strategy; all lines end in the full data."""
    groups: dict[tuple[str, str], dict[str, dict[float, list[float]]]] = {}
    for name, identity, on, value in results:
        if value is not None:
            lines = groups.setdefault((name, identity), {})
            lines.setdefault(on.strategy, {}).setdefault(on.rho, []).append(value)
    # only results of the same settings and sources share a chart, where they have two values of rho
    several = {key: lines for key, lines in groups.items() if len(set().union(*lines.values())) > 1}
    for number, ((name, _), lines) in enumerate(several.items(), 1):
        full = lines.pop(ALL_DATA, {})
        series = []
        for strategy, line in lines.items():
            points = tuple(_mean_point(100 * rho, values) for rho, values in sorted((full | line).items()))
            series.append(Series(name=strategy, points=points))
        name_of_file = stem if number == 1 else f"{stem}_{number}"
        full_title = f"{title}: {name}" if len(several) > 1 else title
        yield Chart(name=name_of_file, title=full_title, x="ρ (%)", y="F1", series=tuple(series))


def _calibration_charts(evaluations: Sequence[EvaluationRun]) -> list[Chart]:
    """Share of correct steps against their mean score, for every evaluation that holds its scores."""
    series: dict[str, Series] = {}
    for folder in [run.folder for run in evaluations if (run.folder / SCORES).is_file()]:
        scored = read_scores(folder / SCORES)
        table = StepTable.of(scored.solutions)
        scores, is_correct = table.scores[table.is_counted], table.labels[table.is_counted] == 1
        bins = calibration_bin(scores)
        n, sums, n_correct = (np.bincount(bins, w, BINS) for w in (np.ones(len(bins)), scores, is_correct))
        points = tuple(Point(x=float(sums[b] / n[b]), y=float(n_correct[b] / n[b])) for b in range(BINS) if n[b])
        name = scored.model if scored.model not in series else f"{scored.model} ({folder})"
        series[name] = Series(name=name, points=points)
    title, x, y = "Calibration of step scores", "mean score of the bin", "share of correct steps"
    chart = Chart(name="calibration", title=title, x=x, y=y, series=tuple(series.values()), is_unit=True)
    return [chart] if series else []


ModelRow = tuple[str, TrainedOn, Values]  # a model's name, what it was trained on, and its F1


def _training_tables(training: Sequence[TrainingRun], groups: dict[str, list[TrainingRun]]) -> list[Table]:
    measured = [run for run in training if run.curve]
    sources = list(dict.fromkeys(source for run in measured for source in run.curve[-1].f1))
    rows: list[ModelRow] = []
    for name, runs in groups.items():
        seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
        measured_by_all = set(sources).intersection(*(run.curve[-1].f1 for run in runs))
        means = {source: sum(run.curve[-1].f1[source] for run in runs) / len(runs) for source in measured_by_all}
        rows.append((name + seeds, runs[0].trained_on, means))
    last = "Overall F1 and macro-F1 by source, at the last point of each learning curve; of several seeds the mean."
    assumed = [run.folder.name for run in measured if run.trained_on.is_assumed]
    notes = [f"{last} The best of each group is marked.", *_assumed_note(assumed)] if measured else []
    if unmeasured := ", ".join(str(run.folder) for run in training if not run.curve):
        notes.append(f"Not here, without a learning curve (mprm train --benchmark writes one): {unmeasured}.")
    return [_model_table("After training", sources, rows, notes, headline="overall")] if training else []


def _assumed_note(names: Sequence[str]) -> list[str]:
    words = "Nothing says that these were trained on a subset, so they count as all data"
    return [f"{words}: {', '.join(names)}."] if names else []


def _evaluation_tables(evaluations: Sequence[EvaluationRun]) -> Iterator[Table]:
    """A table for each benchmark, set of sources and way to choose thresholds: only those can be compared."""
    known = {run.metrics.models[0].name: run.trained_on for run in evaluations if run.trained_on is not None}
    tables: dict[tuple[_Headline, str, tuple[str | None, ...]], dict[tuple[Any, ...], ModelRow]] = defaultdict(dict)
    for run, model in ((evaluation, model) for evaluation in evaluations for model in evaluation.metrics.models):
        values = model.metrics.columns(run.metrics.headline.metric)
        rows = tables[run.metrics.headline, run.metrics.threshold, tuple(values)]
        on = (run.trained_on if len(run.metrics.models) == 1 else known.get(model.name)) or UNKNOWN
        is_taken = any(name == model.name for name, *_ in rows.values())
        name = f"{model.name} ({run.folder})" if is_taken else model.name
        rows.setdefault((model.name, *values.values()), (name, on, values))  # one measured before is compared here
    for (headline, threshold, columns), by_key in tables.items():
        metric, meaning = HEADLINES[headline.metric]
        title = f"Evaluation on {headline.benchmark}: {metric}" if headline.benchmark else f"Evaluation: {metric}"
        note = f"In percent: {metric}, AUC, then {meaning}. {threshold}. The best of each group is marked."
        notes = [note, *_assumed_note([name for name, on, _ in by_key.values() if on.is_assumed])]
        yield _model_table(title, columns, by_key.values(), notes, headline=metric)


def _model_table(
    title: str, sources: Iterable[str | None], rows: Iterable[ModelRow], notes: Sequence[str], *, headline: str
) -> Table:
    """F1 in percent, grouped by how much the models were trained on, as in the paper."""
    headings = {UNKNOWN.strategy: "", ALL_DATA: "Full data"}
    cells: list[tuple[str, ...]] = []
    by_rho = sorted(rows, key=lambda row: (-row[1].rho, row[1].strategy != ALL_DATA))
    for head, group in groupby(by_rho, lambda row: headings.get(row[1].strategy, f"{100 * row[1].rho:g}% subsets")):
        cells += [(head,)] if head else []
        cells += best_marked([(name, [f1.get(source) for source in sources]) for name, _, f1 in group])
    names = {None: headline, AUC: "AUC"}
    heads = ["model", *(names.get(source) or str(source) for source in sources)]
    return Table(title=title, heads=heads, rows=cells, notes=notes)


def best_marked(rows: Sequence[tuple[str, Sequence[float | None]]]) -> list[tuple[str, ...]]:
    """Rows of fractions in percent; where there are several rows, the largest of each column is a `Best`."""

    def column(values: Sequence[float | None]) -> list[str]:
        cells = ["–" if value is None else f"{100 * value:.2f}" for value in values]
        known = [value for value in values if value is not None]
        best = f"{100 * max(known):.2f}" if known and len(values) > 1 else None  # equal when they are shown alike
        return [Best(cell) if cell == best else cell for cell in cells]

    names, values = zip(*rows, strict=True)
    return list(zip(names, *map(column, zip(*values, strict=True)), strict=True))


def _comparison_table(pair: _Comparison, metrics: EvaluationMetrics) -> Table:
    rows = []
    for metric in dict.fromkeys([metrics.headline.metric, "auc", *METRICS]):
        difference = pair.differences.all.get(metric)
        if difference is not None and difference.estimate.value is not None:
            value, low, high = difference.estimate.value, difference.estimate.low, difference.estimate.high
            interval = "–" if low is None or high is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
            p = "–" if difference.p_value is None else f"{difference.p_value:.4f}"
            rows.append((METRICS[metric], f"{100 * value:+.2f}", interval, p))
    notes = [f"{metrics.threshold}. Differences in points, on the same problems."]
    if pair.permutation_p is not None:
        notes.append(f"Overall value, by swapping the models problem by problem: p = {pair.permutation_p:.4f}.")
    heads = ("metric", "difference", "95% interval", "p")
    on = f" on {metrics.headline.benchmark}" if metrics.headline.benchmark else ""
    return Table(title=f"{pair.model} less {pair.baseline}{on}", heads=heads, rows=rows, notes=notes)

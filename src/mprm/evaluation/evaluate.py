"""``mprm evaluate``: how well a process reward model separates correct from incorrect steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mprm import __version__
from mprm.config import Tau, TextOnly, evaluation, inputs, takes
from mprm.data.benchmarks import Benchmark, read_benchmark
from mprm.data.images import check_images_exist, check_images_readable
from mprm.data.output import Table
from mprm.data.records import Paths
from mprm.data.types import StepScorer
from mprm.errors import ConfigError
from mprm.evaluation.bootstrap import METRICS, Comparison, Estimate, Key, ModelResult, compare, model_result
from mprm.evaluation.metrics import HEADLINES, VISUALPROCESSBENCH, Threshold, folds_of, step_counts
from mprm.evaluation.scores import (
    SCORES,
    ScoredSolutions,
    ScoringConfig,
    check_same_steps,
    read_scores,
    scored_solutions,
    without_scores,
)
from mprm.progress import Progress, silent

SHORT_NAMES = {
    "overall": "overall F1",
    "macro_f1": "macro-F1",
    "f1_correct": "F1 correct",
    "f1_error": "F1 error",
    "auc": "AUC",
    "ap_error": "AP error",
    "first_error_accuracy": "first-error accuracy",
    "processbench_f1": "ProcessBench F1",
    "prmscore": "PRMScore",
}
"""Of metrics in a table's head; of one source all but the first."""
QUESTIONS_AT_ONCE = 256  # questions scored between two saves; a benchmark has few solutions of each
MAX_SOURCES, MAX_WARNINGS = 12, 4  # what the summary lists at most


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ScoringConfig):
    """Evaluate process reward models on benchmarks of solutions with labelled steps."""

    scores: Annotated[
        tuple[str, ...], inputs("Saved step scores; each model is compared with the first.", "FILE")
    ] = ()
    text_only: TextOnly = False
    tau: Tau = 0.0
    threshold: Annotated[
        Threshold,
        evaluation(
            "Lowest score of a correct step: chosen on held-out problems, on the reported data, or fixed.",
            "held-out|test|NUMBER",
        ),
    ] = "held-out"
    folds: Annotated[int, evaluation("Folds of problems, for held-out thresholds.", at_least=2)] = 5
    draws: Annotated[int, evaluation("Bootstrap draws; 0 = no intervals.", at_least=0)] = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold not in ("held-out", "test"):
            try:
                threshold = float(self.threshold)
            except (TypeError, ValueError):
                threshold = math.nan
            if not 0 <= threshold <= 1:
                raise ConfigError(f"threshold {self.threshold!r}: expected held-out, test or a number from 0 to 1")
            object.__setattr__(self, "threshold", threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One or more models evaluated on one benchmark."""

    config: EvaluateConfig
    files: tuple[dict[str, Any], ...]  # the benchmark's, where it was read
    notes: tuple[str, ...]
    models: tuple[ModelResult, ...]
    comparisons: tuple[Comparison, ...]  # every other model against the first

    @property
    def benchmark(self) -> str:
        """Its name; empty where it is not known or there are several."""
        table = self.models[0].table
        is_other = table.benchmark == "visualprocessbench" and not VISUALPROCESSBENCH.issuperset(table.sources)
        return "" if is_other else HEADLINES.get(table.benchmark, ("", ""))[0]

    @property
    def headline(self) -> str:
        """The metric that the benchmark's authors report; else the paper's."""
        return HEADLINES.get(self.models[0].table.benchmark, ("", "overall"))[1]

    @property
    def metrics(self) -> list[str]:
        """All metrics, the headline and AUC first, without those that no model has."""
        ordered = dict.fromkeys([self.headline, "auc", *METRICS])
        is_prmbench = any(model.value("prmscore") is not None for model in self.models)
        return [metric for metric in ordered if metric != "prmscore" or is_prmbench]

    @property
    def threshold(self) -> str:
        """How thresholds were chosen, in words that go with every number."""
        threshold, folds = self.config.threshold, self.config.folds
        if threshold == "held-out":
            return f"Threshold held out: chosen on the other {folds - 1} of {folds} folds of problems"
        if threshold == "test":
            return "Threshold CHOSEN ON THE REPORTED DATA ITSELF: optimistic, not comparable with held-out numbers"
        return f"Threshold fixed at {threshold}"

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics.json``; undefined values are None."""
        return {
            "mprm": __version__,
            "config": self.config.recorded(),
            "benchmark": list(self.files),
            "headline": {"benchmark": self.benchmark, "metric": self.headline},
            "notes": list(self.notes),
            "threshold": self.threshold,
            "models": [
                {
                    "name": model.name,
                    "counts": asdict(step_counts(model.table)),
                    "source_counts": {name: asdict(step_counts(model.table, name)) for name in model.table.sources},
                    "scheme": model.thresholds.scheme,
                    "step_thresholds": list(model.thresholds.steps),
                    "solution_thresholds": list(model.thresholds.solutions),
                    "metrics": _nested(model.metrics),
                    "warnings": list(_warnings(model)),
                }
                for model in self.models
            ],
            "comparisons": [{**asdict(pair), "differences": _nested(pair.differences)} for pair in self.comparisons],
        }

    def summary(self) -> list[Table]:
        """What decides, on one screen of 80 columns: the headline metric and AUC, differences, and sources."""
        shown = {metric: SHORT_NAMES[metric] for metric in (self.headline, "auc")}
        table = self.models[0].table
        counts = step_counts(table)
        size = f"{counts.n_solutions:,} solutions of {counts.n_problems:,} problems"
        rows = [[model.name, *(_with_interval(model.metrics[None, m]) for m in shown)] for model in self.models]
        heads = ["model", *shown.values()]
        tables = [Table(title=f"{self.benchmark or 'Evaluation'}: {size}", heads=heads, rows=rows)]
        for pair in self.comparisons:
            lines = [(name, pair.differences[None, metric]) for metric, name in shown.items()]
            rows = [[name, _with_interval(d.estimate, "+"), _number(d.p_value)] for name, d in lines]
            heads = ["metric", "difference", "p"]
            tables.append(Table(title=f"{pair.model} less {pair.baseline}", heads=heads, rows=rows))
        if 1 < len(table.sources) <= MAX_SOURCES:
            metric = "macro_f1" if self.headline == "overall" else self.headline
            rows = [[name, *(_number(m.value(metric, name)) for m in self.models)] for name in table.sources]
            heads = ["source", *(model.name for model in self.models)]
            tables.append(Table(title=f"{SHORT_NAMES[metric]} by source", heads=heads, rows=rows))
        # the mark * is in the tables that list every source
        warnings = [f"{warning.replace('*:', ':', 1)}." for model in self.models for warning in _warnings(model)]
        warnings = list(dict.fromkeys(warnings))
        if len(warnings) > MAX_WARNINGS:
            warnings[MAX_WARNINGS - 1 :] = [f"{len(warnings) - MAX_WARNINGS + 1} more warnings: --verbose."]
        tables[-1] = replace(tables[-1], notes=[*self._notes(), *warnings])
        return tables

    def _notes(self) -> list[str]:
        draws = self.config.draws
        intervals = [f"95% intervals: {draws:,} bootstrap draws of problems, thresholds as chosen"] if draws else []
        return [f"{note}." for note in (self.threshold, *intervals, *self.notes)]

    def tables(self) -> list[Table]:
        """All metrics, those of each source, and all differences."""
        metrics = self.metrics
        heads, rows = ["metric"], [[METRICS[metric]] for metric in metrics]
        for model in self.models:
            heads += [model.name, "95% interval"]
            for row, metric in zip(rows, metrics, strict=True):
                row += [_number(model.value(metric)), _interval(model.metrics[None, metric])]
        title = f"Metrics on {self.benchmark}" if self.benchmark else "Metrics"
        columns = [metric for metric in metrics if metric in SHORT_NAMES and metric != "overall"]
        return [
            Table(title=title, heads=heads, rows=rows, notes=self._notes()),
            *(_source_table(model, self.threshold, columns) for model in self.models),
            *(_comparison_table(pair, self.threshold, metrics) for pair in self.comparisons),
        ]


def _nested(values: Mapping[Key, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {"all": {}, "sources": {}}
    for (source, metric), value in values.items():
        metrics = nested["all"] if source is None else nested["sources"].setdefault(source, {})
        metrics[metric] = asdict(value)
    return nested


@takes(EvaluateConfig)
def evaluate(
    benchmarks: Benchmark | Paths | None = None,
    model: str | Path | StepScorer | None = None,
    *,
    config: EvaluateConfig | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Evaluation:
    """Metrics of models on a benchmark of solutions with labelled steps.

    ``benchmarks``: files, globs or folders, or what `read_benchmark` returned; not needed for saved scores.
    ``model``: a folder, a name on the hub, or anything with ``score_many``; it comes after those of saved scores.
    With ``out``, scores are saved as they come, and a run that was stopped continues; metrics.json and metrics.md
    come at the end.
    """
    config = EvaluateConfig.of(config, options if model is None else {**options, "model": model})
    if not config.has_model and not config.scores:
        raise ConfigError("there is nothing to evaluate: name a model with --model, or saved scores with --scores")
    if config.has_model and benchmarks is None:
        raise ConfigError("a model needs a benchmark to score: name its files")
    if benchmarks is None or isinstance(benchmarks, Benchmark):
        benchmark = benchmarks
    else:
        from mprm.data.hub import dataset_files

        paths = dataset_files(benchmarks, config.files)
        benchmark = read_benchmark(paths, format=config.format, tau=config.tau, text_only=config.text_only)
    files = benchmark.files if benchmark else ()
    if config.out is not None:
        config.check_outputs([], [*config.scores, *(file["path"] for file in files)])
    with ExitStack() as stack:
        scored = [read_scores(path) for path in config.scores]
        if scored:
            expected = scored[0] if benchmark is None else without_scores(benchmark)
            for saved in scored:
                check_same_steps(expected, saved)
        if benchmark is not None and config.has_model:
            scored.append(stack.enter_context(_scored(benchmark, config, progress)))
        sampling, models = {"draws": config.draws, "seed": config.seed}, []
        for index, saved in enumerate(scored):
            n_before = [other.model for other in scored[:index]].count(saved.model)
            name = f"{saved.model} ({n_before + 1})" if n_before else saved.model
            models.append(model_result(saved.solutions, config.threshold, folds=config.folds, name=name, **sampling))
        result = Evaluation(
            config=config,
            files=files,
            # notes on scores files say nothing new beside the benchmark that they are the scores of
            notes=benchmark.notes if benchmark else tuple(note for saved in scored for note in saved.notes),
            models=tuple(models),
            comparisons=tuple(compare(model, models[0], **sampling) for model in models[1:]),
        )
        if config.out is not None:
            numbers = result.to_json()
            config.write_results(
                numbers,
                "# Evaluation\n\n" + "\n".join(table.markdown() for table in result.tables()),
                command="evaluate",
                config={**numbers["config"], "models": [m.name for m in models], **_model_info(config)},
                inputs=numbers["benchmark"],
                sources=numbers["models"][0]["source_counts"],
            )
    return result


def _scored(
    benchmark: Benchmark, config: EvaluateConfig, progress: Progress
) -> AbstractContextManager[ScoredSolutions]:
    """Score the benchmark and save the scores; whatever can be wrong is detected before."""
    check_images_exist(benchmark, config.image_root)
    if config.opens_images:
        check_images_readable(benchmark, config.image_root)
    if config.threshold == "held-out":
        folds_of(tuple(dict.fromkeys(s.problem for s in benchmark.solutions)), folds=config.folds, seed=config.seed)
    return scored_solutions(
        benchmark.solutions,
        config.load_model(),
        out=None if config.out is None else config.path(SCORES),
        force=config.force,
        at_once=QUESTIONS_AT_ONCE,
        config={**config.recorded(), **_model_info(config)},
        inputs=list(benchmark.files),
        progress=progress,
    )


def _model_info(config: EvaluateConfig) -> dict[str, Any]:
    """The folder of a model and the configuration that training left in it."""
    if not isinstance(config.model, str):
        return {"model_info": None}
    from mprm.data.hub import local_checkpoint, pinned_name
    from mprm.models.checkpoint import prm_config_path

    path = prm_config_path(Path(local_checkpoint(config.model)).expanduser())
    content = None if path is None else msgspec.json.decode(path.read_bytes())  # the model was loaded with it
    return {"model_info": {"path": pinned_name(config.model), "prm_config.json": content}}


def _source_table(model: ModelResult, threshold: str, columns: Sequence[str]) -> Table:
    rows = []
    for source in (*model.table.sources, None):
        counts = step_counts(model.table, source)
        is_single_class = source is not None and not (counts.n_correct and counts.n_error)
        sizes = [f"{n:,}" for n in (counts.n_solutions, counts.n_counted, counts.n_error, counts.n_unscored)]
        # the paper's value stands in the row of all, under the macro-F1 that it is a mean of
        names = ["overall" if (source, metric) == (None, "macro_f1") else metric for metric in columns]
        values = [_number(model.value(metric, source)) for metric in names]
        rows.append([("all" if source is None else source) + "*" * is_single_class, *sizes, *values])
    chosen = (model.thresholds.steps, model.thresholds.solutions)
    steps, solutions = (", ".join(f"{value:.4g}" for value in values) for values in chosen)
    heads = ["source", "solutions", "steps counted", "error steps", "steps unscored"]
    return Table(
        title=f"{model.name} by source",
        heads=[*heads, *(SHORT_NAMES[metric] for metric in columns)],
        rows=rows,
        notes=[
            f"{threshold}; for steps {steps}; for first errors {solutions}.",
            "In the row of all, macro-F1 is the mean over sources weighted by steps, ProcessBench F1 the plain mean.",
            *(f"{warning}." for warning in _warnings(model)),
        ],
        has_total=True,
    )


def _warnings(model: ModelResult) -> Iterator[str]:
    total = step_counts(model.table)
    if n := total.n_unscored:
        reason = "cut off by truncation or not a number (nan)"
        yield f"{n:,} labelled steps have no score, {reason}, and count as no prediction at all"
    if n := total.n_unscored_solutions:
        yield f"{n:,} solutions with a step without score are left out of first-error metrics"
    for source in model.table.sources:
        counts = step_counts(model.table, source)
        if not counts.n_counted:
            yield f"{source}*: no step counts; it has no weight in the overall value"
        elif not (counts.n_correct and counts.n_error):
            kind = "correct" if counts.n_correct else "incorrect"
            effect = "the F1 of the other class counts as 0, and AUC and average precision are undefined"
            yield f"{source}*: every step is labelled {kind}; {effect}"


def _comparison_table(pair: Comparison, threshold: str, metrics: Sequence[str]) -> Table:
    rows = []
    for metric in metrics:
        difference = pair.differences[None, metric]
        value = _number(difference.estimate.value, "+.4f")
        rows.append([METRICS[metric], value, _interval(difference.estimate), _number(difference.p_value)])
    notes = [f"{threshold}."]
    if pair.permutation_p is not None:
        test = "Overall value, test by swapping the models' predictions problem by problem"
        n_swaps = f"{pair.n_permutations:,} {'all' if pair.is_exact else 'random'} permutations"
        notes.append(f"{test}: p = {pair.permutation_p:.4f} ({n_swaps}).")
    if pair.n_left_out:
        notes.append(f"{pair.n_left_out:,} labelled steps that only one of them scored are left out.")
    heads = ["metric", "difference", "95% interval", "p"]
    return Table(title=f"{pair.model} less {pair.baseline}", heads=heads, rows=rows, notes=notes)


def _number(value: float | None, form: str = ".4f") -> str:
    return "–" if value is None else format(value, form)


def _with_interval(estimate: Estimate, sign: str = "") -> str:
    value, to = _number(estimate.value, f"{sign}.4f"), " to " if sign else "–"
    return value if estimate.low is None else f"{value} ({estimate.low:{sign}.3f}{to}{estimate.high:{sign}.3f})"


def _interval(estimate: Estimate) -> str:
    return "–" if estimate.low is None else f"{estimate.low:.4f} to {estimate.high:.4f}"

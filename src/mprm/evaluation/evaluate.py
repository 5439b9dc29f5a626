"""The files that an evaluation writes, and whether they can be written.

``mprm evaluate``: how well a process reward model tells correct steps from incorrect ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mprm.data.benchmarks import Benchmark, check_images_exist, read_benchmark
from mprm.data.corpus import MANIFEST_SUFFIX, Paths, hash_file, write_manifest
from mprm.data.output import atomic_write, check_not_inputs, check_overwrite
from mprm.data.records import corpus_files, is_url
from mprm.data.types import StepScorer
from mprm.errors import ConfigError
from mprm.evaluation.bootstrap import measured
from mprm.evaluation.compare import ModelResult, check_same_steps, compare
from mprm.evaluation.step_table import (
    ScoredBenchmark,
    ScoredSolution,
    read_scores,
    score_benchmark,
    step_table,
    write_scores,
)
from mprm.evaluation.tables import Evaluation, ModelEvaluation, StepCounts, evaluation_tables, step_counts
from mprm.evaluation.thresholds import EvaluateConfig, choose_thresholds, folds_of

OUTPUTS = ("scores.jsonl", "metrics.json", "metrics.md")
"""The first is only written when a model is scored."""


def output_path(out: str | Path, name: str) -> str:
    """A file of the output folder, which may be a URL."""
    return f"{str(out).rstrip('/')}/{name}"


def check_outputs(out: str | Path, *, inputs: Sequence[str | Path], has_scorer: bool, force: bool) -> None:
    """Stop when an output would replace an input, or another file without ``force``, or cannot be written."""
    outputs = [output_path(out, name) for name in (OUTPUTS if has_scorer else OUTPUTS[1:])]
    check_not_inputs(inputs, [*outputs, *(output + MANIFEST_SUFFIX for output in outputs)])
    if not is_url(str(out)):
        _check_no_folder(Path(out))
    for output in outputs:
        check_overwrite(output, force=force)


def _check_no_folder(out: Path) -> None:
    """Stop when the folder is a file, or when no file can be made in it or where it would be made."""
    try:
        folder = out.expanduser()
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise ConfigError(f"--out {out}: {folder} is a file; expected a folder")
        tempfile.TemporaryFile(dir=folder).close()  # tried, as permissions do not tell all
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error}); choose another folder") from error


def evaluate(
    benchmark: Benchmark | Paths | None = None,
    *,
    scorer: StepScorer | None = None,
    scores: str | Path | Sequence[str | Path] = (),
    config: EvaluateConfig | None = None,
    out: str | Path | None = None,
    force: bool = False,
    model_info: Mapping[str, Any] | None = None,
    on_scored: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure models on a benchmark of solutions with judged steps.

    Parameters
    ----------
    benchmark
        Files, globs or folders of a benchmark, or what `read_benchmark` made of them; may be left out
        when only saved scores are measured.
    scorer
        The model; anything with ``score_many``. Its name is its attribute ``name``, or else its class.
    scores
        Scores files of earlier runs. Of several models every other is compared with the first, the
        model that is scored now comes last.
    out
        Folder for scores.jsonl (as soon as the model is done), metrics.json and metrics.md.
    model_info
        What is known of the model, for the manifest.
    on_scored
        Called with the number of chains scored since the last call.
    """
    config = config or EvaluateConfig()
    saved = [scores] if isinstance(scores, str | Path) else list(scores)
    check_arguments(benchmark, has_scorer=scorer is not None, scores=saved, out=out, force=force)
    read = _read(benchmark, config)
    every = [read_scores(path) for path in saved]
    for scored in every:
        check_same_steps(every[0] if read is None else _labels_of(read), scored)
    if scorer is not None:
        assert read is not None
        every.append(_score(read, scorer, config, out, model_info, on_scored))
    evaluation = _evaluation(every, read, config)
    if out is not None:
        _write(evaluation, str(out), model_info)
    return evaluation


def check_arguments(
    benchmark: Benchmark | Paths | None,
    *,
    has_scorer: bool,
    scores: Sequence[str | Path],
    out: str | Path | None,
    force: bool,
) -> None:
    """Stop before anything is read when there is nothing to do, or when the output cannot be written."""
    if not has_scorer and not scores:
        raise ConfigError("there is nothing to measure: name a model with --model, or saved scores with --scores")
    if has_scorer and benchmark is None:
        raise ConfigError("a model needs a benchmark to score: name its files")
    if out is not None:
        check_outputs(out, inputs=[*scores, *_paths(benchmark)], has_scorer=has_scorer, force=force)


def _paths(benchmark: Benchmark | Paths | None) -> list[str]:
    """The files of the benchmark."""
    if benchmark is None:
        return []
    return [file.path for file in (benchmark.files if isinstance(benchmark, Benchmark) else corpus_files(benchmark))]


def _read(benchmark: Benchmark | Paths | None, config: EvaluateConfig) -> Benchmark | None:
    if benchmark is None or isinstance(benchmark, Benchmark):
        return benchmark
    return read_benchmark(benchmark, format=config.benchmark_format, tau=config.tau, text_only=config.text_only)


def _labels_of(benchmark: Benchmark) -> ScoredBenchmark:
    """The benchmark as if scored, to hold saved scores against."""
    return ScoredBenchmark(
        name="the benchmark",
        solutions=tuple(
            ScoredSolution(
                id=s.id, source=s.source, problem=s.problem, labels=s.labels, first_error=s.first_error, scores=()
            )
            for s in benchmark.solutions
        ),
    )


def _score(
    benchmark: Benchmark,
    scorer: StepScorer,
    config: EvaluateConfig,
    out: str | Path | None,
    model_info: Mapping[str, Any] | None,
    on_scored: Callable[[int], None] | None,
) -> ScoredBenchmark:
    """Score the benchmark and save the scores; whatever can be wrong is found before."""
    check_images_exist(benchmark, config.image_root)
    if config.threshold == "held-out":
        folds_of(tuple(dict.fromkeys(s.problem for s in benchmark.solutions)), folds=config.folds, seed=config.seed)
    name = str(getattr(scorer, "name", type(scorer).__name__))
    scored = score_benchmark(benchmark, scorer, name=name, on_scored=on_scored)
    if out is not None:
        write_scores(
            output_path(out, "scores.jsonl"),
            scored,
            config={"model": name, "model_info": model_info, **asdict(config)},
            inputs=[asdict(file) for file in benchmark.files],
        )
    return scored


def _evaluation(every: list[ScoredBenchmark], benchmark: Benchmark | None, config: EvaluateConfig) -> Evaluation:
    names = _distinct([scored.name for scored in every])
    models = [_contender(name, scored, config) for name, scored in zip(names, every, strict=True)]
    return Evaluation(
        config=config,
        files=benchmark.files if benchmark else (),
        # those of scores files tell nothing new beside the benchmark that they are the scores of
        notes=benchmark.notes if benchmark else tuple(note for scored in every for note in scored.notes),
        models=tuple(_model(model) for model in models),
        comparisons=tuple(compare(model, models[0], draws=config.draws, seed=config.seed) for model in models[1:]),
    )


def _contender(name: str, scored: ScoredBenchmark, config: EvaluateConfig) -> ModelResult:
    table = step_table(scored.solutions)
    thresholds = choose_thresholds(table, config.threshold, folds=config.folds, seed=config.seed)
    return ModelResult(
        name=name,
        table=table,
        thresholds=thresholds,
        measured=measured(table, thresholds, draws=config.draws, seed=config.seed),
    )


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number where one was there before."""
    return [
        name if name not in names[:place] else f"{name} ({names[:place].count(name) + 1})"
        for place, name in enumerate(names)
    ]


def _model(model: ModelResult) -> ModelEvaluation:
    table, thresholds = model.table, model.thresholds
    by_source = {source: step_counts(table, table.source == number) for number, source in enumerate(table.sources)}
    whole = step_counts(table, np.ones(len(table.source), np.bool_))
    return ModelEvaluation(
        name=model.name,
        counts=whole,
        source_counts=by_source,
        scheme=thresholds.scheme,
        step_thresholds=thresholds.steps,
        solution_thresholds=thresholds.solutions,
        metrics=model.measured.estimates(),
        warnings=tuple(_warnings(whole, by_source)),
    )


def _warnings(whole: StepCounts, by_source: dict[str, StepCounts]) -> list[str]:
    found = []
    for source, counts in by_source.items():
        if not counts.n_counted:
            found.append(f"{source}*: no step counts; it has no weight in the overall value")
        elif not (counts.n_correct and counts.n_error):
            kind = "correct" if counts.n_correct else "incorrect"
            found.append(
                f"{source}*: every step is labelled {kind}; the F1 of the other class counts as 0,"
                " and AUC and average precision are undefined"
            )
    if whole.n_unscored:
        found.append(
            f"{whole.n_unscored:,} labelled steps have no score, cut off by truncation or not a number (nan),"
            " and count as no prediction at all"
        )
    if whole.n_unscored_solutions:
        found.append(
            f"{whole.n_unscored_solutions:,} solutions with a step without score are left out of first-error metrics"
        )
    return found


def _write(evaluation: Evaluation, out: str, model_info: Mapping[str, Any] | None) -> None:
    numbers = evaluation.to_json()
    path = output_path(out, "metrics.json")
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n")
        write_manifest(
            path,
            command="evaluate",
            config={"models": [m.name for m in evaluation.models], "model_info": model_info, **numbers["config"]},
            inputs=numbers["benchmark"],
            sources={source: asdict(c) for source, c in evaluation.models[0].source_counts.items()},
            output={"path": path, "n_bytes": temporary.stat().st_size, "xxh3_128": hash_file(str(temporary))},
        )
    with atomic_write(output_path(out, "metrics.md")) as temporary:
        text = "\n".join(table.markdown() for table in evaluation_tables(evaluation))
        temporary.write_text(f"# Evaluation\n\n{text}", encoding="utf-8")

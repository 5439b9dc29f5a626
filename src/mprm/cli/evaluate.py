"""``mprm evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import counting
from mprm.config import Config, Force, Json, Option, Tau, TextOnly
from mprm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark
    from mprm.evaluation.tables import Evaluation
    from mprm.evaluation.thresholds import EvaluateConfig, ThresholdChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCommand(Config):
    """Measure how well a process reward model tells correct steps from incorrect ones."""

    benchmarks: Annotated[
        tuple[str, ...],
        Option(
            "Files, globs, folders or URLs of VisualProcessBench, ProcessBench, PRMBench, VLRMBench or rollouts;"
            " not needed for saved scores.",
            "BENCHMARK",
            is_positional=True,
        ),
    ] = ()
    model: Annotated[str | None, Option("Checkpoint to measure.", "DIR")] = None
    scores: Annotated[
        tuple[str, ...],
        Option("Saved scores to measure; with several models all are compared with the first.", "FILE"),
    ] = ()
    out: Annotated[str | None, Option("Folder for scores.jsonl, metrics.json and metrics.md.", "DIR")] = None
    threshold: Annotated[
        str,
        Option("Where steps are cut: chosen on held-out problems, on the test data itself, or fixed.",
               "held-out|test|NUMBER"),
    ] = "held-out"  # fmt: skip
    folds: Annotated[int, Option("Folds of problems for held-out thresholds.", "N")] = 5
    seed: Annotated[int, Option("Seed of folds, draws and permutations.", "N")] = 0
    draws: Annotated[int, Option("Bootstrap draws of problems; 0 for no intervals.", "N")] = 1000
    tau: Tau = 0.0
    image_root: Annotated[str | None, Option("Folder that holds the benchmark's images.", "DIR")] = None
    batch_tokens: Annotated[int | None, Option("Tokens in a batch; less needs less memory.", "N")] = None
    device: Annotated[str, Option("Where the model runs, such as cpu or cuda:1.", "NAME")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Option("Number format of the model's weights.")
    ] = "auto"
    benchmark_format: Annotated[
        str | None, Option("Format of the benchmark, where the first record must not decide.", "NAME")
    ] = None
    text_only: TextOnly = False
    json: Json = False
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.evaluate`, print."""
    options = parsed(
        EvaluateCommand,
        arguments,
        command="evaluate",
        example="mprm evaluate bench/test.jsonl --model runs/bis10 --image-root bench --out eval/bis10",
    )
    from mprm.evaluation.evaluate import check_arguments, evaluate

    config = _config(options)
    check_arguments(
        options.benchmarks or None,
        has_scorer=options.model is not None,
        scores=options.scores,
        out=options.out,
        force=options.force,
    )
    benchmark = _benchmark(options, config)
    scorer = _scorer(options, config.image_root) if options.model is not None else None
    with counting("scoring", len(benchmark.chains) if benchmark else None) as on_scored:
        evaluation = evaluate(
            benchmark,
            scorer=scorer,
            scores=options.scores,
            config=config,
            out=options.out,
            force=options.force,
            model_info=_model_info(options.model),
            on_scored=on_scored,
        )
    if options.json:
        print(as_json(evaluation.to_json()))
    else:
        _print(evaluation, options.out)
    return 0


def _config(options: EvaluateCommand) -> EvaluateConfig:
    from mprm.evaluation.thresholds import EvaluateConfig

    return EvaluateConfig(
        threshold=_threshold(options.threshold),
        folds=options.folds,
        seed=options.seed,
        draws=options.draws,
        tau=options.tau,
        image_root=None if options.image_root is None else str(Path(options.image_root).expanduser()),
        text_only=options.text_only,
        benchmark_format=options.benchmark_format,
    )


def _threshold(text: str) -> ThresholdChoice:
    if text == "held-out":
        return "held-out"
    if text == "test":
        return "test"
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"--threshold {text}: expected held-out, test or a number from 0 to 1") from error


def _benchmark(options: EvaluateCommand, config: EvaluateConfig) -> Benchmark | None:
    """The benchmark, read and its images looked at before a model is loaded."""
    if not options.benchmarks:
        return None
    from mprm.data.benchmarks import check_images_exist, check_images_readable, read_benchmark

    benchmark = read_benchmark(
        options.benchmarks, format=config.benchmark_format, tau=config.tau, text_only=config.text_only
    )
    if options.model is not None:
        check_images_exist(benchmark, config.image_root)
        check_images_readable(benchmark, config.image_root)
    return benchmark


def _scorer(options: EvaluateCommand, image_root: str | None) -> Any:
    from mprm.models.prm import PRM

    assert options.model is not None
    return PRM.from_pretrained(
        options.model,
        device=options.device,
        dtype=options.dtype,
        image_root=image_root,
        tokens_per_batch=options.batch_tokens,
    )


def _model_info(model: str | None) -> dict[str, Any] | None:
    """The model's folder, and the config that training left in it."""
    if model is None:
        return None
    import msgspec

    from mprm.models.checkpoint import prm_config_path

    path = prm_config_path(model)
    try:
        return {"path": model, "mprm.json": None if path is None else msgspec.json.decode(path.read_bytes())}
    except (ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{path}: not JSON: {error}; expected what mprm train writes") from error


def _print(evaluation: Evaluation, out: str | None) -> None:
    from mprm.cli.tables import show_split
    from mprm.evaluation.tables import evaluation_tables

    for table in evaluation_tables(evaluation):
        show_split(table.title, table.heads, table.rows, total_last=table.heads[0] == "source")
        print(*table.below, sep="\n", end="\n\n")
    if out is not None:
        print(f"Scores and metrics are in {out}.")

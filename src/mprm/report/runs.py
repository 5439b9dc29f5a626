"""Reading what `mprm train`, `mprm evaluate` and `mprm rerank` leave in their folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mprm.data.corpus import MANIFEST_SUFFIX
from mprm.errors import DataError, InputNotFoundError
from mprm.selection.strategies import DEFAULT_RHO

FULL = "all"
"""The strategy of a run that was given no subset."""
NO_DIFFERENCE = {
    *(
        "out",
        "seed",
        "select",
        "strategy",
        "rho",
        "select_seed",
        "rollouts_xxh3_128",
        "benchmark",
        "benchmark_root",
        "image_root",
    ),
    *(
        "per_device",
        "workers",
        "dataloader_workers",
        "keep",
        "save_total_limit",
        "save_every",
        "eval_every",
        "report_to",
        "device",
        "format",
        "base_fingerprint",
    ),
}
"""Options of a training run by which it is not told from others: seeds, what it was trained on, where things lie."""
Decoded = TypeVar("Decoded")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON of the kind: not all of it is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """What a model was trained on."""

    strategy: str
    rho: float

    @property
    def name(self) -> str:
        """Strategy and share."""
        return "all data" if self.strategy == FULL else f"{self.strategy} {100 * self.rho:g}%"


class CurvePoint(msgspec.Struct, frozen=True):
    """A line of ``curve.jsonl``."""

    update: int
    overall: float
    auc: float | None = None
    macro_f1: dict[str, float] = {}


class _Choice(msgspec.Struct):
    strategy: str
    rho: float | None = None


class _Input(msgspec.Struct):
    path: str


class _DataSummary(msgspec.Struct):
    """What is read of ``data/summary.json``, and of the card's copy of it."""

    select: _Choice | None = None
    inputs: list[_Input] = []


class _Manifest(msgspec.Struct):
    command: str = ""
    config: dict[str, Any] = {}


class Estimate(msgspec.Struct, frozen=True):
    """A value and its interval, as both stages write it."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Difference(msgspec.Struct, frozen=True):
    """How far a model is above another."""

    estimate: Estimate
    p_value: float | None = None


class _BySource(msgspec.Struct):
    all: dict[str, Estimate]
    sources: dict[str, dict[str, Estimate]]


class _DifferencesBySource(msgspec.Struct):
    all: dict[str, Difference]


class EvaluatedModel(msgspec.Struct):
    """A model of an evaluation's ``metrics.json``."""

    name: str
    metrics: _BySource
    warnings: list[str] = []


class EvaluatedPair(msgspec.Struct):
    """A comparison of an evaluation's ``metrics.json``."""

    model: str
    baseline: str
    differences: _DifferencesBySource
    permutation_p: float | None = None


class EvaluationFile(msgspec.Struct):
    """An evaluation's ``metrics.json``."""

    models: list[EvaluatedModel]
    threshold: str
    comparisons: list[EvaluatedPair] = []


class BestOfNGroup(msgspec.Struct):
    """Accuracies by method and by N as text."""

    n_questions: int
    accuracy: dict[str, dict[str, Estimate]]


class RerankingFile(msgspec.Struct):
    """A reranking's ``metrics.json``."""

    model: str
    aggregate: str
    total: BestOfNGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A folder of `mprm train`."""

    folder: Path
    trained_on: TrainedOn
    is_assumed: bool
    """Whether nothing said that the data was a subset, so that it counts as all."""
    seed: int
    settings: dict[str, str]
    """Every option by which it is told from other runs."""
    identity: tuple[str, ...]
    """Of the base model and the rollouts, where these are known: runs of different ones are no seeds of one."""
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    """A folder of `mprm evaluate`."""

    folder: Path
    content: EvaluationFile
    trained_on: TrainedOn | None
    """Of the one model that was scored, where its card tells."""
    is_assumed: bool
    """Whether the card did not say that the data was a subset, so that it counts as all."""
    scores: Path | None
    """Its step scores, where the folder holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankingRun:
    """A folder of `mprm rerank`."""

    folder: Path
    content: RerankingFile


@dataclass(slots=True)
class Runs:
    """All that was found."""

    training: list[TrainingRun] = field(default_factory=list)
    evaluations: list[EvaluationRun] = field(default_factory=list)
    rerankings: list[RerankingRun] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.training or self.evaluations or self.rerankings)


def read_runs(folders: Iterable[str | Path]) -> Runs:
    """Every run in the folders and below them."""
    runs = Runs()
    seen: set[Path] = set()
    for name in folders:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise InputNotFoundError(f"--runs {name}: no such folder; expected one of mprm train, evaluate or rerank")
        files = sorted(path for kind in ("train.json", "metrics.json") for path in folder.rglob(kind))
        if not files:
            raise DataError(
                f"--runs {name}: there is neither train.json nor metrics.json in it or below it;"
                " expected a folder that mprm train, evaluate or rerank wrote"
            )
        for path in files:
            if path.resolve() not in seen:  # a folder may be named beside one above it
                seen.add(path.resolve())
                _add(path, runs)
    return runs


def _add(path: Path, runs: Runs) -> None:
    if path.name == "train.json":
        runs.training.append(_training(path.parent))
        return
    content = _decoded(path, dict[str, Any])
    if "models" in content:
        runs.evaluations.append(_evaluation(path))
    elif "total" in content:
        runs.rerankings.append(_reranking(path))
    else:
        raise DataError(f"{path}: holds neither models nor totals; expected what mprm evaluate or rerank writes")


def _training(folder: Path) -> TrainingRun:
    options = _decoded(folder / "train.json", dict[str, Any])
    if not isinstance(options.get("seed"), int) or not isinstance(options.get("model"), str):
        raise DataError(f"{folder / 'train.json'}: names no model or no seed; expected what mprm train writes")
    identity = [str(options.get("base_fingerprint") or options["model"])]
    options["model"] = Path(options["model"]).name
    path = folder / "data" / "summary.json"
    summary = _decoded(path, _DataSummary) if path.is_file() else _DataSummary()
    found = _trained_on(summary)
    if summary.select is not None or found is None:
        # what mprm select wrote differs from seed to seed; a corpus does not
        identity.append(str(options.get("rollouts_xxh3_128")))
    lines = folder / "curve.jsonl"
    curve = []
    for number, line in enumerate(lines.read_bytes().splitlines() if lines.is_file() else [], 1):
        try:
            curve.append(msgspec.json.decode(line, type=CurvePoint))
        except UNREADABLE as error:
            raise DataError(f"{lines}:{number}: {error}; expected a line that mprm train writes") from error
    return TrainingRun(
        folder=folder,
        trained_on=found or TrainedOn(strategy=FULL, rho=1.0),
        is_assumed=found is None,
        seed=options["seed"],
        settings={name: str(value) for name, value in options.items() if name not in NO_DIFFERENCE},
        identity=tuple(identity),
        curve=tuple(curve),
    )


def _evaluation(path: Path) -> EvaluationRun:
    manifest = Path(str(path) + MANIFEST_SUFFIX)
    config = _decoded(manifest, _Manifest).config if manifest.is_file() else {}
    info = _converted(config.get("model_info") or {}, dict[str, Any], manifest)
    card = info.get("prm_config.json", info.get("mprm.json"))
    scores = path.parent / "scores.jsonl"
    trained_on, is_assumed = None, False
    if card is not None:
        summary = _converted(_converted(card, dict[str, Any], manifest).get("data") or {}, _DataSummary, manifest)
        found = _trained_on(summary)
        trained_on, is_assumed = found or TrainedOn(strategy=FULL, rho=1.0), found is None
    content = _decoded(path, EvaluationFile)
    if not content.models:
        raise DataError(f"{path}: holds no model; expected what mprm evaluate writes")
    for model in content.models:
        if "overall" not in model.metrics.all or any("macro_f1" not in row for row in model.metrics.sources.values()):
            raise DataError(
                f"{path}: {model.name} lacks its overall value or a source's macro_f1; expected what mprm evaluate"
                " writes"
            )
    return EvaluationRun(
        folder=path.parent,
        content=content,
        trained_on=trained_on,
        is_assumed=is_assumed,
        scores=scores if scores.is_file() else None,
    )


def _reranking(path: Path) -> RerankingRun:
    content = _decoded(path, RerankingFile)
    for n in (n for row in content.total.accuracy.values() for n in row):
        if not (n.isascii() and n.isdecimal() and len(n) < 10 and int(n) > 0):
            raise DataError(f"{path}: {n[:20]!r} is no number of candidates; expected what mprm rerank writes")
    return RerankingRun(folder=path.parent, content=content)


def _trained_on(summary: _DataSummary) -> TrainedOn | None:
    """The subset that training chose, or that `mprm select` had chosen for it; None where nothing says so."""
    if summary.select is not None:
        return TrainedOn(strategy=summary.select.strategy, rho=summary.select.rho or DEFAULT_RHO)
    manifests = [Path(entry.path + MANIFEST_SUFFIX) for entry in summary.inputs]
    if len(manifests) == 1 and manifests[0].is_file():
        manifest = _decoded(manifests[0], _Manifest)
        strategy, rho = manifest.config.get("strategy"), manifest.config.get("rho")
        if manifest.command == "select" and isinstance(strategy, str) and isinstance(rho, float):
            return TrainedOn(strategy=strategy, rho=rho)
    return None


def _decoded(path: Path, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except UNREADABLE as error:
        raise DataError(f"{path}: {error}; expected what mprm wrote there") from error


def _converted(value: Any, kind: type[Decoded], path: Path) -> Decoded:
    try:
        return msgspec.convert(value, kind)
    except msgspec.MsgspecError as error:
        raise DataError(f"{path}: {error}; expected what mprm wrote there") from error

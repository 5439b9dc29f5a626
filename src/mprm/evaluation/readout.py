"""Step scores of a reward model together with a policy's log-probabilities: a logistic regression of four features.

A reward model has learnt from labels what errors look like. A policy knows what it would have written itself, and is
surprised by what it would not. The weights are fitted to steps with labels that the reward model was not trained on:
of a selected tenth's other rollouts there are nine times as many.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash

from mprm import __version__
from mprm.config import Config, Force, Seed, Tau, evaluation, takes
from mprm.data.benchmarks import Benchmark, read_benchmark
from mprm.data.images import check_images_exist, check_images_readable
from mprm.data.output import atomic_write, check_not_inputs, check_overwrite
from mprm.data.types import Chain, Solution, StepScorer, scorer_name
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.evaluation.metrics import FloatArray, IntArray, rank_steps, ranking_metrics
from mprm.models.logprobs import STEP_FEATURES, StepLogProbs, step_features
from mprm.models.prm import ChainScorer, checked_chains
from mprm.progress import Progress, silent

MAX_LOGIT, MIN_LOG_PROB = 16.0, -30.0
"""What a score of 1 and a token of probability 0 count as: float32 knows no more."""
MAX_WEIGHT = 1e6
INPUTS = ("score", *STEP_FEATURES)
N_FOLDS = 5
RIDGE = 1.0


@dataclass(frozen=True, kw_only=True)
class ReadOutConfig(Config):
    """Fit a read-out: a reward model's scores of steps together with a policy's log-probabilities of their tokens.

    The inputs are rollouts, or a benchmark with labelled steps. Rollouts that the model was trained on are left out.
    """

    n: Annotated[int, evaluation("Most solutions that are read, drawn at random.", at_least=10)] = 3000
    tau: Tau = 0.0
    seed: Seed = 0
    force: Force = False


class Fitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a read-out's file holds."""

    model: str
    model_fingerprint: str
    policy: str
    policy_fingerprint: str
    intercept: float
    weights: dict[str, float]
    """Of the logit of the score, and of each of `STEP_FEATURES`."""
    fitted_on: dict[str, Any]
    """Files with their hashes, counts, and the AUC of held-out folds."""
    mprm: str = __version__


@dataclass(eq=False, repr=False)
class ReadOut(ChainScorer):
    """A reward model whose scores are read together with a policy's log-probabilities.

    ``ReadOut.from_file("readout.json", PRM.from_pretrained("runs/bis10"))`` scores steps as the model does.
    """

    scorer: StepScorer
    policy: StepLogProbs
    fitted: Fitted

    def __post_init__(self) -> None:
        digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode([self.fitted.weights, self.fitted.intercept]))
        self.fingerprint = f"{self.fitted.model_fingerprint} {self.fitted.policy_fingerprint} {digest}"
        self.name = f"{self.fitted.model} with {Path(self.fitted.policy).name}"
        self.encoder = getattr(self.scorer, "encoder", None)

    def __repr__(self) -> str:
        return f"ReadOut({self.name!r})"

    @classmethod
    def from_file(
        cls, path: str | Path, scorer: StepScorer, *, policy: str | Path | None = None, **options: Any
    ) -> ReadOut:
        """Load what ``mprm readout`` fitted to this very model; ``options`` are of `StepLogProbs.from_pretrained`.

        ``policy`` says where the policy is now, if the file's path no longer holds. Images are looked up where the
        model looks them up.
        """
        if not Path(path).is_file():
            raise InputNotFoundError(f"{path}: there is no such file; mprm readout writes one")
        try:
            fitted = msgspec.json.decode(Path(path).read_bytes(), type=Fitted)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path} is not what mprm readout writes: {error}") from error
        if sorted(fitted.weights) != sorted(INPUTS):
            found = ", ".join(fitted.weights) or "nothing"
            raise DataError(f"{path} has weights of {found}; expected {', '.join(INPUTS)}: fit it again")
        if max(map(abs, [*fitted.weights.values(), fitted.intercept])) > MAX_WEIGHT:
            raise DataError(f"{path} has a weight beyond {MAX_WEIGHT:g}; fit it again")
        if (found := _fingerprint(scorer)) != fitted.model_fingerprint:
            other = f"{scorer_name(scorer)} has other weights ({found})"
            raise ConfigError(f"{path} was fitted to {fitted.model}, and {other}; fit it again")
        root = getattr(getattr(scorer, "encoder", None), "image_root", None)
        try:
            reader = StepLogProbs.from_pretrained(policy or fitted.policy, **{"image_root": root, **options})
        except (ConfigError, InputNotFoundError) as error:
            where = "" if policy else f'; "policy" in {path} says where it is, and can be changed'
            raise ConfigError(f"the policy of the read-out: {error}{where}") from error
        if reader.fingerprint != fitted.policy_fingerprint:
            raise ConfigError(f"{path}: the policy in {reader.name} has changed since the read-out was fitted")
        return cls(scorer, reader, fitted)

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        weights = np.array([self.fitted.weights[name] for name in INPUTS])
        tables = _inputs(self.scorer, self.policy, chains, progress)
        return [_sigmoid(table @ weights + self.fitted.intercept).tolist() for table in tables]


def _sigmoid(z: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # nan, of a step without a score, stays nan
        return np.asarray(np.exp(-np.logaddexp(0.0, -z)))


def _fingerprint(scorer: StepScorer) -> str:
    return str(getattr(scorer, "fingerprint", type(scorer).__name__))


def _inputs(
    scorer: StepScorer, policy: StepLogProbs, chains: Sequence[Chain], progress: Progress
) -> list[FloatArray]:
    """The features of each chain's steps, shape (n_steps, 4); nan where model or policy cannot read a step."""
    chains = checked_chains(chains)
    tables = []
    scores = scorer.score_many(chains, progress=progress)
    if [len(row) for row in scores] != [len(chain.steps) for chain in chains]:
        raise DataError(f"{scorer_name(scorer)} does not give one score for each step")
    for own in scores:
        p = np.array([math.nan if score is None else score for score in own], float)
        if (odd := p[(p < 0) | (p > 1)]).size:
            raise DataError(f"{scorer_name(scorer)} gives a step the score {odd[0]:g}; expected 0 to 1")
        with np.errstate(divide="ignore"):
            logits = np.clip(np.log(p) - np.log1p(-p), -MAX_LOGIT, MAX_LOGIT)
        tables.append(np.column_stack([logits, *[np.full_like(logits, math.nan)] * len(STEP_FEATURES)]))
    # the policy need not read what the model cannot
    n_scored = [int(np.flatnonzero(~np.isnan(table[:, 0])).max(initial=-1)) + 1 for table in tables]
    read = [replace(chain, steps=chain.steps[:n]) for chain, n in zip(chains, n_scored, strict=True)]
    for table, n, steps in zip(tables, n_scored, policy.of_tokens(read), strict=True):
        table[:n, 1:] = step_features(steps).clip(min=MIN_LOG_PROB)
    return tables


def fit_logistic(X: FloatArray, y: FloatArray) -> tuple[FloatArray, float]:
    """Weights and intercept of a logistic regression of y (S,) on X (S, F), by Newton's method.

    The ridge of 1 is on the weights of standardized features, so that separable data have finite ones.

    >>> weights, intercept = fit_logistic(np.array([[0.0]] * 4000 + [[1.0]] * 4000), np.array([0, 1, 1, 1] * 2000))
    >>> abs(weights).round(2).tolist(), round(float(np.exp(intercept)), 2)
    ([0.0], 3.0)
    """
    center, deviation = X.mean(axis=0), X.std(axis=0)
    # a constant feature, up to float32, becomes 0 and so does its weight
    scale = np.where(deviation > 1e-6 * np.maximum(1, np.abs(center)), deviation, np.inf)
    Z = np.column_stack([(X - center) / scale, np.ones(len(X))])
    ridge = np.diag([RIDGE] * X.shape[1] + [1e-9])
    w = np.zeros(Z.shape[1])
    for _ in range(100):
        p = _sigmoid(Z @ w)
        step = np.linalg.solve(Z.T @ (Z * (p * (1 - p))[:, None]) + ridge, Z.T @ (p - y) + ridge @ w)
        w -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    weights = w[:-1] / scale
    return weights, float(w[-1] - weights @ center)


@takes(ReadOutConfig)
def readout(
    paths: Any,
    model: StepScorer,
    policy: StepLogProbs,
    out: str | Path | None = None,
    config: ReadOutConfig | None = None,
    *,
    run: str | Path | None = None,
    format: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> ReadOut:
    """Fit the weights to labelled steps, and write them to ``out``.

    ``paths`` are rollouts, whose steps count as positive above ``tau``, or a step benchmark. Those that the model was
    trained on are left out: ``run`` is the folder of its run, by default the one that it was loaded from.
    """
    config = ReadOutConfig.of(config, options)
    if not callable(getattr(model, "score_many", None)) or not callable(getattr(policy, "of_tokens", None)):
        raise ConfigError("expected a model, such as mprm.PRM, and then a policy, mprm.StepLogProbs")
    benchmark = read_benchmark(paths, format=format, tau=config.tau, text_only=True)
    if out is not None:
        check_not_inputs([file["path"] for file in benchmark.files], [out])
        _check_replaceable(str(out), force=config.force)
    trained = _trained_on(model, run)
    if trained is None:
        print("The model's training set is not here: make sure that it was not trained on these.", file=sys.stderr)
    solutions, n_left_out = _drawn(benchmark.solutions, model, config, trained or frozenset())
    root = getattr(getattr(model, "encoder", None), "image_root", None)
    if root is not None:
        check_images_exist(Benchmark(solutions=tuple(solutions)), root)
        check_images_readable(Benchmark(solutions=tuple(solutions)), root)
    tables = _inputs(model, policy, [solution.chain for solution in solutions], progress)
    problems = {name: number for number, name in enumerate(dict.fromkeys(s.problem for s in solutions))}
    X = np.concatenate(tables)
    label = np.concatenate([np.asarray(solution.labels) for solution in solutions])
    problem = np.concatenate([np.full(len(s.labels), problems[s.problem]) for s in solutions])
    is_ignored, is_unscored = label == 0, np.isnan(X).any(axis=1)
    is_used = ~is_ignored & ~is_unscored
    X, y, problem = X[is_used], (label[is_used] == 1).astype(float), problem[is_used]
    counts: dict[str, Any] = {"n_solutions": len(solutions), "n_steps": len(y), "n_positive": int(y.sum())}
    counts |= {"n_unscored": int(is_unscored.sum()), "n_ignored": int(is_ignored.sum())}
    counts["n_trained_on"] = None if trained is None else n_left_out
    if not 0 < y.sum() < len(y):
        files = ", ".join(file["path"] for file in benchmark.files)
        of_steps = f"{int(y.sum())} of {len(y)} steps are positive"
        others = f"{counts['n_unscored']} are beyond the model's length, {counts['n_ignored']} have no label"
        raise DataError(f"{files}: {of_steps}, {others}; expected steps of both labels: name other inputs")
    weights, intercept = fit_logistic(X, y)
    fitted = Fitted(
        model=scorer_name(model),
        model_fingerprint=_fingerprint(model),
        policy=str(Path(policy.name).resolve()) if Path(policy.name).is_dir() else policy.name,
        policy_fingerprint=policy.fingerprint,
        intercept=intercept,
        weights=dict(zip(INPUTS, weights.tolist(), strict=True)),
        fitted_on={"inputs": list(benchmark.files), **config.as_dict("n", "tau", "seed"), **counts}
        | {"auc": _held_out_auc(X, y, problem % N_FOLDS)},
    )
    if out is not None:
        with atomic_write(str(out)) as temporary:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(fitted), indent=2) + b"\n")
    return ReadOut(model, policy, fitted)


def _drawn(
    solutions: Sequence[Solution], scorer: StepScorer, config: ReadOutConfig, trained: frozenset[Trained]
) -> tuple[list[Solution], int]:
    """Some of the solutions; and how many were met that the model was trained on, which are none of them."""
    kept, n_trained_on = list[Solution](), 0
    for index in np.random.default_rng(config.seed).permutation(len(solutions)):
        solution = solutions[index]
        if trained and _identity(scorer, solution) in trained:
            n_trained_on += 1
        elif solution.steps:
            kept.append(solution)
        if len(kept) == config.n:
            break
    if not kept:
        raise DataError("the model was trained on all of these rollouts; name others, or a step benchmark")
    return kept, n_trained_on


Trained = tuple[bytes, tuple[str, ...]]
"""Token ids and image paths of a rollout that was trained on."""


def _identity(scorer: Any, solution: Solution) -> Trained:
    try:
        tokenized = scorer.encoder.tokenize(solution.chain)
    except DataError as error:  # of an image
        raise DataError(f"{solution.location}: {error}") from error
    return np.asarray(tokenized.input_ids, np.int64).tobytes(), tuple(map(str, tokenized.images))


def _trained_on(model: Any, run: str | Path | None) -> frozenset[Trained] | None:
    """All rollouts that a run, or a checkpoint of one, was trained on, where they are there."""
    import pyarrow as pa

    run = run or getattr(model, "folder", None)
    if run is None or getattr(model, "encoder", None) is None:
        return None
    folder = Path(run).resolve()
    path = (folder.parents[1] if folder.parent.name == "checkpoints" else folder) / "data" / "train.arrow"
    if not path.is_file():
        return None
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
            ids = (np.asarray(row.values, np.int64).tobytes() for row in table["input_ids"])
            return frozenset(zip(ids, map(tuple, table["images"].to_pylist()), strict=True))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}; move it away, or train again") from error


def _check_replaceable(out: str, *, force: bool) -> None:
    """``force`` replaces an earlier read-out, and no other file: not one of the model or the policy."""
    check_overwrite(out, force=force)
    if Path(out).is_file():
        try:
            msgspec.json.decode(Path(out).read_bytes(), type=Fitted)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ConfigError(f"{out} exists and is no read-out; choose another output") from None


def _held_out_auc(X: FloatArray, y: FloatArray, fold: IntArray) -> dict[str, float]:
    """AUC of the model's score alone and of the read-out, each problem's steps by weights of the other folds'."""
    predicted = np.empty(len(y))
    for number in np.unique(fold):
        is_here = fold == number
        if not 0 < y[~is_here].sum() < (~is_here).sum():
            return {}
        weights, intercept = fit_logistic(X[~is_here], y[~is_here])
        predicted[is_here] = X[is_here] @ weights + intercept
    values = {"model": X[:, 0], "running minimum": X[:, INPUTS.index("running_minimum")], "read-out": predicted}
    ones = np.ones((1, len(y)))
    return {name: float(ranking_metrics(rank_steps(v, y == 1), ones)["auc"][0]) for name, v in values.items()}

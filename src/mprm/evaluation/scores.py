"""Step scores: made by a model, saved, and read back without it.

``scores.jsonl`` has a line for each solution of a benchmark (`mprm evaluate`) or each candidate of a question
(`mprm rerank`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import xxhash

from mprm.config import DEFAULT_KEY, ConnectionOptions, Force, ModelOptions, Seed, output, read_api_key, serving
from mprm.data.output import MANIFEST_SUFFIX, PARTIAL, check_not_inputs, check_overwrite, write_with_manifest
from mprm.data.records import is_url
from mprm.data.types import Chain, Solution, StepScorer, first_error_of, scorer_name, without_secrets
from mprm.errors import ConfigError, DataError, InputNotFoundError, counted
from mprm.progress import Advance, Progress, silent

if TYPE_CHECKING:
    from mprm.data.benchmarks import Benchmark

SCORES = "scores.jsonl"
RESULTS = ("metrics.json", "metrics.json" + MANIFEST_SUFFIX, "metrics.md")
NOT_RECORDED = {"model", "files", "scores", "device", "dtype", "batch_tokens", "out", "force"}
NOT_RECORDED |= {"prm_server", "served_model", "api_key_env", "concurrency", "timeout_s", "retries", "patience_s"}
"""Options that metrics.json leaves out: they change no number."""
Scores = tuple[float | None, ...]
"""Probability that each step is correct; None for a step without a score, as truncation leaves it."""


@dataclass(frozen=True, kw_only=True)
class ScoringConfig(ConnectionOptions, ModelOptions):
    """The model that scores steps, and where the results go."""

    prm_server: Annotated[
        str | None, serving("vLLM server of the model, see mprm serve; --model is then its folder, if here.", "URL")
    ] = None
    served_model: Annotated[str | None, serving("Name of the model on the server, if it has several.", "NAME")] = None
    api_key_env: Annotated[str, serving("Environment variable of the API key.", "NAME")] = DEFAULT_KEY
    seed: Seed = 0
    out: Annotated[str | None, output("Folder for scores, metrics and tables.", "DIR")] = None
    force: Force = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_root is not None and not is_url(self.image_root):
            object.__setattr__(self, "image_root", str(Path(self.image_root).expanduser()))
        for name in ("lower_bound", "readout"):
            if getattr(self, name) is not None and not self.has_model:
                raise ConfigError(f"{name} is for a model's scores, and no model is named")
        if self.prm_server is not None:
            local = ("prompt_layout", "prm_layout", "lower_bound", *["batch_tokens"] * (self.readout is None))
            if given := [f"--{name.replace('_', '-')}" for name in local if getattr(self, name) is not None]:
                raise ConfigError(f"{', '.join(given)}: the server decides; leave it out with --prm-server")
            if not isinstance(self.model, str | None):
                raise ConfigError("with prm_server, model is the folder of the model that the server has")

    @property
    def has_model(self) -> bool:
        """Whether a model scores, and not saved scores alone."""
        return self.model is not None or self.prm_server is not None

    @property
    def opens_images(self) -> bool:
        """Whether the model's images are opened here; another scorer in Python need not do that."""
        return isinstance(self.model, str) or self.prm_server is not None

    def load_model(self) -> StepScorer:
        if self.readout is None:
            return self._load_model()
        from mprm.evaluation.readout import ReadOut

        policy = {"device": self.device, "dtype": self.dtype, "image_root": self.image_root}
        return ReadOut.from_file(self.readout, self._load_model(), tokens_per_batch=self.batch_tokens, **policy)

    def _load_model(self) -> StepScorer:
        if self.prm_server is not None:
            from mprm.evaluation.remote import RemotePRM

            given: dict[str, Any] = {"folder": self.model, "image_root": self.image_root}
            given |= {"api_key": read_api_key(self.api_key_env), **self.narrowed(ConnectionOptions).as_dict()}
            return RemotePRM(self.prm_server, self.served_model, **given)
        if not isinstance(self.model, str):
            return cast("StepScorer", self.model)
        from mprm.models.prm import PRM

        compute = {"device": self.device, "dtype": self.dtype, "tokens_per_batch": self.batch_tokens}
        options: dict[str, Any] = {"image_root": self.image_root, **compute}
        options |= self.as_dict("prompt_layout", "prm_layout", "lower_bound")
        return PRM.from_pretrained(self.model, **options)

    def recorded(self) -> dict[str, Any]:
        recorded = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_RECORDED}
        return recorded if self.image_root is None else {**recorded, "image_root": without_secrets(self.image_root)}

    def path(self, name: str) -> str:
        """A file of the output folder, which may be a URL."""
        return f"{str(self.out).rstrip('/')}/{name}"

    def check_outputs(self, names: Sequence[str], inputs: Sequence[str | Path]) -> None:
        """Stop when an output would replace an input, or another file without ``force``, or cannot be written."""
        written = [*names, *RESULTS, *([SCORES, SCORES + MANIFEST_SUFFIX] if self.has_model else [])]
        paths = [self.path(name) for name in written]
        partial = Path(self.path(SCORES + PARTIAL)).expanduser()
        check_not_inputs([*inputs, *([self.readout] if self.readout else [])], [partial, *paths])
        # what stands beside the work of a stopped run is of that run
        force = self.force or (self.has_model and partial.exists())
        for path in paths:
            check_overwrite(path, force=force)

    def write_results(self, metrics: Mapping[str, Any], text: str, **manifest: Any) -> None:
        data = msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n"
        write_with_manifest({self.path("metrics.json"): data, self.path("metrics.md"): text.encode()}, **manifest)


class ScoredSolution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A solution with the scores of its steps: a line of a scores file."""

    id: str
    source: str
    model: str = ""
    problem: str = ""
    chain_xxh3: str = ""
    benchmark: str = ""  # see `Solution.benchmark`
    labels: tuple[int, ...] = ()  # 1 correct, -1 incorrect, 0 ignored; empty for a candidate
    first_error: int | None = None
    scores: Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSolutions:
    """The solutions of a benchmark, or the candidates of some questions, with one model's scores."""

    model: str
    solutions: tuple[ScoredSolution, ...]
    notes: tuple[str, ...] = ()  # what is odd about some lines of a scores file


def with_scores(solution: Solution, model: str, scores: Sequence[float]) -> ScoredSolution:
    """The solution with its scores, nan for a step without one; stops where they are no probabilities."""
    saved = tuple(None if math.isnan(score) else float(score) for score in scores)
    _check_scores(saved, len(solution.steps), f"{solution.location}: the scores of {model}")
    return ScoredSolution(
        id=solution.id,
        source=solution.source,
        model=model,
        problem=solution.problem,
        chain_xxh3=hash_chain(solution.chain),
        benchmark=solution.benchmark,
        labels=solution.labels,
        first_error=solution.first_error,
        scores=saved,
    )


def hash_chain(chain: Chain) -> str:
    """XXH3-64 of question, image paths and steps: scores of one chain must not serve for another."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode([chain.question, chain.images, chain.steps]))


def _check_scores(scores: Scores, n_steps: int, where: str) -> None:
    if len(scores) != n_steps:
        raise DataError(f"{where}: {len(scores)} scores for {n_steps} steps; expected one a step")
    for index, score in enumerate(scores):
        if score is not None and not 0 <= score <= 1:
            raise DataError(f"{where}: step {index} has score {score}; expected a probability from 0 to 1, or null")


def score_solutions(
    solutions: Sequence[Solution], scorer: StepScorer, model: str, advance: Advance
) -> tuple[ScoredSolution, ...]:
    """The solutions with the model's scores; those that are alike are scored once."""
    chains = list(dict.fromkeys(solution.chain for solution in solutions if solution.steps))
    scores = scorer.score_many(chains, progress=lambda *_: nullcontext(advance))
    if len(scores) != len(chains):
        raise DataError(f"{model} scored {len(scores)} chains; expected {len(chains)}")
    by_chain = dict(zip(chains, scores, strict=True))
    return tuple(with_scores(solution, model, by_chain.get(solution.chain, ())) for solution in solutions)


def score_benchmark(
    benchmark: Benchmark, scorer: StepScorer, *, model: str | None = None, progress: Progress = silent
) -> ScoredSolutions:
    """The benchmark's solutions with the model's scores."""
    with scored_solutions(benchmark.solutions, scorer, model=model, progress=progress) as scored:
        return scored


@contextmanager
def scored_solutions(
    solutions: Sequence[Solution],
    scorer: StepScorer,
    *,
    model: str | None = None,
    out: str | None = None,
    force: bool = False,
    at_once: int = 64,
    config: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    **manifest: Any,
) -> Iterator[ScoredSolutions]:
    """The solutions with the model's scores; written to ``out``, with config and others in its manifest.

    With ``out``, ``at_once`` questions are scored at a time and saved in ``OUT.partial`` until the block ends well; a
    run that was stopped continues there, with the same solutions and model (``fingerprint``, or else name) only. All
    solutions of a question are scored together: equal ones are scored once, and prefixes are shared.
    """
    from mprm.annotation.journal import Journal

    model = model or scorer_name(scorer)
    hashes = [hash_chain(solution.chain) for solution in solutions]
    digest = xxhash.xxh3_128_hexdigest("".join(hashes).encode())
    run = {"model": model, "model_fingerprint": getattr(scorer, "fingerprint", model), "chains": digest}
    by_question: dict[tuple[Any, ...], list[int]] = {}
    for index, solution in enumerate(solutions):
        by_question.setdefault((solution.question, solution.images), []).append(index)
    questions, lines = list(by_question.values()), dict[int, ScoredSolution]()
    has_journal = out is not None and not is_url(out)
    at_once = at_once if has_journal else len(questions)
    n_chains = len({key for key, solution in zip(hashes, solutions, strict=True) if solution.steps})
    with Journal(str(out), run=run, force=force) if has_journal else nullcontext() as journal:
        with progress("scoring", n_chains) as advance:
            for start in range(0, len(questions), at_once):
                part = [index for indices in questions[start : start + at_once] for index in indices]
                key = ("questions", str(start))
                if journal is not None and key in journal:
                    scored = journal.get(key, type=_Saved).lines
                    advance(len({line.chain_xxh3 for line in scored if line.scores}))
                else:
                    scored = score_solutions([solutions[index] for index in part], scorer, model, advance)
                    if journal is not None:
                        journal.add({"source": key[0], "id": key[1], "lines": scored})
                lines.update(zip(part, scored, strict=True))
        in_order = tuple(lines[index] for index in range(len(solutions)))
        if out is not None:
            write_scores(out, in_order, config={**(config or {}), **run}, **manifest)
        yield ScoredSolutions(model=model, solutions=in_order)
        if journal is not None:
            journal.remove()


class _Saved(msgspec.Struct):
    lines: tuple[ScoredSolution, ...]


def write_scores(path: str, solutions: Sequence[ScoredSolution], **manifest: Any) -> None:
    """Write the scores, and their manifest with a ``config``; ``command`` and ``inputs`` where others made them."""
    output = {
        "n_solutions": len(solutions),
        "n_steps": sum(len(solution.scores) for solution in solutions),
        "n_unscored": sum(solution.scores.count(None) for solution in solutions),
    }
    data = b"".join(msgspec.json.encode(solution) + b"\n" for solution in solutions)
    sources = Counter(solution.source for solution in solutions)
    manifest = {"command": "evaluate", "inputs": [], **manifest}
    write_with_manifest({path: data}, sources=sources, output=output, **manifest)


def read_scores(path: str | Path) -> ScoredSolutions:
    """The saved scores of a benchmark. A line that occurs twice is noted: a benchmark may hold a solution twice."""
    solutions: list[ScoredSolution] = []
    seen, doubles = set[ScoredSolution](), []
    for where, line in read_lines(path):
        _check_labels(line, where)
        if line in seen:
            doubles.append(where)
        seen.add(line)
        solutions.append(line)
    if not solutions:
        raise DataError(f"{path}: the file holds no scores; expected one line a solution")
    text = "the line is the same in every field as an earlier one of its file; both count"
    notes = (f"{counted(len(doubles), 'record')}: {text} (the first {doubles[0]})",) if doubles else ()
    return ScoredSolutions(model=solutions[0].model or str(path), solutions=tuple(solutions), notes=notes)


def read_lines(path: str | Path) -> Iterator[tuple[str, ScoredSolution]]:
    """(FILE:LINE, line) of each line of a scores file; stops at scores of a second model."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputNotFoundError(f"{path}: no such file; expected the scores.jsonl of mprm evaluate or mprm rerank")
    expected = f"expected {', '.join(ScoredSolution.__struct_fields__)}, as mprm evaluate and mprm rerank write them"
    model: str | None = None
    with file.open("rb") as texts:
        for number, text in enumerate(texts, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                line = msgspec.json.decode(text, type=ScoredSolution)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise DataError(f"{where}: is no line of a scores file: {error}; {expected}") from error
            model = line.model if model is None else model
            if line.model != model:
                models = f"of the model {line.model!r}, those before of {model!r}"
                raise DataError(f"{where}: the scores are {models}; keep those of each in a file of its own")
            _check_scores(line.scores, len(line.labels or line.scores), where)
            yield where, line


def _check_labels(line: ScoredSolution, where: str) -> None:
    if not line.labels:
        raise DataError(f"{where}: there are no labels; expected scores of a benchmark, as mprm evaluate --out saves")
    for index, label in enumerate(line.labels):
        if label not in (-1, 0, 1):
            raise DataError(f"{where}: step {index} has label {label}; expected 1, 0 or -1")
    expected = first_error_of(line.labels)
    if line.first_error != expected:
        given, right = ("null, for none" if step is None else f"step {step}" for step in (line.first_error, expected))
        raise DataError(f"{where}: the first error is {given}; by the labels {list(line.labels)} it is {right}")


def without_scores(benchmark: Benchmark) -> ScoredSolutions:
    """The benchmark as a model would leave it that scores no step, to compare saved scores with."""
    lines = (with_scores(solution, "", [math.nan] * len(solution.steps)) for solution in benchmark.solutions)
    return ScoredSolutions(model="the benchmark", solutions=tuple(lines))


def check_same_steps(first: ScoredSolutions, other: ScoredSolutions) -> None:
    """Stop when the two do not hold the same solutions with the same labels, in the same order."""
    remedy = "models are compared on the same benchmark, so score it again with both"
    for number, (a, b) in enumerate(zip(first.solutions, other.solutions, strict=False), 1):
        for field in ("id", "source", "problem", "labels", "first_error", "chain_xxh3"):
            value, other_value = getattr(a, field), getattr(b, field)
            if value != other_value:
                values = f"{value!r} in {first.model} and {other_value!r} in {other.model}"
                raise DataError(f"solution {number} has {field} {values}; {remedy}")
    if len(first.solutions) != len(other.solutions):
        n, n_other = len(first.solutions), len(other.solutions)
        raise DataError(f"{first.model} has {n:,} solutions and {other.model} {n_other:,}; {remedy}")

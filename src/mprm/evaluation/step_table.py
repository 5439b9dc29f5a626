"""A benchmark with the scores that one model gave its steps; what is saved, and all that metrics need.

The scores and labels of a benchmark's steps as arrays: what every metric is made of.

Scores files: one line a solution, and a manifest beside it that names the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.benchmarks import Benchmark, Notes
from mprm.data.corpus import MANIFEST_SUFFIX, hash_file, is_blank, write_manifest
from mprm.data.output import atomic_write
from mprm.data.types import Solution, StepScorer, first_error_of
from mprm.errors import DataError, InputNotFoundError


class ScoredSolution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The labels of a solution's steps beside their scores; one line of a scores file."""

    id: str
    source: str
    problem: str
    labels: tuple[int, ...]
    first_error: int | None
    scores: tuple[float | None, ...]
    """Probability that each step is correct; None for a step without one, as truncation cut it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBenchmark:
    """What one model makes of a benchmark."""

    name: str
    """The model."""
    solutions: tuple[ScoredSolution, ...]
    notes: tuple[str, ...] = ()
    """What is odd about a scores file's lines, as of a benchmark's records."""


def score_benchmark(
    benchmark: Benchmark, scorer: StepScorer, *, name: str, on_scored: Callable[[int], None] | None = None
) -> ScoredBenchmark:
    """Let a model score every step of a benchmark.

    Parameters
    ----------
    on_scored
        Called with the number of chains done since the last call; there are ``len(benchmark.chains)``.
    """
    chains = benchmark.chains
    found = scorer.score_many(chains, on_scored=on_scored)
    if len(found) != len(chains):
        raise DataError(f"{name} scored {len(found)} chains; expected {len(chains)}")
    scores = dict(zip(chains, found, strict=True))
    return ScoredBenchmark(
        name=name,
        solutions=tuple(_scored(solution, scores[solution.chain], name) for solution in benchmark.solutions),
    )


def _scored(solution: Solution, scores: Sequence[float], name: str) -> ScoredSolution:
    found = ScoredSolution(
        id=solution.id,
        source=solution.source,
        problem=solution.problem,
        labels=solution.labels,
        first_error=solution.first_error,
        scores=tuple(None if math.isnan(score) else float(score) for score in scores),
    )
    check_scores(found, f"{solution.place}: the scores of {name}")
    return found


def check_scores(solution: ScoredSolution, place: str) -> None:
    """Stop when labels and scores do not go together, or are no labels and scores."""
    n_steps = len(solution.labels)
    if not n_steps:
        raise DataError(f"{place}: there are no steps; expected at least one")
    if len(solution.scores) != n_steps:
        raise DataError(f"{place}: there are {len(solution.scores)} scores and {n_steps} labels; expected as many")
    for number, (label, score) in enumerate(zip(solution.labels, solution.scores, strict=True)):
        if label not in (-1, 0, 1):
            raise DataError(f"{place}: step {number} has label {label}; expected 1, 0 or -1")
        if score is not None and not 0 <= score <= 1:
            raise DataError(f"{place}: step {number} has score {score}; expected a probability from 0 to 1, or null")
    expected = first_error_of(solution.labels)
    if solution.first_error != expected:
        said, meant = (
            "null, for none" if step is None else f"step {step}" for step in (solution.first_error, expected)
        )
        raise DataError(f"{place}: the first error is {said}; by the labels {list(solution.labels)} it is {meant}")


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """S steps of N solutions to P problems from K sources."""

    scores: FloatArray
    """Shape (S,): probability that the step is correct; nan where truncation cut it off."""
    labels: IntArray
    """Shape (S,): 1, -1, or 0 for ignored."""
    solution: IntArray
    """Shape (S,): number of each step's solution; does not decrease."""
    first_error: IntArray
    """Shape (N,): step of the first error, -1 for none."""
    source: IntArray
    """Shape (N,): number of the source."""
    problem: IntArray
    """Shape (N,): number of the problem."""
    sources: tuple[str, ...]
    """Names, in order of first appearance."""
    problems: tuple[str, ...]
    """Keys, in order of first appearance."""

    @property
    def is_counted(self) -> BoolArray:
        """Shape (S,): whether step metrics count the step: it has a label and a score."""
        is_counted: BoolArray = (self.labels != 0) & ~np.isnan(self.scores)
        return is_counted

    @property
    def is_whole(self) -> BoolArray:
        """Shape (N,): whether every step of the solution has a score, so that its first error can be told."""
        n_lost = np.bincount(self.solution[np.isnan(self.scores)], minlength=len(self.source))
        is_whole: BoolArray = n_lost == 0
        return is_whole

    @classmethod
    def of(cls, solutions: Sequence[ScoredSolution]) -> StepTable:
        """The table of some scored solutions."""
        return step_table(solutions)


def step_table(solutions: Sequence[ScoredSolution]) -> StepTable:
    """The table of some scored solutions."""
    sources = {name: number for number, name in enumerate(dict.fromkeys(s.source for s in solutions))}
    problems = {key: number for number, key in enumerate(dict.fromkeys(s.problem for s in solutions))}
    scores = [np.nan if score is None else score for s in solutions for score in s.scores]
    table = StepTable(
        scores=np.array(scores, dtype=np.float64),
        labels=np.array([label for s in solutions for label in s.labels], dtype=np.int64),
        solution=np.repeat(np.arange(len(solutions)), [len(s.labels) for s in solutions]),
        first_error=np.array([-1 if s.first_error is None else s.first_error for s in solutions], dtype=np.int64),
        source=np.array([sources[s.source] for s in solutions], dtype=np.int64),
        problem=np.array([problems[s.problem] for s in solutions], dtype=np.int64),
        sources=tuple(sources),
        problems=tuple(problems),
    )
    check_measurable(table.scores, table.labels)
    return table


def check_measurable(scores: FloatArray, labels: IntArray) -> None:
    """Stop when no step has both a label and a score."""
    if not np.any(labels != 0):
        raise DataError("no step is labelled correct or incorrect; there is nothing to measure a model by")
    if np.all(np.isnan(scores[labels != 0])):
        raise DataError(
            "no labelled step could be scored: the model gives no number (nan), or every question is longer than"
            " its maximum length; look at the model's weights, and allow longer sequences"
        )


OCCURS_TWICE = "the line is the same in every field as an earlier one of its file; both count"


def write_scores(
    path: str, scored: ScoredBenchmark, *, config: Mapping[str, Any], inputs: list[dict[str, Any]]
) -> None:
    """Write the scores and their manifest."""
    encode = msgspec.json.Encoder().encode
    with atomic_write(path) as temporary:
        with temporary.open("wb") as out:
            out.writelines(encode(solution) + b"\n" for solution in scored.solutions)
        write_manifest(
            path,
            command="evaluate",
            config=config,
            inputs=inputs,
            sources=Counter(solution.source for solution in scored.solutions),
            output={
                "path": path,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "n_solutions": len(scored.solutions),
                "n_steps": sum(len(solution.labels) for solution in scored.solutions),
                "n_unscored": sum(solution.scores.count(None) for solution in scored.solutions),
            },
        )


def read_scores(path: str | Path) -> ScoredBenchmark:
    """Read what `write_scores` wrote.

    A line that occurs twice is noted, not refused: a benchmark may hold a solution twice.
    """
    here = Path(path).expanduser()
    if not here.is_file():
        raise InputNotFoundError(f"{path}: no such file; expected scores that mprm evaluate --out saved")
    decoder = msgspec.json.Decoder(ScoredSolution)
    notes = Notes()
    solutions: list[ScoredSolution] = []
    seen: set[ScoredSolution] = set()
    with here.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if is_blank(line):
                continue
            place = f"{path}:{number}"
            try:
                solution = decoder.decode(line)
            except (ValueError, msgspec.MsgspecError) as error:
                raise DataError(
                    f"{place}: is no line of a scores file: {error}. Expected the fields"
                    f" {', '.join(ScoredSolution.__struct_fields__)}; make the file with mprm evaluate --out."
                ) from error
            check_scores(solution, place)
            if solution in seen:
                notes(place, OCCURS_TWICE)
            seen.add(solution)
            solutions.append(solution)
    if not solutions:
        raise DataError(f"{path}: the file holds no scores; expected one line a solution")
    name = _model_name(str(here)) or str(path)
    return ScoredBenchmark(name=name, solutions=tuple(solutions), notes=notes.lines())


class _Config(msgspec.Struct):
    model: str


class _Manifest(msgspec.Struct):
    config: _Config


def _model_name(path: str) -> str | None:
    """The model's name, from the manifest beside the scores; None where there is none."""
    try:
        return msgspec.json.decode(Path(path + MANIFEST_SUFFIX).read_bytes(), type=_Manifest).config.model
    except (OSError, ValueError, msgspec.MsgspecError):
        return None

"""A benchmark with the scores that one model gave its steps; what is saved, and all that metrics need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from mprm.errors import DataError
from mprm.evaluation.benchmark import Benchmark
from mprm.evaluation.solution import Solution, first_error_of
from mprm.inference.scorer import StepScorer


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
    refuse_bad(found, f"{solution.place}: the scores of {name}")
    return found


def refuse_bad(solution: ScoredSolution, place: str) -> None:
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

"""Step scorers that need no model, and scored solutions made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mprm.data.types import Chain, first_error_of
from mprm.evaluation.scores import ScoredSolution
from mprm.progress import Progress, silent


class LengthScorer:
    """Trusts short steps: a step of n characters scores 1 / (1 + n / 100)."""

    name = "by length"

    def __init__(self, *, longest: int | None = None, factor: float = 1.0) -> None:
        self.longest, self.factor, self.chains = longest, factor, []

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        self.chains = list(chains)
        every = []
        with progress("scoring", len(chains)) as advance:
            for chain in chains:
                kept = len(chain.steps) if self.longest is None else self.longest
                scores = [self.factor / (1 + len(step) / 100) for step in chain.steps[:kept]]
                every.append(scores + [math.nan] * (len(chain.steps) - len(scores)))
                advance(1)
        return every


def scored(
    labels: Sequence[int], scores: Sequence[float | None], *, source: str = "s", problem: str = "p", id: str = "i"
) -> ScoredSolution:
    """One scored solution."""
    return ScoredSolution(
        id=id,
        source=source,
        problem=problem,
        labels=tuple(labels),
        first_error=first_error_of(tuple(labels)),
        scores=tuple(scores),
    )


def simulated(
    n_problems: int,
    *,
    seed: int,
    skill: float,
    noise_seed: int | None = None,
    n_sources: int = 2,
    neutral: float = 0.1,
    lost: float = 0.0,
) -> list[ScoredSolution]:
    """Solutions with random labels, scored by a model of some skill; two solutions a problem."""
    rng = np.random.default_rng(seed)
    noise = np.random.default_rng(seed + 1000 if noise_seed is None else noise_seed)
    solutions = []
    for number in range(2 * n_problems):
        n_steps = int(rng.integers(2, 7))
        labels = np.where(rng.random(n_steps) < neutral, 0, np.where(rng.random(n_steps) < 0.7, 1, -1))
        odds = labels * skill + noise.normal(0, 1, n_steps)
        scores = [None if noise.random() < lost else float(1 / (1 + math.exp(-x))) for x in odds]
        problem = number // 2
        solutions.append(
            scored(labels.tolist(), scores, source=f"s{problem % n_sources}", problem=f"p{problem}", id=str(number))
        )
    return solutions

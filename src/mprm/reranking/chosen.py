"""The candidate that is chosen for each question."""

# ruff: noqa: N803 - names carry their axes

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mprm.annotation.answers.judged import Judged, Verdict
from mprm.annotation.candidates import CandidateSet
from mprm.annotation.samplers.sampler import derived_seed
from mprm.reranking.aggregate import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best candidate by one aggregate."""

    candidate: int
    """Its number, from 0."""
    score: float | None
    """None where no candidate has a scored step."""
    n_tied: int
    """Candidates with that score; one of them was drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A line of ``chosen.jsonl``: the question's answer, and what other aggregates would choose."""

    id: str
    source: str
    candidate: int
    score: float | None
    n_tied: int
    verdict: Verdict
    answer: str | None
    text: str
    by_aggregate: dict[str, Choice]


def choose(scores_M: FloatArray, *, seed: int) -> Choice:
    """The candidate with the highest score; of several, one that the seed draws.

    Examples
    --------
    >>> choose(np.array([0.2, np.nan, 0.9]), seed=0)
    Choice(candidate=2, score=0.9, n_tied=1)
    """
    ranks = np.where(np.isnan(scores_M), -np.inf, scores_M)
    tied = np.flatnonzero(ranks == ranks.max())
    best = int(tied[seed % len(tied)])
    return Choice(candidate=best, score=None if np.isnan(scores_M[best]) else float(scores_M[best]), n_tied=len(tied))


def chosen_of(
    entry: CandidateSet,
    judged: Sequence[Judged],
    scores_M: Mapping[str, FloatArray],
    *,
    aggregate: str,
    seed: int,
) -> Chosen:
    """What is chosen for one question."""
    source, id_ = entry.key
    choices = {how: choose(scores, seed=derived_seed(seed, source, id_)) for how, scores in scores_M.items()}
    best = choices[aggregate]
    return Chosen(
        id=id_,
        source=source,
        candidate=best.candidate,
        score=best.score,
        n_tied=best.n_tied,
        verdict=judged[best.candidate].verdict,
        answer=judged[best.candidate].answer,
        text=entry.candidates[best.candidate].text,
        by_aggregate=choices,
    )

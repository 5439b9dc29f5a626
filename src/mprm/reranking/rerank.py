"""``mprm rerank``: choose the best of N candidates by their steps, and measure what it is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprm.annotation.answers.judged import Judged
from mprm.annotation.candidates import CandidateSet, read_candidates
from mprm.annotation.image_files import image_files
from mprm.annotation.watch import Watch, unwatched
from mprm.errors import ConfigError, DataError
from mprm.inference.scorer import StepScorer
from mprm.reranking.aggregate import AGGREGATES, aggregate
from mprm.reranking.best_of_n import Measured, Outcome, Subsets, best_of_n, powers_of_two
from mprm.reranking.chosen import Chosen, chosen_of
from mprm.reranking.outputs import SCORES, make_folder, output_folder, refuse_outputs
from mprm.reranking.step_scores import StepScores, given_scores, read_scores, score_candidates
from mprm.reranking.verdicts import answer_numbers, judge_candidates
from mprm.rollouts.printable import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankConfig:
    """How candidates are compared."""

    aggregate: str = "mean"
    """How step scores make a candidate's score; the paper takes the mean."""
    n: tuple[int, ...] = ()
    """Values of N; powers of two up to the fewest candidates of a question when empty."""
    subsets: Subsets = "all"
    """The expectation over all subsets of N candidates, or the first N alone."""
    draws: int = 1000
    """Bootstrap draws over questions, and most subsets that a vote is averaged over."""
    seed: int = 0
    timeout_s: float = 5.0
    """Longest time to check one answer."""

    def __post_init__(self) -> None:
        if self.aggregate not in AGGREGATES:
            raise ConfigError(f"unknown aggregate {self.aggregate!r}; expected one of {', '.join(AGGREGATES)}")
        if any(n < 1 for n in self.n):
            raise ConfigError(f"N must be 1 or more, got {list(self.n)}")
        if self.subsets not in ("all", "first"):
            raise ConfigError(f"unknown subsets {self.subsets!r}; expected all or first")
        if self.draws < 1:
            raise ConfigError(f"draws must be 1 or more, got {self.draws}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s must be a number of seconds above 0, got {self.timeout_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """What was chosen, and how good the choice is."""

    model: str
    config: RerankConfig
    ns: tuple[int, ...]
    n_candidates: int
    n_failed: int
    """Candidates that the checker could not decide on; counted as not correct."""
    n_answerless: int
    """Candidates in which no answer was found; they have no vote."""
    n_cut_steps: int
    """Steps without a score: truncation cut them off, or the model gave nan."""
    n_unscored: int
    """Candidates without any scored step; they rank below all others."""
    measured: Measured
    chosen: list[Chosen]
    sources: dict[str, dict[str, int]]
    """Questions and candidates of each source."""

    @property
    def failed_share(self) -> float:
        """Share of candidates that the checker could not decide on."""
        return self.n_failed / self.n_candidates


def rerank(
    candidates: Any,
    model: str | Path | StepScorer | None = None,
    *,
    scores: str | Path | None = None,
    out: str | Path | None = None,
    config: RerankConfig | None = None,
    format: str | None = None,
    image_root: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    tokens_per_batch: int | None = None,
    force: bool = False,
    watch: Watch = unwatched,
) -> Reranking:
    """Score candidates, choose the best of each question, and measure the choice.

    Parameters
    ----------
    candidates
        Whatever `mprm.annotation.candidates.read_candidates` takes.
    model
        Folder of a trained reward model, or anything that scores steps.
    scores
        ``scores.jsonl`` of an earlier run, instead of the model. Without either, the scores that the
        candidate files themselves hold are used.
    out
        Folder for scores.jsonl, chosen.jsonl, metrics.json, metrics.md and best_of_n.svg and .png.
    image_root, device, dtype, tokens_per_batch
        How a model is loaded from its folder: see `mprm.inference.prm.PRM.from_pretrained`.
    watch
        Shows how far the work is.
    """
    config = config or RerankConfig()
    if model is not None and scores is not None:
        raise ConfigError("give a model or saved scores, not both")
    folder = None if out is None else output_folder(out)
    saved = None if folder is None or model is None else folder / SCORES
    if folder is not None:
        refuse_outputs(folder, candidates, scores, saves_scores=saved is not None, force=force)
    sets = read_candidates(candidates, format=format)
    ns = _ns(sets, config.n)
    if folder is not None:
        make_folder(folder)  # before hours of scoring that would be in vain
    if isinstance(model, str | Path):
        from mprm.inference.prm import PRM

        for entry in sets:
            image_files(entry.question, image_root)  # none may be missing when hours are scored
        model = PRM.from_pretrained(
            model, image_root=image_root, device=device, dtype=dtype, tokens_per_batch=tokens_per_batch
        )
    step_scores = _step_scores(sets, model, scores, saved=saved, force=force, watch=watch)
    _refuse_unscored(step_scores)
    with watch("checking answers", _n_unlabelled(sets)) as advance:
        judged = judge_candidates(sets, timeout_s=config.timeout_s, on_checked=advance)
    found = _measured(sets, judged, step_scores, config, ns, watch)
    if folder is not None:
        from mprm.reranking.write import write

        write(found, folder, candidates=candidates, scores=scores or saved)
    return found


def _ns(sets: Sequence[CandidateSet], asked: tuple[int, ...]) -> tuple[int, ...]:
    """The values of N that every question has candidates for."""
    fewest = min(sets, key=lambda entry: len(entry.candidates))
    n_fewest = len(fewest.candidates)
    if asked and max(asked) > n_fewest:
        raise ConfigError(
            f"N = {max(asked)} needs as many candidates of every question; {fewest.place} has {n_fewest}."
            f" Ask for N up to {n_fewest}, or sample more"
        )
    return tuple(sorted(set(asked))) or powers_of_two(n_fewest)


def _n_unlabelled(sets: Sequence[CandidateSet]) -> int:
    return sum(candidate.is_correct is None for entry in sets for candidate in entry.candidates)


def _step_scores(
    sets: Sequence[CandidateSet],
    scorer: StepScorer | None,
    scores: str | Path | None,
    *,
    saved: Path | None,
    force: bool,
    watch: Watch,
) -> StepScores:
    """From the model, from saved scores, or from the candidate files themselves."""
    if scores is not None:
        return read_scores(str(scores), sets)
    if scorer is None:
        found = given_scores(sets)
        if found is None:
            raise ConfigError("name the reward model with --model DIR, or saved scores with --scores FILE")
        return found
    name = getattr(scorer, "name", type(scorer).__name__)
    fingerprint = getattr(scorer, "fingerprint", name)
    out = None if saved is None else str(saved)
    with watch("scoring", sum(len(entry.candidates) for entry in sets)) as advance:
        return score_candidates(
            sets, scorer, model=name, fingerprint=fingerprint, out=out, force=force, on_scored=advance
        )


def _refuse_unscored(found: StepScores) -> None:
    """Stop when there is nothing to choose by: every table would be one of ties."""
    candidates = [one for row in found.scores for one in row]
    if all(math.isnan(score) for one in candidates for score in one):
        raise DataError(
            f"{printable(found.model)}: no step of the {len(candidates):,} candidates has a score. Truncation cut all"
            " of them off, or the model gives nan: look at its weights and at the most tokens that it reads"
        )


def _outcome(entry: CandidateSet, judged: Sequence[Judged], step_scores: Sequence[Sequence[float]]) -> Outcome:
    return Outcome(
        source=entry.question.source,
        is_correct_M=np.array([one.verdict == "correct" for one in judged]),
        is_failed_M=np.array([one.verdict == "failed" for one in judged]),
        answers_M=answer_numbers(judged),
        scores_M={how: np.array([aggregate(one, how) for one in step_scores]) for how in AGGREGATES},
    )


def _measured(
    sets: Sequence[CandidateSet],
    judged: Sequence[Sequence[Judged]],
    step_scores: StepScores,
    config: RerankConfig,
    ns: tuple[int, ...],
    watch: Watch,
) -> Reranking:
    """The choices, their accuracy, and the counts that one must know to read it."""
    outcomes = [_outcome(*one) for one in zip(sets, judged, step_scores.scores, strict=True)]
    with watch("measuring", len(sets)) as advance:
        measured = best_of_n(
            outcomes,
            ns=ns,
            over=config.subsets,
            draws=config.draws,
            on_question=advance,
            aggregate=config.aggregate,
            seed=config.seed,
        )
    chosen = [
        chosen_of(entry, row, outcome.scores_M, aggregate=config.aggregate, seed=config.seed)
        for entry, row, outcome in zip(sets, judged, outcomes, strict=True)
    ]
    verdicts = [one for row in judged for one in row]
    candidates = [one for row in step_scores.scores for one in row]
    return Reranking(
        model=step_scores.model,
        config=config,
        ns=ns,
        n_candidates=len(candidates),
        n_failed=sum(one.verdict == "failed" for one in verdicts),
        n_answerless=sum(one.answer is None for one in verdicts),
        n_cut_steps=sum(math.isnan(score) for one in candidates for score in one),
        n_unscored=sum(all(map(math.isnan, one)) for one in candidates),
        measured=measured,
        chosen=chosen,
        sources=_sources(sets),
    )


def _sources(sets: Sequence[CandidateSet]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for entry in sets:
        counts = found.setdefault(entry.question.source, {"questions": 0, "candidates": 0})
        counts["questions"] += 1
        counts["candidates"] += len(entry.candidates)
    return found

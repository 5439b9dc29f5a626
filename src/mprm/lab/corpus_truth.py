"""Monte-Carlo labels against the truth, which the lab knows: how many positive steps are wrong, by their count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mprm.errors import DataError
from mprm.lab.world import judge_chain, problem_named
from mprm.rollouts.corpus import open_corpus
from mprm.theory import eta_eff
from mprm.theory.corpus_fit.fit_corpus import fit_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """Steps with k successful continuations."""

    k: int
    n_steps: int
    n_wrong: int
    """Of those that claim something, the ones that are wrong."""
    n_neutral: int
    """Of all, the ones that claim nothing."""
    eta_eff: float | None
    """The model's probability that their success rate is below `reliable`, by the corpus's prior, if it has one."""

    @property
    def wrong_share(self) -> float | None:
        """Of the steps that claim something; None where none does."""
        n = self.n_steps - self.n_neutral
        return self.n_wrong / n if n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusTruth:
    """A corpus of the lab beside the truth of its steps."""

    N: int
    reliable: float
    rows: tuple[TruthRow, ...]
    """For k from 0 to N."""


def corpus_truth(
    path: str | Path, *, reliable: float = 0.5, on_rollout: Callable[[], Any] | None = None
) -> CorpusTruth:
    """Judge every step of a corpus that was annotated from the lab's problems.

    Parameters
    ----------
    path
        What `mprm.lab.make.make_lab` calls ``corpus.jsonl``: its images are named after their problems.
    reliable
        See `mprm.theory.eta_eff`; there it is tau.
    on_rollout
        Called after each.
    """
    counts: Counter[tuple[int, str]] = Counter()
    numbers: set[int] = set()
    for rollout in open_corpus(path):
        if len(rollout.images) != 1:
            raise DataError(f"{path}: a rollout has {len(rollout.images)} images; the lab's have one, named after it")
        judged = judge_chain(problem_named(rollout.images[0]), [step.text for step in rollout.steps])
        for step, judgement in zip(rollout.steps, judged, strict=True):
            if step.n_total is None or step.n_correct is None:
                raise DataError(
                    f"{path}: a step of {rollout.images[0]} has no counts; annotate it with mprm annotate"
                )
            numbers.add(step.n_total)
            counts[step.n_correct, judgement] += 1
        if on_rollout is not None:
            on_rollout()
    if len(numbers) != 1:
        raise DataError(f"{path}: expected one number of continuations, found {sorted(numbers) or 'no rollout'}")
    n_continuations = numbers.pop()
    noise = _noise(path, n_continuations, reliable)
    rows = [
        TruthRow(
            k=k,
            n_steps=sum(counts[k, judgement] for judgement in ("correct", "incorrect", "neutral")),
            n_wrong=counts[k, "incorrect"],
            n_neutral=counts[k, "neutral"],
            eta_eff=noise[k],
        )
        for k in range(n_continuations + 1)
    ]
    return CorpusTruth(N=n_continuations, reliable=reliable, rows=tuple(rows))


def _noise(path: str | Path, n: int, reliable: float) -> list[float | None]:
    """``eta_eff`` of each count by the prior of the whole corpus; None where no prior fits it, as in a tiny one."""
    try:
        prior = fit_corpus(str(path), reliable=reliable).total.prior
    except DataError:
        prior = None
    if prior is None:
        return [None] * (n + 1)
    found: list[float | None] = eta_eff(range(n + 1), n, tau=reliable, a=prior.a, b=prior.b).tolist()
    return found

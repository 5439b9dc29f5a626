"""Monte-Carlo labels against the truth, which the lab knows: how many positive steps are wrong, by their count.

Some beginnings come up word for word in two rollouts of a problem. Each was continued anew, so that the second count
tells how well the first one foretells it: what the model says of a count is tried on counts that it has not seen.

"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mprm.data.corpus import open_corpus
from mprm.errors import DataError
from mprm.theory import eta_eff
from mprm.theory.fit_corpus import fit_corpus
from mprm_lab.world import judge_chain, problem_named


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
    n_again: int
    """Of all, the ones whose beginning another rollout has too: of each pair, the one that came first."""
    n_below: int
    """Of those, the ones whose second count is below `reliable` of N."""
    below: float | None
    """The model's probability of that, by the same prior."""

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
        What `mprm_lab.make.make_lab` calls ``corpus.jsonl``: its images are named after their problems.
    reliable
        See `mprm.theory.eta_eff`; there it is tau.
    on_rollout
        Called after each.
    """
    counts: Counter[tuple[int, str]] = Counter()
    numbers: set[int] = set()
    found: dict[tuple[str, ...], list[int]] = {}  # counts of each beginning
    for rollout in open_corpus(path):
        if len(rollout.images) != 1:
            raise DataError(f"{path}: a rollout has {len(rollout.images)} images; the lab's have one, named after it")
        texts = [step.text for step in rollout.steps]
        judged = judge_chain(problem_named(rollout.images[0]), texts)
        for n, (step, judgement) in enumerate(zip(rollout.steps, judged, strict=True), 1):
            if step.n_total is None or step.n_correct is None:
                raise DataError(
                    f"{path}: a step of {rollout.images[0]} has no counts; annotate it with mprm annotate"
                )
            numbers.add(step.n_total)
            counts[step.n_correct, judgement] += 1
            found.setdefault((rollout.images[0], *texts[:n]), []).append(step.n_correct)
        if on_rollout is not None:
            on_rollout()
    if len(numbers) != 1:
        raise DataError(f"{path}: expected one number of continuations, found {sorted(numbers) or 'no rollout'}")
    n_continuations = numbers.pop()
    below_from = sum(k / n_continuations < reliable for k in range(n_continuations + 1))
    pairs = Counter((first, second < below_from) for first, second, *_ in (one for one in found.values() if one[1:]))
    noise, below = _expected(path, n_continuations, reliable, below_from)
    rows = [
        TruthRow(
            k=k,
            n_steps=sum(counts[k, judgement] for judgement in ("correct", "incorrect", "neutral")),
            n_wrong=counts[k, "incorrect"],
            n_neutral=counts[k, "neutral"],
            eta_eff=noise[k],
            n_again=pairs[k, True] + pairs[k, False],
            n_below=pairs[k, True],
            below=below[k],
        )
        for k in range(n_continuations + 1)
    ]
    return CorpusTruth(N=n_continuations, reliable=reliable, rows=tuple(rows))


def _expected(path: str | Path, n: int, reliable: float, below_from: int) -> tuple[list[Any], list[Any]]:
    """What the prior of the whole corpus says of each count: ``eta_eff``, and that another count is below.

    None where no prior fits the corpus, as in a tiny one.
    """
    try:
        prior = fit_corpus(str(path), reliable=reliable).total.prior
    except DataError:
        prior = None
    if prior is None:
        return [None] * (n + 1), [None] * (n + 1)
    from scipy.stats import betabinom

    k = np.arange(n + 1)
    noise = eta_eff(k, n, tau=reliable, a=prior.a, b=prior.b)
    below = betabinom.cdf(below_from - 1, n, prior.a + k, prior.b + n - k)
    return noise.tolist(), below.tolist()

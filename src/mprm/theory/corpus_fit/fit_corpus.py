"""``mprm theory fit``: the paper's model of Monte-Carlo labels, fitted to a corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mprm.engines.engine import EngineName, make_engine
from mprm.errors import ConfigError, DataError
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.corpus import Corpus, open_corpus
from mprm.rollouts.dropped import DroppedRecords
from mprm.scores.label_counts import ROLLOUT
from mprm.selection.config import DEFAULT_RHO, SelectConfig, StrategyName
from mprm.selection.keep_top import Ranking, keep_top
from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import IntArray, eta_eff, posterior_mean
from mprm.theory.corpus_fit.infer_continuations import infer_continuations
from mprm.theory.corpus_fit.prior_fit import (
    Counts,
    Prior,
    fitted_prior,
    pseudo_positives,
    with_covariance,
)
from mprm.theory.corpus_fit.results import CorpusFit, NoiseRow, SourceFit, SubsetNoise
from mprm.theory.corpus_fit.step_counts import StepCounts, count_corpus_steps
from mprm.theory.prior_interval import likelihood_slopes

SCORE_TOLERANCE = 1e-5
"""How far a score may be from k/N."""
MOST_CONTINUATIONS = 2**32 - 1
"""As many as a count in a file may be."""
MOST_ROWS = 256
"""Of the table of noise; with more continuations it has the counts that occur."""


def fit_corpus(
    paths: Any,
    *,
    rho: float = DEFAULT_RHO,
    alpha: float = 0.05,
    tau: float = 0.0,
    reliable: float = 0.5,
    seed: int = 0,
    continuations: int | None = None,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> CorpusFit:
    """Fit Beta priors to a corpus's counts, and tell how many positive steps they expect to be pseudo-positive.

    Success rates are ``r ~ Beta(a, b)``, overall and in each source; a and b are those of most likelihood given the
    steps' counts. Intervals allow for any dependence between the steps of a rollout. A positive step with k
    successes is pseudo-positive with probability ``eta_eff(k) = Pr(r < reliable | k)``.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    rho, alpha, tau, seed
        Of the strategies' subsets; see `mprm.select`.
    reliable
        A step is reliable when its success rate is at least this, the paper's tau of section 3.3.
    continuations
        How many lie behind each score, where the files do not say and the scores' grid must not tell.

    Examples
    --------
    >>> steps = [{"step": "s", "score": k / 4, "num_mc_correct": k, "num_mc_total": 4} for k in (0, 1, 2, 3, 4)]
    >>> rollouts = [{"question": "?", "steps_with_score": steps}] * 40
    >>> prior = fit_corpus(rollouts, text_only=True).total.prior
    >>> round(prior.a, 3), round(prior.b, 3)  # all counts equally often: the uniform prior
    (1.0, 1.0)
    """
    if not 0 < reliable < 1:
        raise ConfigError(f"reliable must be in (0, 1), got {reliable}")
    if continuations is not None and not 2 <= continuations <= MOST_CONTINUATIONS:
        raise ConfigError(f"continuations must be at least 2 and at most {MOST_CONTINUATIONS}, got {continuations}")
    strategies: tuple[StrategyName, ...] = get_args(StrategyName)
    config = SelectConfig(strategy=strategies, rho=(rho,), alpha=alpha, tau=tau, seed=seed)
    corpus = open_corpus(paths, format=format, text_only=text_only)
    _refuse_hard_labels(corpus)
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    dropped = DroppedRecords()
    steps = count_corpus_steps(corpus, worker, tau=tau, on_bad=dropped if skip_bad else None, on_chunk=on_chunk)
    return _Fit(steps, config, reliable, continuations).corpus_fit(len(dropped))


def _refuse_hard_labels(corpus: Corpus) -> None:
    for path, fmt in corpus.formats.items():
        if fmt.labels == "binary":
            raise DataError(
                f"{path}: {fmt.title} holds right or wrong for each step and no MC scores; hard labels do not tell"
                " how success rates vary; fit to the rollouts that the labels were made of"
            )


class _Fit:
    """The tables behind the fit: a row a source, a column a kind of step."""

    def __init__(self, steps: StepCounts, config: SelectConfig, reliable: float, given: int | None) -> None:
        self.steps, self.config, self.reliable = steps, config, reliable
        self.histogram = steps.histogram()
        if not self.histogram.any():
            raise DataError("there is nothing to fit: the corpus has no good rollout; mprm check says why")
        self.score = np.array([score for score, _ in steps.kinds])
        self.is_positive = self.score > config.tau
        self.is_inferred = np.zeros(len(self.histogram), np.bool_)
        self.k, self.n = self._counts(given)

    def _counts(self, given: int | None) -> tuple[IntArray, IntArray]:
        """Successes and continuations of each source's kinds, shapes (sources, kinds)."""
        unknown = np.array([n is None for _, n in self.steps.kinds])
        n = np.array([n or 0 for _, n in self.steps.kinds], np.int64)
        all_n = np.broadcast_to(n, self.histogram.shape).copy()
        if unknown.any():
            own = infer_continuations(
                self.score[unknown], self.histogram[:, unknown], self.steps.labels.sources, given
            )
            all_n[:, unknown] = own[:, None]
            self.is_inferred = (own > 0) & (given is None)
        k = np.round(self.score * n).astype(np.int64)
        off = ~unknown & (np.abs(self.score - k / np.maximum(n, 1)) > SCORE_TOLERANCE)
        if off.any():
            raise DataError(
                f"{self.steps.where(int(np.flatnonzero(off)[0]))}: a step has score {self.score[off][0]:g} of"
                f" {n[off][0]} continuations; no number of successes gives it. Write the number (num_mc_correct) and"
                " the score to six digits, or leave num_mc_total out and name it with --continuations"
            )
        k = np.round(self.score * all_n).astype(np.int64)
        # a source's grid says nothing of the scores that only other sources have
        return np.where(self.histogram > 0, k, 0), np.where(self.histogram > 0, all_n, 0)

    def counts(self, source: int | None) -> Counts:
        """The counts of a source, or of all."""
        chosen = slice(None) if source is None else [source]
        steps = self.histogram[chosen].ravel()
        is_positive = np.broadcast_to(self.is_positive, self.histogram.shape)[chosen].ravel()
        seen = steps > 0
        return Counts(
            k=self.k[chosen].ravel()[seen],
            n=self.n[chosen].ravel()[seen],
            steps=steps[seen],
            is_positive=is_positive[seen].astype(np.float64),
        )

    def corpus_fit(self, n_dropped: int) -> CorpusFit:
        """Everything that the fit tells."""
        names = self.steps.labels.sources
        whole = self.counts(None)
        found = fitted_prior(whole)
        if isinstance(found, str):
            raise DataError(f"no Beta prior fits the corpus: {found}")
        each = [fitted_prior(self.counts(number)) for number in range(len(names))]
        priors = self._with_intervals(found, each)
        overall = priors[-1]
        if isinstance(overall, str):
            raise DataError(f"no Beta prior fits the corpus: {overall}")
        n_rollouts = self.steps.labels.n_lines(ROLLOUT)
        sources = [
            self._source(name, number, n_rollouts[name], priors[number], overall)
            for number, name in enumerate(names)
            if n_rollouts[name]
        ]
        numbers, place = np.unique(whole.n, return_inverse=True)
        N = int(numbers[np.bincount(place, whole.steps * (whole.n > 0)).argmax()])
        return CorpusFit(
            total=self._source("all", None, sum(n_rollouts.values()), overall, overall),
            sources=sources,
            N=N,
            noise=self._noise(whole, N, overall),
            subsets=self._subsets(priors),
            rho=self.config.rho[0],
            reliable=self.reliable,
            n_dropped=n_dropped,
        )

    def _with_intervals(
        self, overall: tuple[float, float], each: list[tuple[float, float] | str]
    ) -> list[Prior | str]:
        """The priors of all sources, and last that of the corpus, with their covariances."""
        slopes = np.zeros((*self.histogram.shape, 4))
        for number, prior in enumerate(each):
            k, n = self.k[number], self.n[number]
            slopes[number, :, 2:] = likelihood_slopes(k, n, a=overall[0], b=overall[1])
            if not isinstance(prior, str):
                slopes[number, :, :2] = likelihood_slopes(k, n, a=prior[0], b=prior[1])
        squares = np.zeros((len(each), 2, 2))
        n_rollouts = self.steps.labels.n_lines(ROLLOUT)
        square_of_all = np.zeros((2, 2))
        for source, sums in self.steps.by_rollout(slopes):
            square_of_all += sums[:, 2:].T @ sums[:, 2:]
            for number in np.unique(source).tolist():
                own = sums[source == number, :2]
                squares[number] += own.T @ own
        found: list[Prior | str] = [
            prior
            if isinstance(prior, str)
            else with_covariance(self.counts(number), prior, squares[number], n_rollouts[name])
            for number, (name, prior) in enumerate(zip(self.steps.labels.sources, each, strict=True))
        ]
        whole = with_covariance(self.counts(None), overall, square_of_all, sum(n_rollouts.values()))
        return [*found, whole]

    def _source(
        self, name: str, source: int | None, n_rollouts: int, prior: Prior | str, overall: Prior
    ) -> SourceFit:
        counts = self.counts(source)
        own = None if isinstance(prior, str) else prior
        sampled = counts.n > 0
        return SourceFit(
            name=name,
            n_rollouts=n_rollouts,
            n_steps=int(counts.steps.sum()),
            n_unsampled=int(counts.steps[~sampled].sum()),
            continuations=tuple(np.unique(counts.n[sampled]).tolist()),
            is_inferred=bool(self.is_inferred.any() if source is None else self.is_inferred[source]),
            prior=own,
            why_no_prior=prior if isinstance(prior, str) else "",
            negative=float(counts.steps[sampled & (counts.k == 0)].sum() / max(1, counts.n_sampled)),
            expected_negative=None if own is None else own.expected_negative(counts),
            pseudo_positive=pseudo_positives(counts, own or overall, tau=self.reliable),
        )

    def _noise(self, whole: Counts, N: int, prior: Prior) -> list[NoiseRow]:
        seen, place = np.unique(whole.k[whole.n == N], return_inverse=True)
        k = np.arange(N + 1) if N <= MOST_ROWS else seen
        steps = np.zeros(len(k))
        steps[np.searchsorted(k, seen)] = np.bincount(place, whole.steps[whole.n == N])
        means = posterior_mean(k, N, a=prior.a, b=prior.b)
        noise = eta_eff(k, N, tau=self.reliable, a=prior.a, b=prior.b)
        rows = zip(k.tolist(), steps.tolist(), means.tolist(), noise.tolist(), strict=True)
        return [NoiseRow(k=k, steps=int(n), posterior_mean=mean, eta_eff=eta) for k, n, mean, eta in rows]

    def _subsets(self, priors: list[Prior | str]) -> list[SubsetNoise]:
        """Expected pseudo-positives of all rollouts and of each strategy's, each step by its source's prior."""
        noise = np.zeros(self.histogram.shape)
        for number, prior in enumerate(priors[:-1]):
            used = priors[-1] if isinstance(prior, str) else prior
            assert isinstance(used, Prior)
            noise[number] = eta_eff(self.k[number], self.n[number], tau=self.reliable, a=used.a, b=used.b)
        noise *= self.is_positive
        labels, config = self.steps.labels, self.config
        found = [_subset_noise("all", sum(labels.n_lines(ROLLOUT).values()), self.histogram, noise, self.is_positive)]
        for strategy in config.strategy:
            ranking = Ranking(strategy=strategy, alpha=config.alpha, seed=config.seed, ties=config.ties)
            kept = keep_top(labels, ranking, lambda source, n: config.n_keep(config.rho[0], source, n))
            n_kept = sum(int(kept.between(start, start + len(rows)).sum()) for start, rows in labels.blocks())
            found.append(_subset_noise(strategy, n_kept, self.steps.histogram(kept.between), noise, self.is_positive))
        return found


def _subset_noise(
    strategy: str, n_rollouts: int, histogram: NDArray[np.int64], noise: FloatArray, is_positive: NDArray[np.bool_]
) -> SubsetNoise:
    n_steps, n_positive = int(histogram.sum()), int(histogram[:, is_positive].sum())
    expected = float(np.sum(histogram * noise))
    return SubsetNoise(
        strategy=strategy,
        n_rollouts=n_rollouts,
        n_steps=n_steps,
        n_positive=n_positive,
        pseudo_positive=expected / max(1, n_positive),
        of_all_steps=expected / max(1, n_steps),
    )

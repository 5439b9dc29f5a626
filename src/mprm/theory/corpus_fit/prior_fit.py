"""A Beta prior fitted to the counts of some steps, with what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mprm.errors import DataError
from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import IntArray, all_fail, eta_eff
from mprm.theory.fit_beta import REMEDY, fit_beta
from mprm.theory.prior_interval import (
    Z_95,
    few_rollouts_factor,
    log_interval,
    observed_information,
    prior_covariance,
)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of some steps, as a histogram; shapes (kinds,)."""

    k: IntArray
    n: IntArray
    steps: IntArray
    """How many steps have them."""
    is_positive: FloatArray
    """1 where the label is positive, else 0."""

    @property
    def n_positive(self) -> float:
        """How many steps have a positive label."""
        return float(self.steps @ self.is_positive)

    @property
    def n_sampled(self) -> int:
        """How many steps have continuations."""
        return int(self.steps[self.n > 0].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A fitted prior and the covariance of its logarithms."""

    a: float
    b: float
    covariance: FloatArray
    """Of (log a, log b), shape (2, 2)."""

    @property
    def a_interval(self) -> Interval:
        """95% interval of a."""
        return log_interval(self.a, self.covariance[0, 0])

    @property
    def b_interval(self) -> Interval:
        """95% interval of b."""
        return log_interval(self.b, self.covariance[1, 1])

    @property
    def mean(self) -> float:
        """Mean success rate, ``a / (a + b)``."""
        return self.a / (self.a + self.b)

    def expected_negative(self, counts: Counts) -> float:
        """Share of the sampled steps that the prior expects to fail in all their continuations."""
        sampled = counts.n > 0
        fails = all_fail(0, counts.n[sampled], a=self.a, b=self.b)
        return float(counts.steps[sampled] @ fails / counts.n_sampled)


def fitted_prior(counts: Counts) -> tuple[float, float] | str:
    """The prior of most likelihood, or why there is none."""
    try:
        return fit_beta(counts.k, counts.n, counts.steps)
    except DataError as error:
        return str(error).removesuffix(f"; {REMEDY}")  # there is nothing to give


def with_covariance(
    counts: Counts, prior: tuple[float, float], slopes_of_rollouts: FloatArray, n_rollouts: int
) -> Prior | str:
    """The prior with its covariance, or why there is none; see `mprm.theory.prior_interval.prior_covariance`."""
    a, b = prior
    if n_rollouts < 2:
        return "there is only one rollout, and nothing tells how rollouts vary"
    information = observed_information(counts.k, counts.n, counts.steps, a=a, b=b)
    if np.linalg.eigvalsh(information)[0] <= 0:
        return f"the likelihood has no peak at a = {a:g}, b = {b:g}; there are too few steps"
    factor = few_rollouts_factor(n_rollouts)
    return Prior(a=a, b=b, covariance=factor * prior_covariance(information, slopes_of_rollouts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoPositives:
    """Expected share of pseudo-positives among positive steps."""

    share: float
    """0 where there are no positive steps."""
    interval: Interval
    """95%, from the prior's uncertainty alone."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"share": self.share, "interval": self.interval}


def pseudo_positives(counts: Counts, prior: Prior, *, tau: float) -> PseudoPositives:
    """Mean of ``eta_eff(k)`` over positive steps, with an interval by the delta method."""
    if not counts.n_positive:
        return PseudoPositives(share=0.0, interval=(0.0, 0.0))

    def share(log_a: float, log_b: float) -> float:
        noise = eta_eff(counts.k, counts.n, tau=tau, a=float(np.exp(log_a)), b=float(np.exp(log_b)))
        return float((counts.steps * counts.is_positive) @ noise / counts.n_positive)

    log_a, log_b, h = float(np.log(prior.a)), float(np.log(prior.b)), 1e-4
    slope = np.array(
        [
            share(log_a + h, log_b) - share(log_a - h, log_b),
            share(log_a, log_b + h) - share(log_a, log_b - h),
        ]
    ) / (2 * h)
    value = share(log_a, log_b)
    half = Z_95 * float(np.sqrt(slope @ prior.covariance @ slope))
    return PseudoPositives(share=value, interval=(max(0.0, value - half), min(1.0, value + half)))

"""Success rates that may lie behind the counts of an annotated corpus, to try sampling budgets on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mprm.errors import DataError
from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import IntArray, all_fail, fit_beta


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRates:
    """How success rates are distributed: 0 with probability ``zero``, else Beta(a, b).

    A wrong step never succeeds, and no Beta has both a lump at 0 and one near 1 with little between.
    """

    zero: float
    a: float
    b: float

    def p_never(self, n: int) -> float:
        """Probability that a step with n failures of n is one that never succeeds."""
        by_chance = (1 - self.zero) * float(all_fail(0, n, a=self.a, b=self.b))
        return self.zero / (self.zero + by_chance)

    def draw(self, k: IntArray, n: int, rng: np.random.Generator) -> FloatArray:
        """A success rate for each step from its posterior, given k successes of n; shape (S,)."""
        r = rng.beta(self.a + k, self.b + n - k)
        never: NDArray[np.bool_] = (k == 0) & (rng.random(len(k)) < self.p_never(n))
        return np.where(never, 0.0, r)


def fit_success_rates(k: IntArray, n: int, *, rounds: int = 100) -> SuccessRates:
    """The distribution under which these counts of n are most likely, by expectation-maximization.

    Each round asks how many of the steps without a success never succeed, and fits the Beta to the others.
    """
    counts = np.bincount(k, minlength=n + 1).astype(np.float64)
    if len(counts) > n + 1:
        raise DataError(f"a step has {len(counts) - 1} successes of {n}")
    values, n_steps = np.arange(n + 1), counts.sum()
    rates = SuccessRates(zero=counts[0] / n_steps / 2, a=1.0, b=1.0)
    for _ in range(rounds):
        n_never = counts[0] * rates.p_never(n)
        a, b = fit_beta(values, np.full_like(values, n), counts - np.where(values == 0, n_never, 0.0))
        rates = SuccessRates(zero=n_never / n_steps, a=a, b=b)
    return rates

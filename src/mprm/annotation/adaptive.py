"""How many continuations a step needs: sample in rounds, and stop once its label and reliability are decided.

The model is the paper's: a step's success rate is ``r ~ Beta(a, b)``, of n continuations
``k ~ Binomial(n, r)`` succeed, and so ``r | k ~ Beta(a + k, b + n - k)``. What the rule decides at any
round holds whatever made it stop there: a posterior does not depend on the stopping rule.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mprm.errors import ConfigError, DataError
from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import IntArray, all_fail, checked_counts, eta_eff

Decision = Literal["positive-reliable", "positive-unreliable", "negative", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRule:
    """When a step has enough continuations.

    The default prior is uniform: it prefers no success rate, and one success or failure moves it as much
    as the next. `mprm.theory.beta_binomial.fit_beta` takes another from counts that were sampled before.

    Examples
    --------
    >>> rule = AdaptiveRule()
    >>> rule.decision(4, 4), rule.next(4, 4), rule.decision(3, 4), rule.next(3, 4)
    ('positive-reliable', 0, 'undecided', 4)
    """

    n_max: int = 16
    """Most continuations of a step, the paper's N."""
    round: int = 4
    """Continuations that are sampled before the next look."""
    tau: float = 0.5
    """A step is reliable when its success rate is at least tau; not the threshold of labels, which is 0."""
    delta: float = 0.05
    """Accepted probability of being wrong, of each decision; in (0, 0.5)."""
    a: float = 1.0
    """Of the Beta prior: larger expects more successes."""
    b: float = 1.0
    """Of the Beta prior: larger expects more failures."""

    def __post_init__(self) -> None:
        for name in ("n_max", "round"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 0 < self.tau < 1:
            raise ConfigError(f"the reliability threshold tau must be in (0, 1), got {self.tau}")
        if not 0 < self.delta < 0.5:
            raise ConfigError(f"delta must be in (0, 0.5), got {self.delta}")
        if not (0 < self.a < np.inf and 0 < self.b < np.inf):
            raise ConfigError(f"the prior's a and b must be above 0, got a = {self.a}, b = {self.b}")

    def decision(self, k: int, n: int) -> Decision:
        """What is known of a step with k successes of n.

        - ``negative``: ``k = 0``, and ``all_fail(n, n_max) >= 1 - delta``
        - ``positive-reliable``: ``k > 0``, and ``eta_eff(k, n) <= delta``
        - ``positive-unreliable``: ``k > 0``, and ``eta_eff(k, n) >= 1 - delta``
        - ``undecided``: none of them. After n_max continuations such a step is positive all the same.
        """
        if n == 0:
            return "undecided"  # a prior alone labels nothing
        if k == 0:
            if n >= self.n_max or all_fail(n, self.n_max, a=self.a, b=self.b) >= 1 - self.delta:
                return "negative"
            return "undecided"
        noise = eta_eff(k, n, tau=self.tau, a=self.a, b=self.b)
        if noise <= self.delta:
            return "positive-reliable"
        return "positive-unreliable" if noise >= 1 - self.delta else "undecided"

    def next(self, k: int, n: int) -> int:
        """How many more continuations to sample now; 0 when the step is decided or its budget spent."""
        if n >= self.n_max or self.decision(k, n) != "undecided":
            return 0
        return min(self.round, self.n_max - n)


def expected_disagreement(k: ArrayLike, n: ArrayLike, rule: AdaptiveRule) -> FloatArray:
    """Probability that n_max continuations would give the other hard label than these n; in [0, 1).

    0 where ``k > 0``, for the label is positive whatever follows; else ``1 - all_fail(n, n_max)``.

    Examples
    --------
    >>> expected_disagreement([0, 1], [12, 12], AdaptiveRule()).round(4).tolist()  # 4/17 and 0
    [0.2353, 0.0]
    """
    k, n = checked_counts(k, n)
    return np.where(k > 0, 0.0, 1 - all_fail(n, rule.n_max, a=rule.a, b=rule.b))


def replay(outcomes_S_N: NDArray[np.bool_], rule: AdaptiveRule) -> tuple[IntArray, IntArray]:  # noqa: N803 - axes
    """Successes and continuations of each step, had the rule sampled these outcomes in order; shapes (S,).

    Parameters
    ----------
    outcomes_S_N : shape (steps, n_max)
        Whether each continuation of each step succeeds.

    Examples
    --------
    >>> k, n = replay(np.array([[True] * 16, [False] * 16]), AdaptiveRule())
    >>> k.tolist(), n.tolist()
    ([4, 0], [4, 16])
    """
    n_steps, n_drawn = outcomes_S_N.shape
    if n_drawn != rule.n_max:
        raise DataError(f"each step has {n_drawn} outcomes; the rule samples up to {rule.n_max}")
    k, n = np.zeros(n_steps, np.int64), np.zeros(n_steps, np.int64)
    asked = 0
    while asked < rule.n_max:
        goes_on = np.array([rule.next(successes, asked) > 0 for successes in range(asked + 1)])
        open_steps = np.flatnonzero((n == asked) & goes_on[k])
        end = min(asked + rule.round, rule.n_max)
        k[open_steps] += outcomes_S_N[open_steps, asked:end].sum(axis=1)
        n[open_steps] = asked = end
    return k, n

"""How many continuations a step needs: sample in rounds, and stop once its label and reliability are decided.

The model is the paper's: a step's success rate is ``r ~ Beta(a, b)``, of n continuations
``k ~ Binomial(n, r)`` succeed, and so ``r | k ~ Beta(a + k, b + n - k)``. What the rule decides at any
round holds whatever made it stop there: a posterior does not depend on the stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mprm.errors import ConfigError, DataError, MissingDependencyError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Decision = Literal["positive-reliable", "positive-unreliable", "negative", "undecided"]

PRIOR_RANGE = (1e-3, 1e4)
"""Where a and b are looked for; a fit that leans on an end has no maximum inside."""
REMEDY = "fit to more steps, or give a and b"


def _scipy_special() -> ModuleType:
    try:
        from scipy import special
    except ImportError as error:
        raise MissingDependencyError(
            "an adaptive budget needs SciPy: pip install scipy, or install mprm with its extra [annotate]"
        ) from error
    return special  # type: ignore[no-any-return]


def eta_eff(k: ArrayLike, n: ArrayLike, *, tau: float, a: float, b: float) -> FloatArray:
    """Posterior probability that a step is not tau-reliable, the paper's effective noise; in [0, 1].

    ``eta_eff(k, n) = Pr(r < tau | k of n) = I_tau(a + k, b + n - k)``, with I the regularized incomplete
    beta function; strictly decreasing in k.

    Parameters
    ----------
    k, n : any shapes that broadcast
        Successes; continuations.
    tau
        A step is reliable when r is at least tau.
    a, b
        The Beta prior of r.

    Examples
    --------
    >>> eta_eff([3, 4], 4, tau=0.5, a=1, b=1).tolist()  # 6/32 and 1/32
    [0.1875, 0.03125]
    """
    k, n = _checked_counts(k, n)
    noise: FloatArray = _scipy_special().betainc(a + k, b + n - k, tau)
    return noise


def all_fail(n: ArrayLike, n_max: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Probability that after n failures in a row all continuations up to n_max fail as well; in (0, 1].

    ``Pr(k = 0 of n_max | k = 0 of n) = B(a, b + n_max) / B(a, b + n)``, with B the beta function;
    rises with n to 1 at n_max.

    Parameters
    ----------
    n, n_max : any shapes that broadcast
        Failures so far; continuations in all.
    a, b
        The Beta prior of r.

    Examples
    --------
    >>> round(float(all_fail(12, 16, a=1, b=1)), 4)  # 13/17
    0.7647
    """
    n, n_max = _checked_counts(n, n_max)
    betaln = _scipy_special().betaln
    probability: FloatArray = np.exp(betaln(a, b + n_max) - betaln(a, b + n))
    return probability


def _checked_counts(k: ArrayLike, n: ArrayLike) -> tuple[IntArray, IntArray]:
    """Both as arrays; refuses counts that cannot be."""
    part, whole = np.asarray(k), np.asarray(n)
    for array in (part, whole):
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise DataError(f"counts must be whole numbers, got {array.dtype}")
    if np.any(part < 0) or np.any(part > whole):
        raise DataError("every count must be at least 0 and at most the number it is counted out of")
    return part.astype(np.int64), whole.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRule:
    """When a step has enough continuations.

    The default prior is uniform: it prefers no success rate, and one success or failure moves it as much
    as the next. `fit_beta` takes another from counts that were sampled before.

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
    k, n = _checked_counts(k, n)
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


def fit_beta(k: ArrayLike, n: ArrayLike, counts: ArrayLike | None = None) -> tuple[float, float]:
    """The Beta prior ``(a, b)`` under which these counts are most likely.

    Maximizes the Beta-Binomial likelihood, ``sum log B(a + k, b + n - k) - log B(a, b)``, over log a and
    log b. Steps that were never sampled (``n = 0``) weigh nothing, for their likelihood is 1 under any prior.

    Parameters
    ----------
    k, n : shape (S,)
        Successes; continuations, not necessarily the same number for all steps.
    counts : shape (S,)
        How many steps each pair stands for, to fit a histogram; one each when None.

    Raises
    ------
    DataError
        No prior is the most likely one: all continuations succeed or all fail, no step has two of them,
        or the success rates vary less than a Binomial, or more than any Beta.

    Examples
    --------
    >>> a, b = fit_beta([0, 1, 2, 3, 4], [4, 4, 4, 4, 4], counts=[20, 20, 20, 20, 20])
    >>> round(a, 3), round(b, 3)  # all counts equally likely: the uniform prior
    (1.0, 1.0)
    """
    special = _scipy_special()
    from scipy.optimize import minimize

    k, n, weight = _histogram(k, n, counts)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        a, b = np.exp(logs)
        value = weight @ (special.betaln(a, b) - special.betaln(a + k, b + n - k))
        both = special.digamma(a + b + n) - special.digamma(a + b)
        slope_a = weight @ (both + special.digamma(a) - special.digamma(a + k))
        slope_b = weight @ (both + special.digamma(b) - special.digamma(b + n - k))
        return float(value), np.array([a * slope_a, b * slope_b])

    ends = np.log(PRIOR_RANGE)
    found = minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[ends, ends], options={"ftol": 1e-14, "gtol": 1e-9}
    )
    a, b = np.exp(found.x).tolist()
    if found.x.max() > ends[1] - 1e-6:
        raise DataError(f"success rates vary no more than chance does: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    if found.x.min() < ends[0] + 1e-6:
        raise DataError(f"success rates are nearly all 0 or 1: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    return a, b


def _histogram(k: ArrayLike, n: ArrayLike, counts: ArrayLike | None) -> tuple[IntArray, IntArray, FloatArray]:
    """Distinct pairs and the share of steps that each stands for; refuses counts that tell of no prior."""
    k, n = np.broadcast_arrays(*_checked_counts(k, n))
    times = np.broadcast_to(np.asarray(1.0 if counts is None else counts, np.float64), k.shape)
    if np.any(times < 0) or not np.all(np.isfinite(times)):
        raise DataError("how many steps a pair stands for must be a number of at least 0")
    seen = (n > 0) & (times > 0)
    pairs, place = np.unique(np.stack([k[seen], n[seen]]), axis=1, return_inverse=True)
    weight: FloatArray = np.bincount(place.ravel(), times[seen], minlength=pairs.shape[1]).astype(np.float64)
    if not np.any(pairs[1] > 1):
        raise DataError(f"no step has two continuations or more, so nothing tells how success rates vary; {REMEDY}")
    n_good, n_all = weight @ pairs[0], weight @ pairs[1]
    if n_good in (0, n_all):
        every = "fails" if n_good == 0 else "succeeds"
        raise DataError(f"every continuation {every}, so no prior is the most likely one; {REMEDY}")
    return pairs[0], pairs[1], weight / weight.sum()

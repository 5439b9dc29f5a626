"""What a step's count of successes tells of its success rate (section 3.3 and its appendix).

The Beta-Binomial model: posterior and effective noise under a prior, the prior of most likelihood (empirical Bayes),
and how certain a fitted prior is. Throughout, k of n continuations of a step succeed, arrays of any shapes that
broadcast; its success rate r is ``Beta(a, b)``; and it is reliable when r is at least tau.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mprm.errors import DataError, imported
from mprm.theory.equations import FloatArray, IntArray

Parameter = float | FloatArray


def scipy_special() -> Any:
    """SciPy's special functions, or an error that says what to install."""
    remedy = "pip install scipy, or install mprm with its extra [theory]"
    return imported("scipy", f"the Beta-Binomial model needs SciPy: {remedy}").special


def posterior_mean(k: ArrayLike, n: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Expected success rate of a step with k successes of n, ``(a + k) / (a + b + n)``; in (0, 1)."""
    k, n = checked_counts(k, n)
    return (a + k) / (a + b + n)


def eta_eff(k: ArrayLike, n: ArrayLike, *, tau: float, a: Parameter, b: Parameter) -> FloatArray:
    """Posterior probability that a step is not tau-reliable, the paper's effective noise; in [0, 1].

    ``Pr(r < tau | k of n) = I_tau(a + k, b + n - k)``, I the regularized incomplete beta function; decreasing in k.

    >>> eta_eff([3, 4], 4, tau=0.5, a=1, b=1).tolist()  # 6/32 and 1/32
    [0.1875, 0.03125]
    """
    k, n = checked_counts(k, n)
    noise: FloatArray = scipy_special().betainc(a + k, b + n - k, tau)
    return noise


def all_fail(n: ArrayLike, n_max: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Probability that after n failures in a row all continuations up to n_max fail as well; in (0, 1].

    ``Pr(k = 0 of n_max | k = 0 of n) = B(a, b + n_max) / B(a, b + n)``, B the beta function; rises with n to 1.
    """
    n, n_max = checked_counts(n, n_max)
    betaln = scipy_special().betaln
    probability: FloatArray = np.exp(betaln(a, b + n_max) - betaln(a, b + n))
    return probability


def pseudo_positive_share(n: ArrayLike, *, tau: float, a: float, b: float) -> FloatArray:
    """Expected share of positive steps (``k > 0``) that are not tau-reliable (``r < tau``); in (0, 1).

    ``(I_tau(a, b) - f I_tau(a, b + n)) / (1 - f)``, with ``f = Pr(k = 0) = B(a, b + n) / B(a, b)``. The mean of
    `eta_eff` over positive steps; rises with n, for more continuations find the rare success of more steps.

    >>> pseudo_positive_share([1, 16], tau=0.5, a=1, b=1).round(4).tolist()  # 1/4; (1/2 - 1/17) / (16/17)
    [0.25, 0.4688]
    """
    _, n = checked_counts(1, n)
    betainc = scipy_special().betainc
    fails = all_fail(0, n, a=a, b=b)
    share: FloatArray = (betainc(a, b, tau) - fails * betainc(a, b + n, tau)) / (1 - fails)
    return share


def checked_counts(k: ArrayLike, n: ArrayLike) -> tuple[IntArray, IntArray]:
    """Both as arrays; an error where they cannot be counts."""
    part, whole = np.asarray(k), np.asarray(n)
    for array in (part, whole):
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise DataError(f"counts must be whole numbers, got {array.dtype}")
    if np.any(part < 0) or np.any(part > whole):
        raise DataError("every count must be at least 0 and at most the number it is counted out of")
    return part.astype(np.int64), whole.astype(np.int64)


PRIOR_RANGE = (1e-3, 1e4)
"""Range of a and b; a fit at an end has no maximum inside."""
REMEDY = "fit to more steps, or give a and b"


def fit_beta(k: ArrayLike, n: ArrayLike, counts: ArrayLike | None = None) -> tuple[float, float]:
    """The Beta prior ``(a, b)`` under which these counts are most likely.

    Maximizes the Beta-Binomial likelihood, ``sum log B(a + k, b + n - k) - log B(a, b)``, over log a and
    log b. Steps that were never sampled (``n = 0``) weigh nothing, for their likelihood is 1 under any prior.

    k, n and counts have shape (S,); n may differ between steps. ``counts`` is how many steps each pair stands for,
    to fit a histogram; one each when None. A `DataError` says that no prior is the most likely one: all continuations
    succeed or all fail, no step has two of them, or success rates vary less than a Binomial, or more than any Beta.

    >>> a, b = fit_beta([0, 1, 2, 3, 4], [4, 4, 4, 4, 4], counts=[20, 20, 20, 20, 20])
    >>> round(a, 3), round(b, 3)  # all counts equally likely: the uniform prior
    (1.0, 1.0)
    """
    special = scipy_special()
    from scipy.optimize import minimize

    k, n, weight = _histogram(k, n, counts)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        a, b = np.exp(logs)
        value = weight @ (special.betaln(a, b) - special.betaln(a + k, b + n - k))
        return float(value), -weight @ likelihood_slopes(k, n, a=a, b=b)

    ends = np.log(PRIOR_RANGE)
    settings = {"bounds": [ends, ends], "options": {"ftol": 1e-14, "gtol": 1e-9}}
    minimized = partial(minimize, loss, jac=True, method="L-BFGS-B", **settings)
    best = minimized(np.zeros(2))
    # a likelihood that rises to an end does so ever more slowly, and the search stops on the way: start there too
    for start in (best.x - best.x.max() + ends[1], best.x - best.x.min() + ends[0]):
        other = minimized(np.clip(start, *ends))
        if other.fun <= best.fun:
            best = other
    a, b = np.exp(best.x).tolist()
    if best.x.max() > ends[1] - 1e-6:
        raise DataError(f"success rates vary no more than chance does: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    if best.x.min() < ends[0] + 1e-6:
        raise DataError(f"success rates are nearly all 0 or 1: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    return a, b


def _histogram(k: ArrayLike, n: ArrayLike, counts: ArrayLike | None) -> tuple[IntArray, IntArray, FloatArray]:
    """Distinct pairs and the share of steps that each stands for; stops where counts tell of no prior."""
    k, n = np.broadcast_arrays(*checked_counts(k, n))
    times = np.broadcast_to(np.asarray(1.0 if counts is None else counts, np.float64), k.shape)
    if np.any(times < 0) or not np.all(np.isfinite(times)):
        raise DataError("how many steps a pair stands for must be a number of at least 0")
    seen = (n > 0) & (times > 0)
    pairs, index = np.unique(np.stack([k[seen], n[seen]]), axis=1, return_inverse=True)
    weight: FloatArray = np.bincount(index.ravel(), times[seen], minlength=pairs.shape[1]).astype(np.float64)
    if not np.any(pairs[1] > 1):
        raise DataError(f"no step has two continuations or more, so nothing tells how success rates vary; {REMEDY}")
    n_good, n_all = weight @ pairs[0], weight @ pairs[1]
    if n_good in (0, n_all):
        every = "fails" if n_good == 0 else "succeeds"
        raise DataError(f"every continuation {every}, so no prior is the most likely one; {REMEDY}")
    return pairs[0], pairs[1], weight / weight.sum()


Z_95 = 1.959963984540054


def likelihood_slopes(k: ArrayLike, n: ArrayLike, *, a: Parameter, b: Parameter) -> FloatArray:
    """Slope of each step's Beta-Binomial log-likelihood in ``(log a, log b)``; shape (..., 2).

    ``a (psi(a + k) - psi(a) - psi(a + b + n) + psi(a + b))``, and the same with b and ``n - k``; 0 where n = 0.
    """
    k, n = checked_counts(k, n)
    psi = scipy_special().digamma
    both = psi(a + b) - psi(a + b + n)
    return np.stack([a * (psi(a + k) - psi(a) + both), b * (psi(b + n - k) - psi(b) + both)], axis=-1)


def observed_information(k: ArrayLike, n: ArrayLike, counts: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Minus the second derivatives of the log-likelihood in ``(log a, log b)``, at its maximum; shape (2, 2).

    ``counts`` is how many steps have each k and n; all three have shape (S,).
    """
    k, n = checked_counts(k, n)
    weight = np.asarray(counts, np.float64)
    psi_1 = partial(scipy_special().polygamma, 1)
    both = weight @ (psi_1(a + b) - psi_1(a + b + n))
    aa = weight @ (psi_1(a + k) - psi_1(a)) + both
    bb = weight @ (psi_1(b + n - k) - psi_1(b)) + both
    # the slopes themselves add nothing, for at the maximum they sum to 0
    return -np.array([[a * a * aa, a * b * both], [a * b * both, b * b * bb]])


def prior_covariance(information: FloatArray, squared_slopes: FloatArray | None = None) -> FloatArray:
    """Covariance of the fitted ``(log a, log b)``; shape (2, 2).

    ``H^-1`` where steps are independent, with H the observed information. Steps of a rollout are alike, so that they
    tell less: with J the sum over rollouts of the outer products of their slopes, ``H^-1 J H^-1`` holds for any
    dependence within a rollout.
    """
    inverse: FloatArray = np.asarray(np.linalg.inv(information), np.float64)
    return inverse if squared_slopes is None else inverse @ squared_slopes @ inverse


def log_interval(value: float, variance_of_log: float) -> tuple[float, float]:
    """95% interval of a positive parameter from the variance of its logarithm."""
    factor = float(np.exp(Z_95 * np.sqrt(variance_of_log)))
    return value / factor, value * factor

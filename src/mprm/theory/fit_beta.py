"""The Beta prior of success rates that makes counts of successes most likely: empirical Bayes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.errors import DataError
from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import IntArray, checked_counts, scipy_special

PRIOR_RANGE = (1e-3, 1e4)
"""Where a and b are looked for; a fit that leans on an end has no maximum inside."""
REMEDY = "fit to more steps, or give a and b"


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
    special = scipy_special()
    from scipy.optimize import OptimizeResult, minimize

    k, n, weight = _histogram(k, n, counts)

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        a, b = np.exp(logs)
        value = weight @ (special.betaln(a, b) - special.betaln(a + k, b + n - k))
        both = special.digamma(a + b + n) - special.digamma(a + b)
        slope_a = weight @ (both + special.digamma(a) - special.digamma(a + k))
        slope_b = weight @ (both + special.digamma(b) - special.digamma(b + n - k))
        return float(value), np.array([a * slope_a, b * slope_b])

    ends = np.log(PRIOR_RANGE)

    def fitted(start: FloatArray) -> OptimizeResult:
        options = {"ftol": 1e-14, "gtol": 1e-9}
        return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[ends, ends], options=options)

    found = fitted(np.zeros(2))
    # a likelihood that rises to an end does so ever more slowly, and the search stops on the way: begin there too
    for start in (found.x - found.x.max() + ends[1], found.x - found.x.min() + ends[0]):
        other = fitted(np.clip(start, *ends))
        if other.fun <= found.fun:
            found = other
    a, b = np.exp(found.x).tolist()
    if found.x.max() > ends[1] - 1e-6:
        raise DataError(f"success rates vary no more than chance does: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    if found.x.min() < ends[0] + 1e-6:
        raise DataError(f"success rates are nearly all 0 or 1: a = {a:g}, b = {b:g} is no prior; {REMEDY}")
    return a, b


def _histogram(k: ArrayLike, n: ArrayLike, counts: ArrayLike | None) -> tuple[IntArray, IntArray, FloatArray]:
    """Distinct pairs and the share of steps that each stands for; refuses counts that tell of no prior."""
    k, n = np.broadcast_arrays(*checked_counts(k, n))
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

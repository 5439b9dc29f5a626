"""What a step's count of successes tells of its success rate (section 3.3 and its appendix).

The success rate is ``r ~ Beta(a, b)``, of n continuations ``k ~ Binomial(n, r)`` succeed, and so
``r | k ~ Beta(a + k, b + n - k)``.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mprm.errors import DataError, MissingDependencyError
from mprm.theory.argument_checks import FloatArray

IntArray = NDArray[np.int64]


def scipy_special() -> ModuleType:
    """SciPy's special functions, or an error that says what to install."""
    try:
        from scipy import special
    except ImportError as error:
        raise MissingDependencyError(
            "the Beta-Binomial model needs SciPy: pip install scipy, or install mprm with its extra [annotate]"
        ) from error
    return special  # type: ignore[no-any-return]


def posterior_mean(k: ArrayLike, n: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Expected success rate of a step with k successes of n, ``(a + k) / (a + b + n)``; in (0, 1).

    Parameters
    ----------
    k, n : any shapes that broadcast
        Successes; continuations.
    a, b
        The Beta prior of r.

    Examples
    --------
    >>> posterior_mean([0, 4], 4, a=1, b=1).round(4).tolist()  # 1/6 and 5/6
    [0.1667, 0.8333]
    """
    k, n = checked_counts(k, n)
    mean: FloatArray = (a + k) / (a + b + n)
    return mean


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
    k, n = checked_counts(k, n)
    noise: FloatArray = scipy_special().betainc(a + k, b + n - k, tau)
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
    n, n_max = checked_counts(n, n_max)
    betaln = scipy_special().betaln
    probability: FloatArray = np.exp(betaln(a, b + n_max) - betaln(a, b + n))
    return probability


def pseudo_positive_share(n: ArrayLike, *, tau: float, a: float, b: float) -> FloatArray:
    """Expected share of positive steps (``k > 0``) that are not tau-reliable (``r < tau``); in (0, 1).

    ``Pr(r < tau | k > 0) = (I_tau(a, b) - f I_tau(a, b + n)) / (1 - f)``, with
    ``f = Pr(k = 0) = B(a, b + n) / B(a, b)``. The mean of `eta_eff` over positive steps; rises with n, for
    more continuations find the rare success of more steps.

    Parameters
    ----------
    n : any shape
        Continuations of each step, at least 1.
    tau
        A step is reliable when r is at least tau.
    a, b
        The Beta prior of r.

    Examples
    --------
    >>> pseudo_positive_share([1, 16], tau=0.5, a=1, b=1).round(4).tolist()  # 1/4; (1/2 - 1/17) / (16/17)
    [0.25, 0.4688]
    """
    _, n = checked_counts(1, n)
    betainc = scipy_special().betainc
    fails = all_fail(0, n, a=a, b=b)
    share: FloatArray = (betainc(a, b, tau) - fails * betainc(a, b + n, tau)) / (1 - fails)
    return share


def checked_counts(k: ArrayLike, n: ArrayLike) -> tuple[IntArray, IntArray]:
    """Both as arrays; refuses counts that cannot be."""
    part, whole = np.asarray(k), np.asarray(n)
    for array in (part, whole):
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise DataError(f"counts must be whole numbers, got {array.dtype}")
    if np.any(part < 0) or np.any(part > whole):
        raise DataError("every count must be at least 0 and at most the number it is counted out of")
    return part.astype(np.int64), whole.astype(np.int64)

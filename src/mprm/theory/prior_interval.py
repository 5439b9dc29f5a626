"""How sure a fitted Beta prior is: the covariance of log a and log b."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray
from mprm.theory.beta_binomial import checked_counts, scipy_special

Z_95 = 1.959963984540054


def likelihood_slopes(k: ArrayLike, n: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Slope of each step's Beta-Binomial log-likelihood in ``(log a, log b)``; shape (..., 2).

    ``a (psi(a + k) - psi(a) - psi(a + b + n) + psi(a + b))``, and the same with b and ``n - k``; 0 where n = 0.
    """
    k, n = checked_counts(k, n)
    psi = scipy_special().digamma
    both = psi(a + b) - psi(a + b + n)
    slopes: FloatArray = np.stack([a * (psi(a + k) - psi(a) + both), b * (psi(b + n - k) - psi(b) + both)], axis=-1)
    return slopes


def observed_information(k: ArrayLike, n: ArrayLike, counts: ArrayLike, *, a: float, b: float) -> FloatArray:
    """Minus the second derivatives of the log-likelihood in ``(log a, log b)``, at its maximum; shape (2, 2).

    Parameters
    ----------
    k, n, counts : shape (S,)
        Successes; continuations; how many steps have them.
    """
    k, n = checked_counts(k, n)
    weight = np.asarray(counts, np.float64)

    def psi_1(x: ArrayLike) -> FloatArray:
        curvature: FloatArray = scipy_special().polygamma(1, x)
        return curvature

    both = weight @ (psi_1(a + b) - psi_1(a + b + n))
    aa = weight @ (psi_1(a + k) - psi_1(a)) + both
    bb = weight @ (psi_1(b + n - k) - psi_1(b)) + both
    # the slopes themselves add nothing, for at the maximum they sum to 0
    return -np.array([[a * a * aa, a * b * both], [a * b * both, b * b * bb]])


def prior_covariance(information: FloatArray, slopes_of_rollouts: FloatArray | None = None) -> FloatArray:
    """Covariance of the fitted ``(log a, log b)``; shape (2, 2).

    ``H^-1`` where steps are independent, with H the observed information. Steps of a rollout are alike, so that they
    tell less: with J the sum over rollouts of the outer products of their slopes, ``H^-1 J H^-1`` holds for any
    dependence within a rollout.

    Parameters
    ----------
    information : shape (2, 2)
        See `observed_information`.
    slopes_of_rollouts : shape (2, 2)
        J; None takes steps for independent.
    """
    inverse: FloatArray = np.asarray(np.linalg.inv(information), np.float64)
    return inverse if slopes_of_rollouts is None else inverse @ slopes_of_rollouts @ inverse


def few_rollouts_factor(n_rollouts: int) -> float:
    """How much wider a variance from so few rollouts must be taken; at least 2 of them.

    ``G / (G - 1)``, for their slopes sum to 0 at the maximum, and Student's t with G - 1 degrees of freedom in
    place of the normal distribution.

    Examples
    --------
    >>> round(few_rollouts_factor(600), 3), round(few_rollouts_factor(2), 1)
    (1.006, 84.1)
    """
    t = float(scipy_special().stdtrit(n_rollouts - 1, 0.975))
    return n_rollouts / (n_rollouts - 1) * (t / Z_95) ** 2


def log_interval(value: float, variance_of_log: float) -> tuple[float, float]:
    """95% interval of a positive parameter from the variance of its logarithm.

    Examples
    --------
    >>> low, high = log_interval(2.0, 0.01)
    >>> round(low, 3), round(high, 3)  # 2 exp(-0.196) and 2 exp(0.196)
    (1.644, 2.433)
    """
    factor = float(np.exp(Z_95 * np.sqrt(variance_of_log)))
    return value / factor, value * factor

"""What flipped labels do to a rollout's mixture (section 3.3 and its appendix).

Each label is flipped with probability eta, independently of itself and of the others. The paper asks for
eta below 1/2; the equations hold up to 1.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray, within


def flipped_probability(q: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """Probability of a positive label after the flip, ``q~ = (1 - eta) q + eta (1 - q) = (1 - 2 eta) q + eta``.

    Examples
    --------
    >>> flipped_probability([0.0, 0.5, 1.0], eta=0.25).tolist()
    [0.25, 0.5, 0.75]
    """
    q, eta = within("q", q, 0, 1), within("eta", eta, 0, 1)
    return (1 - eta) * q + eta * (1 - q)  # the first form: it never rounds to above 1


def flipped_mixture(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """Mixture that flips make of theta: ``theta~ = (1 - 2 eta)^2 theta + eta (1 - eta)``; in [0, 1/4].

    ``theta~ = q~_bar (1 - q~_bar)``, with q~_bar the mean over steps of the flipped probabilities.

    Parameters
    ----------
    theta, eta : any shapes that broadcast
        Mixture ``q_bar (1 - q_bar)`` without noise, in [0, 1/4]; probability of a flip.

    Examples
    --------
    >>> flipped_mixture([0.0, 0.25], eta=0.25).tolist()  # 3/16, and 1/4 which no flip can change
    [0.1875, 0.25]
    """
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return (1 - 2 * eta) ** 2 * theta + eta * (1 - eta)


def mixture_shift_bound(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """The paper's bound on how far flips move the mixture; at most ``2 eta``.

    ``|theta~ - theta| <= 4 eta theta + eta (1 - eta) <= 2 eta``. See `mixture_shift` for the shift itself.

    Examples
    --------
    >>> round(float(mixture_shift_bound(0.25, eta=0.1)), 4)  # 0.1 + 0.09, though nothing moves
    0.19
    """
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return 4 * eta * theta + eta * (1 - eta)


def mixture_shift(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """How far flips move the mixture: ``theta~ - theta = eta (1 - eta) (1 - 4 theta)``; never below 0.

    Follows from the equation of theta~, since ``(1 - 2 eta)^2 - 1 = -4 eta (1 - eta)``. So flips only ever
    raise the mixture, by at most ``eta (1 - eta)``, and most where the labels were all alike.

    Examples
    --------
    >>> mixture_shift([0.0, 0.25], eta=0.1).round(4).tolist()
    [0.09, 0.0]
    """
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return eta * (1 - eta) * (1 - 4 * theta)

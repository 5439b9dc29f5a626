"""How much a step moves the student: the second moment of its gradient at the teacher (section 3.3)."""

from __future__ import annotations

from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray, squared_norms, within


def gradient_second_moment(q: ArrayLike, *, norm_sq: ArrayLike = 1.0, eta: ArrayLike = 0.0) -> FloatArray:
    """Expected squared norm of a step's gradient at the teacher's parameters, given its representation.

    ``E[||g||^2 | phi] = ((1 - 4 eta) q (1 - q) + eta) ||phi||^2``; without noise, ``q (1 - q) ||phi||^2``.

    The label is drawn from the teacher, ``Y ~ Bernoulli(q)``, then flipped with probability eta whatever it
    and phi are. The paper asks for eta below 1/2; the equation holds up to 1. It may also be written
    ``(q (1 - q) + eta (1 - 2 q)^2) ||phi||^2``: noise never lowers it, and leaves it at 1/4 where q = 1/2.

    Parameters
    ----------
    q : any shape
        The teacher's probability ``q*(phi)`` of the positive label.
    norm_sq, eta : shapes that broadcast with q
        Squared norm ``||phi||^2`` of the representation; probability of a flip.

    Examples
    --------
    >>> gradient_second_moment([0.5, 0.9], norm_sq=4.0).round(4).tolist()  # 4 * 0.25 and 4 * 0.09
    [1.0, 0.36]
    >>> round(float(gradient_second_moment(0.9, eta=0.1)), 4)  # 0.6 * 0.09 + 0.1
    0.154
    """
    q, eta = within("q", q, 0, 1), within("eta", eta, 0, 1)
    return ((1 - 4 * eta) * q * (1 - q) + eta) * squared_norms(norm_sq)

"""The part of a rollout's gradients that depends on the teacher's uncertainty (section 3.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray, probabilities_of_steps, squared_norms, within


def rollout_signal(q: ArrayLike, *, eta: ArrayLike, norm_sq: ArrayLike = 1.0) -> FloatArray:
    """Signal ``S(x) = (1/n) sum (1 - 4 eta_j) q_j (1 - q_j) ||phi_j||^2`` of a rollout; shape (...).

    The mean over steps of `gradient_second_moment` is ``S(x) + (1/n) sum eta_j ||phi_j||^2``, under the same
    assumptions and with a rate of flips for each step. A step with eta above 1/4 weighs negatively: there
    the more uncertain step has the smaller term. The paper puts ``eta_eff(K_j)`` for eta_j, which is often
    above 1/4 for a low-scored positive step.

    Parameters
    ----------
    q : shape (..., n)
        The teacher's probability of a positive label, for each step.
    eta, norm_sq : shapes that broadcast with q
        Probability that the step's label is flipped; squared norm of its representation.

    Examples
    --------
    >>> float(rollout_signal([0.5, 0.5], eta=[0.0, 0.125]))  # (1/4 + 1/8) / 2
    0.1875
    """
    q, eta = probabilities_of_steps("q", q), within("eta", eta, 0, 1)
    signal: FloatArray = np.mean((1 - 4 * eta) * q * (1 - q) * squared_norms(norm_sq), axis=-1)
    return signal

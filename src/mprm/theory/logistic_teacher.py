"""The teacher and the student: logistic regression on the representation of a step (section 3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray


def positive_probability(phi: ArrayLike, w: ArrayLike) -> FloatArray:
    """Probability ``q_w(phi) = sigma(<w, phi>)`` of the positive label; at the teacher's w*, ``q*(phi)``.

    Parameters
    ----------
    phi : shape (..., d)
        Representation of each step.
    w : shape (..., d)
        Parameters; leading axes broadcast against those of phi.

    Examples
    --------
    >>> positive_probability([[0.0, 0.0], [np.log(3), 5.0]], [1.0, 0.0]).round(4).tolist()  # 1/2 and 3/4
    [0.5, 0.75]
    """
    logit: FloatArray = np.sum(np.asarray(phi, np.float64) * np.asarray(w, np.float64), axis=-1)
    # exp(-log(1 + exp(-z))): neither overflows nor rounds a small probability to 0, as 1 / (1 + exp(-z)) may
    return np.exp(-np.logaddexp(0.0, -logit))


def gradient(phi: ArrayLike, Y: ArrayLike, w: ArrayLike) -> FloatArray:
    """Gradient ``g(phi, Y; w) = (q_w(phi) - Y) phi`` of the logistic loss of one step; shape (..., d).

    Parameters
    ----------
    phi, w : shape (..., d)
        Representations; parameters.
    Y : shape (...)
        Labels, 0 or 1.

    Examples
    --------
    >>> gradient([2.0, -4.0], 1, [0.0, 0.0]).tolist()  # (1/2 - 1) phi
    [-1.0, 2.0]
    """
    residual = positive_probability(phi, w) - np.asarray(Y, np.float64)
    return residual[..., None] * np.asarray(phi, np.float64)

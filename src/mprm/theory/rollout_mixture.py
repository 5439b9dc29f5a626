"""What the mixture of a rollout's labels tells of the teacher's uncertainty (section 3.3, lemma of its appendix).

Labels are drawn from the teacher, ``Y_j ~ Bernoulli(q_j)``, independently given all q_j; the mixture is
``p_hat (1 - p_hat)``, with p_hat the share of positive labels. Steps lie on the last axis, shape (..., n).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.theory.argument_checks import FloatArray, probabilities_of_steps, squared_norms


def step_information(q: ArrayLike, *, norm_sq: ArrayLike = 1.0) -> FloatArray:
    """Average information of the steps, ``A(x) = (1/n) sum q_j (1 - q_j)``; shape (...).

    With squared norms it is ``A_full(x) = (1/n) sum q_j (1 - q_j) ||phi_j||^2``, which lies between
    ``c_min A(x)`` and ``c_max A(x)`` when all squared norms lie in [c_min, c_max].

    Parameters
    ----------
    q : shape (..., n)
        The teacher's probability of a positive label, for each step.
    norm_sq : a shape that broadcasts with q
        Squared norm of each step's representation.

    Examples
    --------
    >>> float(step_information([0.5, 1.0]))  # (1/4 + 0) / 2
    0.125
    """
    q = probabilities_of_steps("q", q)
    information: FloatArray = np.mean(q * (1 - q) * squared_norms(norm_sq), axis=-1)
    return information


def teacher_mixture(q: ArrayLike) -> FloatArray:
    """Uncertainty of the rollout as a whole, ``theta = q_bar (1 - q_bar)``, q_bar the mean of q_j; shape (...).

    Lies in [0, 1/4], and is never below ``A(x)``, by Jensen's inequality.

    Examples
    --------
    >>> float(teacher_mixture([0.5, 1.0]))  # 3/4 * 1/4
    0.1875
    """
    q_bar: FloatArray = np.mean(probabilities_of_steps("q", q), axis=-1)
    return q_bar * (1 - q_bar)


def expected_mixture(q: ArrayLike) -> FloatArray:
    """Expected mixture of a rollout's labels; shape (...).

    ``E[p_hat (1 - p_hat) | q] = theta - (1/n^2) sum q_j (1 - q_j) = theta - A(x) / n``.

    Examples
    --------
    >>> float(expected_mixture([0.5, 1.0]))  # labels 1 1 or 0 1: half of 1/4
    0.125
    """
    q = probabilities_of_steps("q", q)
    n: int = q.shape[-1]
    return teacher_mixture(q) - step_information(q) / n


def mixture_bounds(q: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Least and largest that the expected mixture can be: ``theta (1 - 1/n)`` and ``theta``; shapes (...).

    The lower one is reached when all q_j are equal, the upper when each is 0 or 1.

    Examples
    --------
    >>> low, high = mixture_bounds([0.5, 1.0])
    >>> float(low), float(high)
    (0.09375, 0.1875)
    """
    q = probabilities_of_steps("q", q)
    theta, n = teacher_mixture(q), q.shape[-1]
    return theta * (1 - 1 / n), theta

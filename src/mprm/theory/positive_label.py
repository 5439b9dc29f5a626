"""What N continuations make of a step's success probability: its score and its label (section 3.3).

``K ~ Binomial(N, r)`` of the N continuations succeed; the score is ``s = K / N``, and the label is positive
when ``K > 0``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mprm.errors import DataError
from mprm.theory.argument_checks import FloatArray, above_zero, within


def positive_label_probability(r: ArrayLike, N: ArrayLike) -> FloatArray:
    """Probability of a positive label, ``Pr(Y = 1) = 1 - (1 - r)^N``; strictly increasing in r.

    Parameters
    ----------
    r : any shape
        Probability that one continuation reaches the right answer.
    N : a shape that broadcasts with r
        Number of continuations, whole and at least 1.

    Examples
    --------
    >>> positive_label_probability([0.0, 0.5, 1.0], 3).tolist()  # 1 - 1/8 in the middle
    [0.0, 0.875, 1.0]
    """
    r, N = within("r", r, 0, 1), _continuations(N)
    with np.errstate(divide="ignore"):  # r = 1: log 0, and the probability is 1
        log_all_fail = N * np.log1p(-r)
    return -np.expm1(log_all_fail)  # 1 - (1 - r)^N would round to 0 for tiny r


def score_variance(r: ArrayLike, N: ArrayLike) -> FloatArray:
    """Variance of the score, ``Var(s | r) = r (1 - r) / N``; its mean is r.

    Examples
    --------
    >>> float(score_variance(0.5, 16))  # 1/64
    0.015625
    """
    r = within("r", r, 0, 1)
    return r * (1 - r) / _continuations(N)


def _continuations(N: ArrayLike) -> FloatArray:
    array = above_zero("N", N)
    if np.any(array != np.floor(array)):
        raise DataError(f"N must be a whole number of continuations, got {array[array != np.floor(array)][0]:g}")
    return array

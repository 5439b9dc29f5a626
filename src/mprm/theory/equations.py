"""The paper's analysis as functions: what each equation says of steps, rollouts and training.

Section 3.1: the teacher and the student, logistic regression on the representation of a step. Section 3.2: the bound
on the excess risk, and what random sub-sampling does to it. Section 3.3: how much a step moves the student, what the
mixture of a rollout's labels tells, and what flipped labels do to it. Throughout, phi and the parameters w have shape
(..., d), q is the teacher's probability ``q*(phi)`` of a positive label, eta the probability that a label is flipped,
norm_sq the squared norm ``||phi||^2``; shapes broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mprm.errors import ConfigError, DataError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def within(name: str, values: ArrayLike, low: float, high: float, expected: str = "") -> FloatArray:
    """The values as floats; each must lie in [low, high]."""
    array = np.asarray(values, dtype=np.float64)
    bad = ~((array >= low) & (array <= high))  # so written, nan is bad too
    if np.any(bad):
        raise DataError(f"{name} must {expected or f'lie in [{low:g}, {high:g}]'}, got {array[bad][0]:g}")
    return array


def _of_steps(q: ArrayLike) -> FloatArray:
    """Probabilities with the steps of a rollout on the last axis, shape (..., n); n must be at least 1."""
    array = within("q", q, 0, 1)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise DataError(f"q must hold one probability for each step, at least one, got shape {array.shape}")
    return array


def _squared_norms(values: ArrayLike) -> FloatArray:
    return within("norm_sq", values, 0, np.finfo(np.float64).max)


def _above_zero(name: str, values: ArrayLike) -> FloatArray:
    floats = np.finfo(np.float64)
    return within(name, values, floats.smallest_subnormal, floats.max, "be above 0 and finite")


def positive_probability(phi: ArrayLike, w: ArrayLike) -> FloatArray:
    """Probability ``q_w(phi) = sigma(<w, phi>)`` of the positive label; at the teacher's w*, ``q*(phi)``."""
    logit: FloatArray = np.sum(np.asarray(phi, np.float64) * np.asarray(w, np.float64), axis=-1)
    # exp(-log(1 + exp(-z))): neither overflows nor rounds a small probability to 0, as 1 / (1 + exp(-z)) may
    return np.exp(-np.logaddexp(0.0, -logit))


def gradient(phi: ArrayLike, Y: ArrayLike, w: ArrayLike) -> FloatArray:
    """Gradient ``g(phi, Y; w) = (q_w(phi) - Y) phi`` of the logistic loss of a step with label Y; shape (..., d)."""
    residual = positive_probability(phi, w) - np.asarray(Y, np.float64)
    return residual[..., None] * np.asarray(phi, np.float64)


def gradient_second_moment(q: ArrayLike, *, norm_sq: ArrayLike = 1.0, eta: ArrayLike = 0.0) -> FloatArray:
    """Expected squared norm of a step's gradient at the teacher's parameters, given its representation.

    ``E[||g||^2 | phi] = ((1 - 4 eta) q (1 - q) + eta) ||phi||^2``; without noise, ``q (1 - q) ||phi||^2``.

    The label is sampled from the teacher, ``Y ~ Bernoulli(q)``, then flipped with probability eta whatever it
    and phi are. The paper asks for eta below 1/2; the equation holds up to 1. It may also be written
    ``(q (1 - q) + eta (1 - 2 q)^2) ||phi||^2``: noise never lowers it, and leaves it at 1/4 where q = 1/2.
    """
    q, eta = within("q", q, 0, 1), within("eta", eta, 0, 1)
    return ((1 - 4 * eta) * q * (1 - q) + eta) * _squared_norms(norm_sq)


def flipped_probability(q: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """Probability of a positive label after the flip, ``q~ = (1 - eta) q + eta (1 - q) = (1 - 2 eta) q + eta``."""
    q, eta = within("q", q, 0, 1), within("eta", eta, 0, 1)
    return (1 - eta) * q + eta * (1 - q)  # the first form: it never rounds to above 1


def flipped_mixture(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """Mixture that flips make of theta: ``theta~ = (1 - 2 eta)^2 theta + eta (1 - eta)``; in [0, 1/4].

    ``theta~ = q~_bar (1 - q~_bar)``, with q~_bar the mean over steps of the flipped probabilities.
    """
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return (1 - 2 * eta) ** 2 * theta + eta * (1 - eta)


def mixture_shift_bound(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """The paper's bound on `mixture_shift`: ``|theta~ - theta| <= 4 eta theta + eta (1 - eta) <= 2 eta``."""
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return 4 * eta * theta + eta * (1 - eta)


def mixture_shift(theta: ArrayLike, *, eta: ArrayLike) -> FloatArray:
    """How far flips move the mixture: ``theta~ - theta = eta (1 - eta) (1 - 4 theta)``; never below 0.

    Since ``(1 - 2 eta)^2 - 1 = -4 eta (1 - eta)``. Flips only ever raise the mixture, most where labels are alike.
    """
    theta, eta = within("theta", theta, 0, 0.25), within("eta", eta, 0, 1)
    return eta * (1 - eta) * (1 - 4 * theta)


def positive_label_probability(r: ArrayLike, N: ArrayLike) -> FloatArray:
    """Probability of a positive label, ``Pr(Y = 1) = 1 - (1 - r)^N``; strictly increasing in r.

    r is the probability that one continuation reaches the right answer, N the number of continuations.
    """
    r, N = within("r", r, 0, 1), _continuations(N)
    with np.errstate(divide="ignore"):  # r = 1: log 0, and the probability is 1
        log_all_fail = N * np.log1p(-r)
    return -np.expm1(log_all_fail)  # 1 - (1 - r)^N would round to 0 for tiny r


def score_variance(r: ArrayLike, N: ArrayLike) -> FloatArray:
    """Variance of the score, ``Var(s | r) = r (1 - r) / N``; its mean is r."""
    r = within("r", r, 0, 1)
    return r * (1 - r) / _continuations(N)


def _continuations(N: ArrayLike) -> FloatArray:
    array = _above_zero("N", N)
    if np.any(array != np.floor(array)):
        raise DataError(f"N must be a whole number of continuations, got {array[array != np.floor(array)][0]:g}")
    return array


Updates = Literal["matched", "single-pass"]
"""As many updates on the subset as on all data, or one pass over each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskBound:
    """The two terms that bound the expected excess risk, up to a constant factor."""

    data: FloatArray
    """``C_data N_eff^(-1/2)``: falls with the number of independent steps."""
    opt: FloatArray
    """``C_opt T^(-1/2)``: falls with the number of updates; noisier gradients have a larger C_opt."""

    @property
    def total(self) -> FloatArray:
        return self.data + self.opt


def risk_bound(*, N_eff: ArrayLike, T: ArrayLike, C_data: ArrayLike, C_opt: ArrayLike) -> RiskBound:
    """Bound on the excess risk of projected SGD after T updates on N_eff steps.

    ``E[L(w_T)] - L(w*) <~ C_data N_eff^(-1/2) + C_opt T^(-1/2)``.

    Assumes (appendix) bounded representations; labels sampled from a logistic teacher; a population and an empirical
    loss that are strongly convex and smooth on a bounded convex set, which holds w* and, in its interior, the
    empirical minimizer; and projected SGD on that set, its batches sampled independently from the sample, its
    gradients of bounded second moment, with steps ``eta_0 / sqrt(t)``, eta_0 small. C_data and C_opt are constants of
    the problem; the paper shows that there are such, and gives no values.
    """
    return RiskBound(
        data=_above_zero("C_data", C_data) * _above_zero("N_eff", N_eff) ** -0.5,
        opt=_above_zero("C_opt", C_opt) * _above_zero("T", T) ** -0.5,
    )


def subsampled(bound: RiskBound, *, gamma: ArrayLike, updates: Updates) -> RiskBound:
    """The bound on a random subset that keeps each training step with probability gamma.

    The subset has ``gamma N_eff`` steps, and the constants are taken to stay the same, so

    - ``matched`` (T updates all the same): ``gamma^(-1/2) C_data N_eff^(-1/2) + C_opt T^(-1/2)``
    - ``single-pass`` (gamma T updates): ``gamma^(-1/2)`` times the whole bound

    >>> full = risk_bound(N_eff=10_000, T=100, C_data=1, C_opt=1)
    >>> matched = subsampled(full, gamma=0.25, updates="matched")
    >>> float(matched.data), float(matched.opt)
    (0.02, 0.1)
    """
    if updates not in get_args(Updates):
        raise ConfigError(f"updates must be one of {', '.join(get_args(Updates))}, got {updates!r}")
    factor = within("gamma", _above_zero("gamma", gamma), 0, 1) ** -0.5
    return RiskBound(data=factor * bound.data, opt=bound.opt if updates == "matched" else factor * bound.opt)


def step_information(q: ArrayLike, *, norm_sq: ArrayLike = 1.0) -> FloatArray:
    """Average information of steps with q, shape (..., n): ``A(x) = (1/n) sum q_j (1 - q_j)``; shape (...).

    With squared norms it is ``A_full(x) = (1/n) sum q_j (1 - q_j) ||phi_j||^2``, which lies between
    ``c_min A(x)`` and ``c_max A(x)`` when all squared norms lie in [c_min, c_max].
    """
    return rollout_signal(q, eta=0.0, norm_sq=norm_sq)


def teacher_mixture(q: ArrayLike) -> FloatArray:
    """Uncertainty of the rollout as a whole, ``theta = q_bar (1 - q_bar)``, q_bar the mean of q_j; shape (...).

    Lies in [0, 1/4], and is never below ``A(x)``, by Jensen's inequality.
    """
    q_bar: FloatArray = np.mean(_of_steps(q), axis=-1)
    return q_bar * (1 - q_bar)


def expected_mixture(q: ArrayLike) -> FloatArray:
    """Expected mixture of labels ``E[p_hat (1 - p_hat) | q] = theta - (1/n^2) sum q_j (1 - q_j)``; shape (...)."""
    q = _of_steps(q)
    n: int = q.shape[-1]
    return teacher_mixture(q) - step_information(q) / n


def mixture_bounds(q: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Least and largest that the expected mixture can be: ``theta (1 - 1/n)`` and ``theta``; shapes (...).

    The lower one is reached when all q_j are equal, the upper when each is 0 or 1.
    """
    theta = teacher_mixture(q)
    return theta * (1 - 1 / np.shape(q)[-1]), theta


def rollout_signal(q: ArrayLike, *, eta: ArrayLike, norm_sq: ArrayLike = 1.0) -> FloatArray:
    """Signal ``S(x) = (1/n) sum (1 - 4 eta_j) q_j (1 - q_j) ||phi_j||^2`` of a rollout; shape (...).

    The mean over steps of `gradient_second_moment` is ``S(x) + (1/n) sum eta_j ||phi_j||^2``, with a rate of flips
    for each step; q has shape (..., n). A step with eta above 1/4 weighs negatively: there the more uncertain step
    has the smaller term. The paper puts ``eta_eff(K_j)`` for eta_j, often above 1/4 for a low-scored positive step.
    """
    q, eta = _of_steps(q), within("eta", eta, 0, 1)
    signal: FloatArray = np.mean((1 - 4 * eta) * q * (1 - q) * _squared_norms(norm_sq), axis=-1)
    return signal

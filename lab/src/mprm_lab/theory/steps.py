"""Simulations of steps, of rollouts, and of success rates under the Beta-Binomial model.

What is sampled never goes through the equation that it is to confirm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mprm import theory
from mprm.theory import FloatArray
from mprm_lab.theory.statements import Comparison, compare

N_SETTINGS = 40
N_SAMPLES = 10_000
D = 4


def compare_steps(rng: np.random.Generator) -> list[Comparison]:
    """Each statement in many random settings: representations, teachers, flip rates, success rates."""
    # probabilities stay within [0.05, 0.95]: rarer labels would need more samples for a normal interval
    phi, w = rng.uniform(-1.5, 1.5, (N_SETTINGS, D)), rng.uniform(-0.5, 0.5, (N_SETTINGS, D))
    return [_teacher(rng, phi, w), _gradient(rng, phi, w), *_moments(rng, phi, w), *_monte_carlo(rng)]


def sampled_labels(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> FloatArray:
    """Labels of a logistic teacher, shape (samples, settings): whether the logit plus logistic noise is above 0."""
    # no probability is computed, so that the labels do not rest on the equation they are to confirm
    is_positive = np.sum(phi * w, axis=-1) + rng.logistic(size=(N_SAMPLES, len(phi))) > 0
    labels: FloatArray = is_positive.astype(np.float64)
    return labels


def _teacher(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> Comparison:
    return compare("teacher", theory.positive_probability(phi, w), sampled_labels(rng, phi, w))


def _gradient(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> Comparison:
    Y, along, h = rng.integers(2, size=len(phi)), rng.normal(size=phi.shape), 1e-5

    def loss(w: FloatArray) -> FloatArray:
        logit = np.sum(phi * w, axis=-1)
        value: FloatArray = np.logaddexp(0, logit) - Y * logit
        return value

    slope = (loss(w + h * along) - loss(w - h * along)) / (2 * h)
    predicted = np.sum(theory.gradient(phi, Y, w) * along, axis=-1)
    return compare("gradient", predicted, simulated=slope, tolerance=1e-8)


def _moments(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> list[Comparison]:
    q, norm_sq, eta = theory.positive_probability(phi, w), np.sum(phi**2, axis=-1), rng.uniform(0, 0.5, len(phi))
    Y = sampled_labels(rng, phi, w)
    flipped = np.where(rng.random(Y.shape) < eta, 1 - Y, Y)

    def moment(Y: FloatArray) -> FloatArray:
        """Squared norm of each sample's gradient at the teacher."""
        squares: FloatArray = np.sum(theory.gradient(phi, Y, w) ** 2, axis=-1)
        return squares

    noisy = theory.gradient_second_moment(q, norm_sq=norm_sq, eta=eta)
    return [
        compare("gradient second moment", theory.gradient_second_moment(q, norm_sq=norm_sq), moment(Y)),
        compare("… under label noise", noisy, moment(flipped)),
        compare("flipped label", theory.flipped_probability(q, eta=eta), flipped),
    ]


def _monte_carlo(rng: np.random.Generator) -> list[Comparison]:
    N = rng.choice([1, 4, 8, 16, 32], N_SETTINGS)
    r = -np.expm1(np.log1p(-rng.uniform(0.05, 0.95, N_SETTINGS)) / N)  # so that neither label is rare
    K = rng.binomial(N, r, (N_SAMPLES, N_SETTINGS))
    return [
        compare("positive label", theory.positive_label_probability(r, N), K > 0),
        compare("MC score's variance", theory.score_variance(r, N), (K / N - r) ** 2),
    ]


N_ROLLOUTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout, and labels sampled for it again and again."""

    q: FloatArray
    """The teacher's probabilities, shape (n,)."""
    phi: FloatArray
    """Representations, shape (n, D)."""
    w: FloatArray
    Y: FloatArray
    """Labels, shape (samples, n)."""
    again: FloatArray
    """A second, independent set of labels."""
    eta: FloatArray
    """Flip rate of each step, shape (n,)."""

    @property
    def norm_sq(self) -> FloatArray:
        """Squared norms of the representations, shape (n,)."""
        squares: FloatArray = np.sum(self.phi**2, axis=-1)
        return squares


def compare_rollouts(rng: np.random.Generator) -> list[Comparison]:
    """Each statement for many rollouts of 2 to 12 steps that share an effect, and for the two extreme ones."""
    n = rng.integers(2, 13, N_ROLLOUTS)
    effects = rng.uniform(-1, 1, N_ROLLOUTS)
    rollouts = [
        _rollout(rng, rng.uniform(-1.5, 1.5, (steps, D - 1)), effect)
        for steps, effect in zip(n, effects, strict=True)
    ]
    # the bounds of the mixture are reached where all q are alike, and where each is 0 or 1
    alike, sure = np.full((5, D - 1), 0.3), np.outer([1, 1, -1, 1, -1], np.full(D - 1, 30.0))
    rollouts += [_rollout(rng, alike, 0.0), _rollout(rng, sure, 0.0)]
    return [*_mixture(rollouts), *_information(rollouts), *_flips(rng, rollouts), _signal(rng, rollouts[:-1])]


def _rollout(rng: np.random.Generator, features: FloatArray, effect: float) -> Rollout:
    """A rollout whose steps share an effect, besides the features of each."""
    n = len(features)
    phi = np.column_stack([np.ones(n), features])
    w = np.concatenate([[effect], np.ones(D - 1) / np.sqrt(D - 1)])
    Y, again = (sampled_labels(rng, phi, w) for _ in range(2))
    q = theory.positive_probability(phi, w)
    return Rollout(q=q, phi=phi, w=w, Y=Y, again=again, eta=rng.uniform(0.05, 0.45, n))


def _each(rollouts: list[Rollout], value: Callable[[Rollout], FloatArray | float]) -> FloatArray:
    """A value of each rollout, stacked on the last axis."""
    return np.stack([np.asarray(value(rollout)) for rollout in rollouts], axis=-1)


def _mixture(rollouts: list[Rollout]) -> list[Comparison]:
    p_hat = _each(rollouts, lambda x: x.Y.mean(axis=-1))
    mixture = p_hat * (1 - p_hat)
    low, high = _each(rollouts, lambda x: np.array(theory.mixture_bounds(x.q)))
    return [
        compare("expected mixture", _each(rollouts, lambda x: theory.expected_mixture(x.q)), mixture),
        compare("sandwich, below", low, mixture),
        compare("sandwich, above", high, mixture),
    ]


def _information(rollouts: list[Rollout]) -> list[Comparison]:
    # Y (1 - Y') of two independent labels has the mean q (1 - q)
    A = _each(rollouts, lambda x: np.mean(x.Y * (1 - x.again), axis=-1))
    A_full = _each(rollouts, lambda x: np.mean(np.sum(theory.gradient(x.phi, x.Y, x.w) ** 2, axis=-1), axis=-1))
    information = _each(rollouts, lambda x: theory.step_information(x.q))
    with_norms = _each(rollouts, lambda x: theory.step_information(x.q, norm_sq=x.norm_sq))
    return [
        compare("step information", information, A),
        compare("Jensen", _each(rollouts, lambda x: theory.teacher_mixture(x.q)), A),
        compare("information with norms", with_norms, A_full),
        compare("norms, below", _each(rollouts, lambda x: x.norm_sq.min()) * information, A_full),
        compare("norms, above", _each(rollouts, lambda x: x.norm_sq.max()) * information, A_full),
    ]


def _flips(rng: np.random.Generator, rollouts: list[Rollout]) -> list[Comparison]:
    eta = rng.uniform(0.05, 0.45, len(rollouts))
    theta = _each(rollouts, lambda x: theory.teacher_mixture(x.q))

    def share(Y: FloatArray, eta: float) -> FloatArray:
        mean: FloatArray = np.where(rng.random(Y.shape) < eta, 1 - Y, Y).mean(axis=-1)
        return mean

    # p (1 - p') of two independent sets of labels has the mean q~ (1 - q~): no bias of 1/n
    flipped = np.stack(
        [share(x.Y, rate) * (1 - share(x.again, rate)) for x, rate in zip(rollouts, eta, strict=True)], axis=-1
    )
    shift, bound = flipped - theta, theory.mixture_shift_bound(theta, eta=eta)
    return [
        compare("mixture under flips", theory.flipped_mixture(theta, eta=eta), flipped),
        compare("flips' shift", theory.mixture_shift(theta, eta=eta), shift),
        compare("closeness bound", bound, shift * np.sign(shift.mean(axis=0))),
        compare("… its ceiling", 2 * eta, simulated=bound),
    ]


def _signal(rng: np.random.Generator, rollouts: list[Rollout]) -> Comparison:
    def signal(x: Rollout) -> FloatArray:
        """What the flipped labels' gradients have beyond ``(1/n) Σ η‖φ‖²``, of each sample."""
        flipped = np.where(rng.random(x.Y.shape) < x.eta, 1 - x.Y, x.Y)
        moment: FloatArray = np.mean(np.sum(theory.gradient(x.phi, flipped, x.w) ** 2, axis=-1), axis=-1)
        return moment - np.mean(x.eta * x.norm_sq)

    predicted = _each(rollouts, lambda x: theory.rollout_signal(x.q, eta=x.eta, norm_sq=x.norm_sq))
    return compare("rollout signal", predicted, _each(rollouts, signal))


N_STEPS = 200_000
N_RANDOM = 500
MIN_STEPS = 30
"""Fewest steps of each label behind a share, so that its chance is a normal one."""
PRIORS = [(0.8, 0.3, 0.5, 16), (2.0, 0.5, 0.7, 16), (1.0, 1.0, 0.5, 8), (0.4, 0.6, 0.3, 4)]
"""(a, b, tau, N)."""
CONTINUATIONS = (1, 2, 4, 8, 16, 32, 64)
"""Pseudo-positives are counted for each of these, with the first prior."""

Rows = list[tuple[float, float, float]]
"""Predicted, simulated, standard error of each setting."""


def compare_success_rates(rng: np.random.Generator) -> list[Comparison]:
    """Sample success rates and counts under several priors, and look at the rates behind each count."""
    means: Rows = []
    noise: Rows = []
    for a, b, tau, N in PRIORS:
        r = rng.beta(a, b, N_STEPS)
        K = rng.binomial(N, r)
        for k in [1, 0, *range(2, N + 1)]:  # k = 1 first: the table shows the first setting
            rates = r[k == K]
            means.append((float(theory.posterior_mean(k, N, a=a, b=b)), *_mean_and_error(rates)))
            below = rates < tau
            if MIN_STEPS <= below.sum() <= len(below) - MIN_STEPS:
                noise.append((float(theory.eta_eff(k, N, tau=tau, a=a, b=b)), *_mean_and_error(below)))
    return [
        _compare_rows("posterior mean (k = 1)", means),
        _compare_rows("effective noise (k = 1)", noise),
        _monotone(rng),
        *_whole_priors(rng),
    ]


def _mean_and_error(values: Any) -> tuple[float, float]:
    return values.mean(), values.std(ddof=1) / np.sqrt(len(values))


def _compare_rows(name: str, rows: Rows) -> Comparison:
    predicted, simulated, error = np.array(rows).T
    return compare(name, predicted, simulated=simulated, error=error)


def _monotone(rng: np.random.Generator) -> Comparison:
    steepest = []
    for _ in range(N_RANDOM):
        a, b = np.exp(rng.uniform(np.log(0.3), np.log(5), 2))
        N, tau = int(rng.integers(1, 17)), rng.uniform(0.3, 0.7)
        noise = theory.eta_eff(np.arange(N + 1), N, tau=tau, a=a, b=b)
        steepest.append(float(np.diff(noise).max()))
    return compare("effective noise falls with k", 0.0, simulated=steepest)


def _whole_priors(rng: np.random.Generator) -> list[Comparison]:
    """Shares over all steps of a prior."""
    negative: Rows = []
    pseudo: Rows = []
    a, b, tau, _ = PRIORS[0]
    for a, b, tau, N in [*PRIORS, *((a, b, tau, N) for N in CONTINUATIONS)]:
        r = rng.beta(a, b, N_STEPS)
        K = rng.binomial(N, r)
        negative.append((float(theory.all_fail(0, N, a=a, b=b)), *_mean_and_error(K == 0)))
        share = float(theory.pseudo_positive_share(N, tau=tau, a=a, b=b))
        pseudo.append((share, *_mean_and_error(r[K > 0] < tau)))
    return [_compare_rows("negative steps", negative), _compare_rows("pseudo-positive share", pseudo)]

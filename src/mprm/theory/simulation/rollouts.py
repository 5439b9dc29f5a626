"""Statements on rollouts: mixture, its bounds, what flips do to it, the signal S(x)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mprm.theory.argument_checks import FloatArray
from mprm.theory.label_flips import flipped_mixture, mixture_shift, mixture_shift_bound
from mprm.theory.logistic_teacher import gradient, positive_probability
from mprm.theory.rollout_mixture import expected_mixture, mixture_bounds, step_information, teacher_mixture
from mprm.theory.rollout_signal import rollout_signal
from mprm.theory.simulation.line import Line, make_line

N_ROLLOUTS = 24
N_DRAWS = 10_000
D = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout, and labels drawn for it again and again."""

    q: FloatArray
    """The teacher's probabilities, shape (n,)."""
    phi: FloatArray
    """Representations, shape (n, D)."""
    w: FloatArray
    Y: FloatArray
    """Labels, shape (draws, n)."""
    again: FloatArray
    """A second, independent set of labels."""
    eta: FloatArray
    """Rate of flips of each step, shape (n,)."""

    @property
    def norm_sq(self) -> FloatArray:
        """Squared norms of the representations, shape (n,)."""
        squares: FloatArray = np.sum(self.phi**2, axis=-1)
        return squares


def rollout_lines(rng: np.random.Generator) -> list[Line]:
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
    logit = np.sum(phi * w, axis=-1)
    Y, again = ((logit + rng.logistic(size=(N_DRAWS, n)) > 0).astype(np.float64) for _ in range(2))
    q = positive_probability(phi, w)
    return Rollout(q=q, phi=phi, w=w, Y=Y, again=again, eta=rng.uniform(0.05, 0.45, n))


def _each(rollouts: list[Rollout], value: Callable[[Rollout], FloatArray | float]) -> FloatArray:
    """A value of each rollout, stacked on the last axis."""
    return np.stack([np.asarray(value(rollout)) for rollout in rollouts], axis=-1)


def _of_labels(Y: FloatArray) -> FloatArray:
    """Mixture of each draw's labels."""
    p_hat: FloatArray = Y.mean(axis=-1)
    return p_hat * (1 - p_hat)


def _mixture(rollouts: list[Rollout]) -> list[Line]:
    mixture = _each(rollouts, lambda x: _of_labels(x.Y))
    low, high = (_each(rollouts, lambda x, end=end: mixture_bounds(x.q)[end]) for end in (0, 1))  # type: ignore[misc]
    return [
        make_line(
            "expected mixture",
            "eq:label-var-cond",
            "E[p̂(1−p̂)] = θ − A/n",
            "=",
            _each(rollouts, lambda x: expected_mixture(x.q)),
            mixture,
        ),
        make_line("sandwich, below", "eq:mixture-sandwich", "E[p̂(1−p̂)] ≥ θ(1 − 1/n)", "≥", low, mixture),
        make_line("sandwich, above", "eq:mixture-sandwich", "E[p̂(1−p̂)] ≤ θ", "≤", high, mixture),
    ]


def _information(rollouts: list[Rollout]) -> list[Line]:
    # Y (1 - Y') of two independent labels has the mean q (1 - q)
    A = _each(rollouts, lambda x: np.mean(x.Y * (1 - x.again), axis=-1))
    A_full = _each(rollouts, lambda x: np.mean(np.sum(gradient(x.phi, x.Y, x.w) ** 2, axis=-1), axis=-1))
    q_q = _each(rollouts, lambda x: step_information(x.q))
    least, most = (_each(rollouts, lambda x, end=end: end(x.norm_sq)) for end in (np.min, np.max))  # type: ignore[misc]
    return [
        make_line("step information", "section 3.3", "A = (1/n) Σ q(1−q)", "=", q_q, A),
        make_line("Jensen", "eq:A-leq-theta", "A ≤ θ", "≤", _each(rollouts, lambda x: teacher_mixture(x.q)), A),
        make_line(
            "information with norms",
            "appendix F.4",
            "A_full = (1/n) Σ q(1−q)‖φ‖²",
            "=",
            _each(rollouts, lambda x: step_information(x.q, norm_sq=x.norm_sq)),
            A_full,
        ),
        make_line("norms, below", "appendix F.4", "A_full ≥ c_min A", "≥", least * q_q, A_full),
        make_line("norms, above", "appendix F.4", "A_full ≤ c_max A", "≤", most * q_q, A_full),
    ]


def _flips(rng: np.random.Generator, rollouts: list[Rollout]) -> list[Line]:
    eta = rng.uniform(0.05, 0.45, len(rollouts))
    theta = _each(rollouts, lambda x: teacher_mixture(x.q))

    def share(Y: FloatArray, eta: float) -> FloatArray:
        mean: FloatArray = np.where(rng.random(Y.shape) < eta, 1 - Y, Y).mean(axis=-1)
        return mean

    # p (1 - p') of two independent sets of labels has the mean q~ (1 - q~): no bias of 1/n
    flipped = np.stack(
        [share(x.Y, rate) * (1 - share(x.again, rate)) for x, rate in zip(rollouts, eta, strict=True)], axis=-1
    )
    return [
        make_line(
            "mixture under flips",
            "eq:theta-tilde-theta",
            "θ̃ = (1−2η)² θ + η(1−η)",
            "=",
            flipped_mixture(theta, eta=eta),
            flipped,
        ),
        make_line(
            "flips' shift",
            "from eq:theta-tilde-theta",
            "θ̃ − θ = η(1−η)(1−4θ)",
            "=",
            mixture_shift(theta, eta=eta),
            flipped - theta,
        ),
        make_line(
            "closeness bound",
            "eq:tilde-theta-close",
            "|θ̃ − θ| ≤ 4ηθ + η(1−η)",
            "≤",
            mixture_shift_bound(theta, eta=eta),
            (flipped - theta) * np.sign((flipped - theta).mean(axis=0)),
        ),
        make_line(
            "… its ceiling",
            "eq:tilde-theta-close",
            "4ηθ + η(1−η) ≤ 2η",
            "≤",
            2 * eta,
            simulated=mixture_shift_bound(theta, eta=eta),
        ),
    ]


def _signal(rng: np.random.Generator, rollouts: list[Rollout]) -> Line:
    def signal(x: Rollout) -> FloatArray:
        """What the flipped labels' gradients have beyond ``(1/n) Σ η‖φ‖²``, of each draw."""
        flipped = np.where(rng.random(x.Y.shape) < x.eta, 1 - x.Y, x.Y)
        moment: FloatArray = np.mean(np.sum(gradient(x.phi, flipped, x.w) ** 2, axis=-1), axis=-1)
        return moment - np.mean(x.eta * x.norm_sq)

    return make_line(
        "rollout signal",
        "S(x), section 3.3",
        "(1/n) Σ (E‖g̃‖² − η‖φ‖²) = S(x)",
        "=",
        _each(rollouts, lambda x: rollout_signal(x.q, eta=x.eta, norm_sq=x.norm_sq)),
        _each(rollouts, signal),
    )

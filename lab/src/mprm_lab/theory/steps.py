"""Statements on single steps: the teacher, its gradient, flipped labels, Monte-Carlo labels.

Statements on rollouts: mixture, its bounds, what flips do to it, the signal S(x).

Statements on success rates under the Beta-Binomial model: posterior, effective noise, pseudo-positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import all_fail, eta_eff, posterior_mean, pseudo_positive_share
from mprm.theory.equations import (
    expected_mixture,
    flipped_mixture,
    flipped_probability,
    gradient,
    gradient_second_moment,
    mixture_bounds,
    mixture_shift,
    mixture_shift_bound,
    positive_label_probability,
    positive_probability,
    rollout_signal,
    score_variance,
    step_information,
    teacher_mixture,
)
from mprm_lab.theory.lines import Line, make_line

N_SETTINGS = 40
N_DRAWS = 10_000
D = 4


def step_lines(rng: np.random.Generator) -> list[Line]:
    """Each statement in many random settings: representations, teachers, rates of flips, success rates."""
    # probabilities stay within [0.05, 0.95]: rarer labels would need more draws for a normal interval
    phi, w = rng.uniform(-1.5, 1.5, (N_SETTINGS, D)), rng.uniform(-0.5, 0.5, (N_SETTINGS, D))
    return [_teacher(rng, phi, w), _gradient(rng, phi, w), *_moments(rng, phi, w), *_monte_carlo(rng)]


def drawn_labels(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> FloatArray:
    """Labels of a logistic teacher, shape (draws, settings): whether the logit and logistic noise are above 0."""
    # no probability is computed, so that the labels do not rest on the equation they are to confirm
    labels: FloatArray = (np.sum(phi * w, axis=-1) + rng.logistic(size=(N_DRAWS, len(phi))) > 0).astype(np.float64)
    return labels


def _teacher(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> Line:
    return make_line(
        "teacher",
        "eq:teacher",
        "Pr(Y = 1 | φ) = σ(⟨w*, φ⟩)",
        "=",
        positive_probability(phi, w),
        drawn_labels(rng, phi, w),
    )


def _gradient(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> Line:
    Y, along, h = rng.integers(2, size=len(phi)), rng.normal(size=phi.shape), 1e-5

    def loss(w: FloatArray) -> FloatArray:
        logit = np.sum(phi * w, axis=-1)
        value: FloatArray = np.logaddexp(0, logit) - Y * logit
        return value

    slope = (loss(w + h * along) - loss(w - h * along)) / (2 * h)
    return make_line(
        "gradient",
        "section 3.3",
        "slope of the loss = ⟨(q_w − Y) φ, direction⟩",
        "=",
        np.sum(gradient(phi, Y, w) * along, axis=-1),
        simulated=slope,
        tolerance=1e-8,
    )


def _moments(rng: np.random.Generator, phi: FloatArray, w: FloatArray) -> list[Line]:
    q, norm_sq, eta = positive_probability(phi, w), np.sum(phi**2, axis=-1), rng.uniform(0, 0.5, len(phi))
    Y = drawn_labels(rng, phi, w)
    flipped = np.where(rng.random(Y.shape) < eta, 1 - Y, Y)

    def size(Y: FloatArray) -> FloatArray:
        """Squared norm of each draw's gradient at the teacher."""
        squares: FloatArray = np.sum(gradient(phi, Y, w) ** 2, axis=-1)
        return squares

    return [
        make_line(
            "gradient second moment",
            "eq:grad-var",
            "E‖g‖² = q(1−q)‖φ‖²",
            "=",
            gradient_second_moment(q, norm_sq=norm_sq),
            size(Y),
        ),
        make_line(
            "… under label noise",
            "eq:noise-factor",
            "E‖g̃‖² = ((1−4η) q(1−q) + η)‖φ‖²",
            "=",
            gradient_second_moment(q, norm_sq=norm_sq, eta=eta),
            size(flipped),
        ),
        make_line(
            "flipped label",
            "eq:tilde-q-def",
            "Pr(Ỹ = 1) = (1−2η) q + η",
            "=",
            flipped_probability(q, eta=eta),
            flipped,
        ),
    ]


def _monte_carlo(rng: np.random.Generator) -> list[Line]:
    N = rng.choice([1, 4, 8, 16, 32], N_SETTINGS)
    r = -np.expm1(np.log1p(-rng.uniform(0.05, 0.95, N_SETTINGS)) / N)  # so that neither label is rare
    K = rng.binomial(N, r, (N_DRAWS, N_SETTINGS))
    s = K / N
    return [
        make_line(
            "positive label",
            "section 3.3",
            "Pr(K > 0) = 1 − (1−r)^N",
            "=",
            positive_label_probability(r, N),
            K > 0,
        ),
        make_line(
            "MC score's variance",
            "section 3.3",
            "E[(s − r)² | r] = r(1−r)/N",
            "=",
            score_variance(r, N),
            (s - r) ** 2,
        ),
    ]


N_ROLLOUTS = 24


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


N_STEPS = 200_000
N_RANDOM = 500
LEAST_STEPS = 30
"""Fewest steps of each kind behind a share, so that its chance is a normal one."""
PRIORS = [(0.8, 0.3, 0.5, 16), (2.0, 0.5, 0.7, 16), (1.0, 1.0, 0.5, 8), (0.4, 0.6, 0.3, 4)]
"""(a, b, tau, N)."""
CONTINUATIONS = (1, 2, 4, 8, 16, 32, 64)
"""Pseudo-positives are counted for each of these, with the first prior."""


def success_rate_lines(rng: np.random.Generator) -> list[Line]:
    """Draw success rates and counts under several priors, and look at the rates behind each count."""
    means, shares = zip(*(_by_count(rng, *prior) for prior in PRIORS), strict=True)
    return [
        _line("posterior mean (k = 1)", "section 3.3", "E[r | k] = (a+k)/(a+b+N)", means),
        _line("effective noise (k = 1)", "η_eff, section 3.3", "Pr(r < τ | k) = I_τ(a+k, b+N−k)", shares),
        _falls(rng),
        *_of_all(rng),
    ]


Compared = tuple[FloatArray, FloatArray, FloatArray]
"""Predicted, simulated, standard error of each setting."""


def _line(name: str, equation: str, statement: str, parts: tuple[Compared, ...]) -> Line:
    predicted, simulated, error = (np.concatenate(values) for values in zip(*parts, strict=True))
    return make_line(name, equation, statement, "=", predicted, simulated=simulated, error=error)


def _by_count(rng: np.random.Generator, a: float, b: float, tau: float, N: int) -> tuple[Compared, Compared]:
    """Mean success rate and share below tau of the steps of each count, k = 1 first."""
    r = rng.beta(a, b, N_STEPS)
    K = rng.binomial(N, r)
    means, shares = [], []
    for k in [1, 0, *range(2, N + 1)]:
        found = r[k == K]
        error = found.std(ddof=1) / np.sqrt(len(found))
        means.append((float(posterior_mean(k, N, a=a, b=b)), found.mean(), error))
        below = found < tau
        if LEAST_STEPS <= below.sum() <= len(below) - LEAST_STEPS:
            error = below.std(ddof=1) / np.sqrt(len(below))
            shares.append((float(eta_eff(k, N, tau=tau, a=a, b=b)), below.mean(), error))
    return _columns(means), _columns(shares)


def _columns(rows: list[tuple[float, float, float]]) -> Compared:
    predicted, simulated, error = np.array(rows).T
    return predicted, simulated, error


def _falls(rng: np.random.Generator) -> Line:
    steepest = []
    for _ in range(N_RANDOM):
        a, b = np.exp(rng.uniform(np.log(0.3), np.log(5), 2))
        N, tau = int(rng.integers(1, 17)), rng.uniform(0.3, 0.7)
        noise = eta_eff(np.arange(N + 1), N, tau=tau, a=a, b=b)
        steepest.append(float(np.diff(noise).max()))
    return make_line(
        "effective noise falls with k",
        "lem:eta-eff-monotone",
        "η_eff(k+1) − η_eff(k) < 0",
        "<",
        0.0,
        simulated=steepest,
    )


def _of_all(rng: np.random.Generator) -> list[Line]:
    """Shares over all steps of a prior."""
    never: list[tuple[float, float, float]] = []
    pseudo: list[tuple[float, float, float]] = []
    a, b, tau, _ = PRIORS[0]
    for a, b, tau, N in [*PRIORS, *((a, b, tau, N) for N in CONTINUATIONS)]:
        r = rng.beta(a, b, N_STEPS)
        K = rng.binomial(N, r)
        for predicted, is_so, found in (
            (all_fail(0, N, a=a, b=b), K == 0, never),
            (pseudo_positive_share(N, tau=tau, a=a, b=b), r[K > 0] < tau, pseudo),
        ):
            found.append((float(predicted), is_so.mean(), is_so.std(ddof=1) / np.sqrt(len(is_so))))
    return [
        _line("negative steps", "section 3.3", "Pr(K = 0) = B(a, b+N)/B(a, b)", (_columns(never),)),
        _line(
            "pseudo-positive share",
            "mean of η_eff over k > 0",
            "Pr(r < τ | K > 0) = (I_τ(a,b) − f I_τ(a,b+N))/(1−f), f = Pr(K = 0)",
            (_columns(pseudo),),
        ),
    ]

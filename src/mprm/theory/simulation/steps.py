"""Statements on single steps: the teacher, its gradient, flipped labels, Monte-Carlo labels."""

from __future__ import annotations

import numpy as np

from mprm.theory.argument_checks import FloatArray
from mprm.theory.gradient_moment import gradient_second_moment
from mprm.theory.label_flips import flipped_probability
from mprm.theory.logistic_teacher import gradient, positive_probability
from mprm.theory.positive_label import positive_label_probability, score_variance
from mprm.theory.simulation.line import Line, make_line

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

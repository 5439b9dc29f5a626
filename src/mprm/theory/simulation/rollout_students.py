"""Students trained on rollouts, many at once, and how good they are on steps they have not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mprm.theory.argument_checks import FloatArray
from mprm.theory.logistic_teacher import positive_probability
from mprm.theory.simulation.annotated_rollouts import AnnotatedRollouts, BoolArray

ETA_0 = 1.0
RADIUS = 8.0
NEWTON_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How good each student is; shapes (students,)."""

    risk: FloatArray
    """Loss above the teacher's on the teacher's labels."""
    refitted_risk: FloatArray
    """The same with the intercept that suits best: what a threshold chosen on held-out steps makes of it."""
    f1: FloatArray
    """Macro-F1 at the best threshold, the paper's measure, less the teacher's own; expected over its labels."""


def train(phi: FloatArray, labels: BoolArray, is_step: BoolArray) -> FloatArray:
    """Parameters after one pass of projected SGD, a rollout an update, with steps ``eta_0 / sqrt(t)``.

    Parameters
    ----------
    phi : shape (students, rollouts, J, d)
        Representations, in the order of training.
    labels, is_step : shape (students, rollouts, J)
        Labels; which of the J are steps. An update takes the mean gradient over the rollout's steps.
    """
    n_students, n_rollouts, _, d = phi.shape
    share = is_step / np.maximum(1, is_step.sum(axis=-1, keepdims=True))
    w = np.zeros((n_students, d))
    for t in range(n_rollouts):
        residual = (positive_probability(phi[:, t], w[:, None]) - labels[:, t]) * share[:, t]
        w = w - ETA_0 / np.sqrt(t + 1) * np.einsum("sj,sjd->sd", residual, phi[:, t])
        w *= np.minimum(1.0, RADIUS / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), RADIUS / 2))
    return w


def quality(w: FloatArray, held_out: AnnotatedRollouts) -> Quality:
    """How good students with these parameters, shape (students, d), are on held-out rollouts."""
    phi, q = held_out.phi[held_out.is_step], held_out.q[held_out.is_step]
    z, teacher = w @ phi.T, held_out.world.w_star @ phi.T
    best = _loss(teacher[None], q)
    return Quality(
        risk=_loss(z, q) - best,
        refitted_risk=_loss(z + _intercept(z, q)[:, None], q) - best,
        f1=np.array([_macro_f1(row, q) for row in z]) - _macro_f1(teacher, q),
    )


def _loss(z: FloatArray, q: FloatArray) -> FloatArray:
    loss: FloatArray = (np.logaddexp(0, z) - q * z).mean(axis=-1)
    return loss


def _intercept(z: FloatArray, q: FloatArray) -> FloatArray:
    """What to add to each student's logits for the least loss, by Newton's method; shape (students,)."""
    shift = np.zeros(len(z))
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(z + shift[:, None])))
        shift -= np.clip((p - q).mean(axis=-1) / (p * (1 - p)).mean(axis=-1), -1.0, 1.0)
    return shift


def _macro_f1(z: FloatArray, q: FloatArray) -> float:
    """Best over all thresholds of the mean of both classes' F1, counts expected under q."""
    q = q[np.argsort(-z)]
    n, all_pos = len(q), q.sum()
    n_called, true_pos = np.arange(1, n), np.cumsum(q)[:-1]
    true_neg = (n - all_pos) - (n_called - true_pos)
    f1_pos = 2 * true_pos / (n_called + all_pos)
    f1_neg = 2 * true_neg / ((n - n_called) + (n - all_pos))
    return float(np.max(f1_pos + f1_neg) / 2)

"""Many students at once, trained by projected SGD as in the paper's appendix, with an exact population loss.

Representations take eight values, the corners of a cube, equally often: bounded, and the population loss is a
mean over them. The set of parameters is a ball that holds the teacher's.

"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from mprm.theory.arguments import FloatArray
from mprm.theory.equations import gradient, positive_probability

IntArray = NDArray[np.int64]

PHI = np.array(list(product([-1.0, 1.0], repeat=3)))
W_STAR = np.array([0.8, -0.4, 0.3])
Q = positive_probability(PHI, W_STAR)
RADIUS = 3.0
ETA_0 = 2.0
"""Below 1 / L = 4, and large enough that what the start leaves is gone after a thousand updates."""


def population_loss(w: FloatArray) -> FloatArray:
    """Expected logistic loss under the teacher; shape (...) of parameters (..., 3)."""
    z = w @ PHI.T
    loss: FloatArray = (np.logaddexp(0, z) - Q * z).mean(-1)
    return loss


def excess_risk(w: FloatArray) -> FloatArray:
    """Loss above the teacher's own; shape (...) of parameters (..., 3)."""
    return population_loss(w) - population_loss(W_STAR)


def samples(rng: np.random.Generator, n: int, n_students: int) -> IntArray:
    """For each student, how many of its n training steps are of each kind: corners labelled 1, then labelled 0."""
    return rng.multinomial(n, np.concatenate([Q, 1 - Q]) / len(PHI), size=n_students)


def batches(rng: np.random.Generator, counts: IntArray, n_updates: int) -> tuple[IntArray, NDArray[np.bool_]]:
    """Corner and label of each update's training step, drawn with replacement; shapes (updates, students)."""
    reached = np.cumsum(counts, axis=-1)
    place = rng.random((n_updates, len(counts))) * reached[:, -1]
    kind = np.zeros(place.shape, np.int64)
    for last in reached.T[:-1]:
        kind += place >= last
    return kind % len(PHI), kind < len(PHI)


def fresh(rng: np.random.Generator, n_updates: int, n_students: int) -> tuple[IntArray, NDArray[np.bool_]]:
    """Corner and label of training steps that are each seen once; shapes (updates, students)."""
    corner = rng.integers(len(PHI), size=(n_updates, n_students))
    return corner, rng.random(corner.shape) < Q[corner]


def empirical_minimizer(counts: IntArray) -> FloatArray:
    """Parameters of least loss on each student's sample, by Newton's method; shape (students, 3)."""
    positive, n = counts[:, : len(PHI)], counts[:, : len(PHI)] + counts[:, len(PHI) :]
    w = np.zeros((len(counts), PHI.shape[1]))
    for _ in range(15):
        q = positive_probability(PHI, w[:, None, :])
        hessian = np.einsum("mk,ki,kj->mij", n * q * (1 - q), PHI, PHI)
        w = w - np.linalg.solve(hessian, ((n * q - positive) @ PHI)[..., None])[..., 0]
    return w


def largest_deviation(counts: IntArray, w: FloatArray) -> FloatArray:
    """Largest difference of empirical and population loss over parameters w, shape (..., 3); shape (students,)."""
    z = w @ PHI.T
    loss = np.concatenate([np.logaddexp(0, -z), np.logaddexp(0, z)], axis=-1)
    empirical = counts @ loss.T / counts.sum(-1, keepdims=True)
    deviation: FloatArray = np.abs(empirical - population_loss(w)).max(-1)
    return deviation


def sgd(corners: IntArray, labels: NDArray[np.bool_], keep: Sequence[int]) -> dict[int, FloatArray]:
    """Parameters of each student after each number of updates in `keep`, with steps ``eta_0 / sqrt(t)``."""
    w = np.zeros((corners.shape[1], PHI.shape[1]))
    kept = {}
    for t, (corner, label) in enumerate(zip(corners, labels, strict=True), start=1):
        w = w - ETA_0 / np.sqrt(t) * gradient(PHI[corner], label, w)
        norm = np.linalg.norm(w, axis=-1, keepdims=True)
        w = np.where(norm > RADIUS, w * (RADIUS / np.maximum(norm, RADIUS)), w)
        if t in keep:
            kept[t] = w
    return kept


def parameters(rng: np.random.Generator, n: int) -> FloatArray:
    """Parameters from all over the ball, half of them on its surface; shape (n, 3)."""
    w = rng.normal(size=(n, PHI.shape[1]))
    length = RADIUS * np.where(rng.random((n, 1)) < 0.5, 1, rng.random((n, 1)))
    inside: FloatArray = w * length / np.linalg.norm(w, axis=-1, keepdims=True)
    return inside

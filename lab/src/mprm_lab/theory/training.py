"""Simulations of training: how excess risk falls with data and optimizer steps, and what subsampling does to it.

Many students at once, trained by projected SGD as in the paper's appendix, with an exact population loss:
representations take eight values, the corners of a cube, equally often. The set of parameters is a ball that holds
the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from mprm.theory import FloatArray, gradient, positive_probability, risk_bound, subsampled
from mprm_lab.theory.statements import Comparison, compare, ratio_samples

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

PHI = np.array(list(product([-1.0, 1.0], repeat=3)))
W_STAR = np.array([0.8, -0.4, 0.3])
Q = positive_probability(PHI, W_STAR)
RADIUS = 3.0
ETA_0 = 2.0
"""Below 1 / L = 4, and large enough that what the start leaves is gone after a thousand optimizer steps."""


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


def batches(rng: np.random.Generator, counts: IntArray, n_updates: int) -> tuple[IntArray, BoolArray]:
    """Corner and label of each update's training step, sampled with replacement; shapes (updates, students)."""
    reached = np.cumsum(counts, axis=-1)
    position = rng.random((n_updates, len(counts))) * reached[:, -1]
    kind = np.zeros(position.shape, np.int64)
    for last in reached.T[:-1]:
        kind += position >= last
    return kind % len(PHI), kind < len(PHI)


def fresh(rng: np.random.Generator, n_updates: int, n_students: int) -> tuple[IntArray, BoolArray]:
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


def sgd(corners: IntArray, labels: BoolArray, keep: Sequence[int]) -> dict[int, FloatArray]:
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


N_STUDENTS = 4000
"""Twice as many in a single pass, whose exponent and ratio vary most."""
STUDENTS_AT_ONCE = 1000
"""Students of a single pass that are trained together: bounds memory."""
N_GROUPS = 40
"""An exponent is fitted to each group of students by itself."""
UPDATES = (1024, 2048, 4096, 8192)
DATA = (256, 1024, 4096, 16_384)
GRID = (256, 1024, 4096)
GAMMA = 0.25
LIMIT_TOLERANCE = 0.03
"""How far an exponent may be from its limit at the sizes that are simulated; twice that for a ratio."""

Curve = dict[int, FloatArray]
"""Excess risk of every student, by number of updates or of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Excess risks of the students."""

    single_pass: Curve
    """By number of updates, each training step seen once."""
    minimizer: Curve
    """Of the empirical minimizer, by number of training steps."""
    deviation: Curve
    """Largest difference of empirical and population loss, by number of training steps."""
    finite: dict[tuple[int, int], FloatArray]
    """By (training steps, updates)."""
    matched: tuple[FloatArray, FloatArray]
    """After as many updates on plenty of data, and on a quarter of it."""


def train_students(rng: np.random.Generator) -> Training:
    """Train thousands of students on fresh and on finite data."""
    counts = {n: samples(rng, n, N_STUDENTS) for n in DATA}
    where = parameters(rng, 500)
    finite = {}
    for n in GRID:
        few = counts[n][: N_STUDENTS // 4]
        for T, w in sgd(*batches(rng, few, GRID[-1]), keep=GRID).items():
            finite[n, T] = excess_risk(w)
    return Training(
        single_pass=_single_pass(rng),
        minimizer={n: excess_risk(empirical_minimizer(sample)) for n, sample in counts.items()},
        deviation={n: largest_deviation(sample, where) for n, sample in counts.items()},
        finite=finite,
        matched=_matched(rng),
    )


def _single_pass(rng: np.random.Generator) -> Curve:
    parts: list[Curve] = []
    for _ in range(2 * N_STUDENTS // STUDENTS_AT_ONCE):
        kept = sgd(*fresh(rng, UPDATES[-1], STUDENTS_AT_ONCE), keep=UPDATES)
        parts.append({T: excess_risk(w) for T, w in kept.items()})
    return {T: np.concatenate([part[T] for part in parts]) for T in UPDATES}


def _matched(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    counts = samples(rng, 65_536, N_STUDENTS)
    kept = rng.binomial(counts, GAMMA)
    T = UPDATES[0]
    whole, part = (excess_risk(sgd(*batches(rng, sample, T), keep=[T])[T]) for sample in (counts, kept))
    return whole, part


def compare_training(training: Training) -> list[Comparison]:
    """The risk bound's terms and exponents, and Random-γ with matched updates and in a single pass."""
    opt = _exponent(UPDATES, risk_bound(N_eff=1, T=UPDATES, C_data=1, C_opt=1).opt)
    data = _exponent(DATA, risk_bound(N_eff=DATA, T=1, C_data=1, C_opt=1).data)
    of_T, of_N, of_minimizer = map(_exponents, (training.single_pass, training.deviation, training.minimizer))
    return [
        compare("optimization term: exponent of T", opt, of_T, tolerance=LIMIT_TOLERANCE),
        compare("data term: exponent of N", data, of_N, tolerance=LIMIT_TOLERANCE),
        compare("… of the minimizer itself", data, of_minimizer),
        *_compare_bounds(training),
        *_compare_subsets(training),
    ]


def _exponent(sizes: tuple[int, ...], values: FloatArray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _exponents(curve: Mapping[int, FloatArray]) -> FloatArray:
    """Fitted exponent of each group of students, shape (groups,)."""
    means = np.stack([values.reshape(N_GROUPS, -1).mean(axis=1) for values in curve.values()])
    exponents: FloatArray = np.polyfit(np.log(list(curve)), np.log(means), 1)[0]
    return exponents


def _compare_bounds(training: Training) -> list[Comparison]:
    """The bound itself, its constants measured where data and updates are fewest, checked at all sizes."""
    n_0, T_0 = DATA[0], GRID[0]
    unit = risk_bound(N_eff=n_0, T=T_0, C_data=1, C_opt=1)
    # as in the appendix: twice the largest deviation bounds the minimizer's risk, and twice more what updates miss
    C_data = 2 * training.deviation[n_0].mean() / unit.data
    C_opt = training.finite[GRID[-1], T_0].mean() / unit.opt
    of_data = risk_bound(N_eff=DATA, T=1, C_data=C_data, C_opt=1).data
    sizes = np.array(list(training.finite))
    bound = risk_bound(N_eff=sizes[:, 0], T=sizes[:, 1], C_data=2 * C_data, C_opt=C_opt)
    return [
        compare("finite data's risk", of_data, np.stack(list(training.minimizer.values()), axis=-1)),
        compare("the bound", bound.total, np.stack(list(training.finite.values()), axis=-1)),
    ]


def _compare_subsets(training: Training) -> list[Comparison]:
    T, few = UPDATES[2], UPDATES[0]
    full = risk_bound(N_eff=T, T=T, C_data=1, C_opt=1)
    # the data's part is gone, as with 65,536 training steps
    plenty = risk_bound(N_eff=1e12, T=few, C_data=1, C_opt=1)
    single = subsampled(full, gamma=GAMMA, updates="single-pass").total / full.total
    matched = subsampled(plenty, gamma=GAMMA, updates="matched").total / plenty.total
    whole, part = training.matched
    grown = ratio_samples(training.single_pass[few], training.single_pass[T])
    return [
        compare("Random-25%, single pass", single, grown, tolerance=2 * LIMIT_TOLERANCE),
        compare("Random-25%, matched updates", matched, ratio_samples(part, whole), tolerance=2 * LIMIT_TOLERANCE),
    ]

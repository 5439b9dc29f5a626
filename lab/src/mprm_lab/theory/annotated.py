"""Rollouts with correlated steps, annotated by Monte Carlo: success rates, counts and labels.

Students trained on rollouts, many at once, and how good they are on steps they have not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mprm.data.records import Chunk
from mprm.selection.scan import ROW_TYPE, LabelCounts
from mprm.selection.strategies import Ranking, StrategyName, keep_top
from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import IntArray
from mprm.theory.equations import positive_probability

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How rollouts come about.

    A step is right (tau-reliable) with the teacher's probability ``q* = sigma(<w*, phi>)``. The success rate of
    a right step lies in [tau, 1], that of a wrong one in [0, tau]: a wrong step succeeds now and then, and is
    then a pseudo-positive. The defaults give about the negative steps and the mean score of the paper's corpus.
    """

    correlation: float = 0.5
    """Of a feature between two steps of a rollout: the part of its variance that is the rollout's own."""
    n_features: int = 5
    slope: float = 3.0
    """Standard deviation of the teacher's logit."""
    intercept: float = 5.0
    tau: float = 0.5
    N: int = 16
    wrong: tuple[float, float] = (0.4, 1.5)
    """Beta of a wrong step's success rate, as a part of tau."""
    right: tuple[float, float] = (4.0, 0.5)
    """Beta of a right step's, as a part of the way from tau to 1."""
    n_steps: tuple[int, int] = (3, 8)
    """Fewest and most steps of a rollout."""
    reach: float = 2.5
    """Features are cut there, so that representations are bounded."""

    @property
    def w_star(self) -> FloatArray:
        """The teacher's parameters, intercept first; shape (n_features + 1,)."""
        signs = np.where(np.arange(self.n_features) % 2, -1.0, 1.0)
        return np.concatenate([[self.intercept], self.slope * signs / np.sqrt(self.n_features)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedRollouts:
    """Rollouts, X of them with up to J steps; arrays of shape (X, J) are meaningless where there is no step."""

    phi: FloatArray
    """Representations, shape (X, J, d)."""
    is_step: BoolArray
    q: FloatArray
    """The teacher's probability that the step is right."""
    r: FloatArray
    """Success rate of one continuation."""
    k: IntArray
    """Successes of N continuations."""
    world: World

    @property
    def is_positive(self) -> BoolArray:
        """The hard label, ``k > 0``."""
        return self.is_step & (self.k > 0)

    @property
    def is_pseudo_positive(self) -> BoolArray:
        """Positive, though not tau-reliable."""
        return self.is_positive & (self.r < self.world.tau)

    def label_counts(self) -> LabelCounts:
        """The rollouts as `mprm select` counts them, all of one source."""
        scores = np.where(self.is_step, self.k / self.world.N, 0.0)
        rows = np.zeros(len(scores), ROW_TYPE)
        rows["n_steps"], rows["n_pos"] = self.is_step.sum(axis=1), self.is_positive.sum(axis=1)
        rows["sum_all"] = rows["sum_pos"] = scores.sum(axis=1)
        counts = LabelCounts()
        counts.add(Chunk("simulated", "plain", "simulated", 0, 0, "visualprm-raw"), rows, 1, [0])
        counts.sources = ["simulated"]
        return counts


def annotated_rollouts(rng: np.random.Generator, world: World, n_rollouts: int) -> AnnotatedRollouts:
    """Draw rollouts and annotate them."""
    shape = (n_rollouts, world.n_steps[1])
    lengths = rng.integers(world.n_steps[0], world.n_steps[1] + 1, n_rollouts)
    own = rng.normal(size=(n_rollouts, 1, world.n_features))
    features = np.sqrt(world.correlation) * own
    features = features + np.sqrt(1 - world.correlation) * rng.normal(size=(*shape, world.n_features))
    phi = np.concatenate([np.ones((*shape, 1)), features.clip(-world.reach, world.reach)], axis=-1)
    q = positive_probability(phi, world.w_star)
    is_right = rng.random(shape) < q
    low = world.tau * rng.beta(*world.wrong, shape)
    high = world.tau + (1 - world.tau) * rng.beta(*world.right, shape)
    r = np.where(is_right, high, low)
    return AnnotatedRollouts(
        phi=phi,
        is_step=np.arange(shape[1]) < lengths[:, None],
        q=q,
        r=r,
        k=rng.binomial(world.N, r),
        world=world,
    )


def subset(counts: LabelCounts, strategy: StrategyName, n_keep: int, *, alpha: float, seed: int) -> IntArray:
    """The rollouts that `mprm select` would keep."""
    ranking = Ranking(strategy=strategy, alpha=alpha, seed=seed, ties="hash")
    kept = keep_top(counts, ranking, lambda _source, _n: n_keep)
    return np.flatnonzero(kept.between(0, len(counts.rows)))


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

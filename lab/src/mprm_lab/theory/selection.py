"""Simulations of selection: what students learn from a tenth by each strategy, and from pseudo-positives.

Rollouts with correlated steps are annotated by Monte Carlo; each subset is what ``mprm select`` keeps of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.config import PAPER_STRATEGIES
from mprm.selection import ROW_TYPE, LabelCounts, keep_top
from mprm.theory import FloatArray, positive_probability
from mprm_lab.theory.statements import Comparison, compare, ratio_samples

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


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
    """Features are clipped there, so that representations are bounded."""

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
        """The rollouts as ``mprm select`` counts them, all of one source."""
        rows = np.zeros(len(self.k), ROW_TYPE)
        rows["n_steps"], rows["n_pos"] = self.is_step.sum(axis=1), self.is_positive.sum(axis=1)
        rows["sum_all"] = rows["sum_pos"] = np.where(self.is_step, self.k / self.world.N, 0.0).sum(axis=1)
        return LabelCounts(rows, [], ["simulated"])


def annotated_rollouts(rng: np.random.Generator, world: World, n_rollouts: int) -> AnnotatedRollouts:
    """Sample rollouts and annotate them."""
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
    is_step = np.arange(shape[1]) < lengths[:, None]
    return AnnotatedRollouts(phi=phi, is_step=is_step, q=q, r=r, k=rng.binomial(world.N, r), world=world)


def subset(counts: LabelCounts, strategy: str, n_keep: int, *, alpha: float, seed: int) -> IntArray:
    """Indices of the rollouts that ``mprm select`` would keep."""
    return np.flatnonzero(keep_top(counts, strategy, lambda _source, _n: n_keep, alpha=alpha, seed=seed).mask)


ETA_0 = 1.0
RADIUS = 8.0
NEWTON_STEPS = 12


Quality = dict[str, FloatArray]
"""How good each student is, shapes (students,). ``risk``: loss above the teacher's on the teacher's labels;
``refitted_risk``: the same with the best intercept, as a threshold chosen on held-out steps gives it; ``f1``:
macro-F1 at the best threshold, the paper's measure, minus the teacher's own, expected over its labels."""


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
    return {
        "risk": _loss(z, q) - best,
        "refitted_risk": _loss(z + _intercept(z, q)[:, None], q) - best,
        "f1": np.array([_macro_f1(row, q) for row in z]) - _macro_f1(teacher, q),
    }


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


N_ROLLOUTS = 5000
N_HELD_OUT = 4000
RHO = 0.10
ALPHA = 0.05
SEEDS_AT_ONCE = 20
"""Bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResults:
    """Students of one world, by what they were trained on: a strategy, or ``all`` rollouts."""

    world: World
    quality: dict[str, Quality]
    """One student a seed."""
    pseudo_positive: dict[str, float]
    """Share of pseudo-positives among the positive steps they were trained on."""
    negative: dict[str, float]
    """Share of negative labels among the steps they were trained on."""
    negative_steps: float
    """Of the corpus, as the two below."""
    mean_mc: float
    mixed_rollouts: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON: mean and half width of the 95% interval over seeds."""
        return {
            "world": asdict(self.world),
            "negative_steps": self.negative_steps,
            "mean_mc": self.mean_mc,
            "mixed_rollouts": self.mixed_rollouts,
            "students": {
                name: {measure: _interval(values) for measure, values in students.items()}
                | {"pseudo_positive": self.pseudo_positive[name], "negative": self.negative[name]}
                for name, students in self.quality.items()
            },
        }


def _interval(values: FloatArray) -> tuple[float, float]:
    return float(values.mean()), float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def train_by_strategy(rng: np.random.Generator, world: World, n_seeds: int) -> StrategyResults:
    """Train a student on each strategy's tenth, and on all rollouts, for every seed."""
    held_out = annotated_rollouts(rng, world, N_HELD_OUT)
    parts: dict[str, list[Quality]] = {name: [] for name in (*PAPER_STRATEGIES, "all")}
    labels = {name: np.zeros(3) for name in parts}
    corpus_shares = []
    for start in range(0, n_seeds, SEEDS_AT_ONCE):
        seeds = range(start, min(start + SEEDS_AT_ONCE, n_seeds))
        corpora = [annotated_rollouts(rng, world, N_ROLLOUTS) for _ in seeds]
        counts = [corpus.label_counts() for corpus in corpora]
        corpus_shares += [_corpus_shares(corpus) for corpus in corpora]
        for name in parts:
            chosen = [
                np.arange(N_ROLLOUTS)
                if name == "all"
                else subset(c, name, int(RHO * N_ROLLOUTS), alpha=ALPHA, seed=seed)
                for c, seed in zip(counts, seeds, strict=True)
            ]
            students, n_labels = _train_students(rng, corpora, chosen, held_out)
            parts[name].append(students)
            labels[name] += n_labels
    negative_steps, mean_mc, mixed = np.mean(corpus_shares, axis=0).tolist()
    return StrategyResults(
        world=world,
        quality={
            name: {measure: np.concatenate([part[measure] for part in each]) for measure in each[0]}
            for name, each in parts.items()
        },
        pseudo_positive={name: float(n_pseudo / n_pos) for name, (n_pseudo, n_pos, _) in labels.items()},
        negative={name: float(1 - n_pos / n_steps) for name, (_, n_pos, n_steps) in labels.items()},
        negative_steps=negative_steps,
        mean_mc=mean_mc,
        mixed_rollouts=mixed,
    )


def _corpus_shares(corpus: AnnotatedRollouts) -> tuple[float, float, float]:
    """Share of negative steps, mean score, share of mixed rollouts."""
    n_pos, n = corpus.is_positive.sum(axis=1), corpus.is_step.sum(axis=1)
    scores = corpus.k[corpus.is_step] / corpus.world.N
    return 1 - n_pos.sum() / n.sum(), scores.mean(), ((n_pos > 0) & (n_pos < n)).mean()


def _train_students(
    rng: np.random.Generator, corpora: list[AnnotatedRollouts], chosen: list[IntArray], held_out: AnnotatedRollouts
) -> tuple[Quality, tuple[int, int, int]]:
    """The students, and how many pseudo-positive steps, positive steps and steps they were trained on."""
    orders = [rng.permutation(rollouts) for rollouts in chosen]

    def taken(array: Callable[[AnnotatedRollouts], Any]) -> Any:
        return np.stack([array(corpus)[order] for corpus, order in zip(corpora, orders, strict=True)])

    labels, is_step = taken(lambda corpus: corpus.is_positive), taken(lambda corpus: corpus.is_step)
    w = train(taken(lambda corpus: corpus.phi), labels, is_step)
    n_pseudo = int(taken(lambda corpus: corpus.is_pseudo_positive).sum())
    return quality(w, held_out), (n_pseudo, int(labels.sum()), int(is_step.sum()))


WRONG_STEPS_SUCCEED = (0.05, 0.1, 0.2, 0.4, 0.8)
"""First parameter of a wrong step's Beta: the larger, the more pseudo-positives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoPositiveResults:
    """Students of random rollouts in worlds with few and many pseudo-positives."""

    share: FloatArray
    """Of the positive steps, shape (worlds,)."""
    annotated: FloatArray
    """Risk of students with the labels ``k > 0``, shape (seeds, worlds)."""
    corrected: FloatArray
    """Risk of students of the same rollouts with pseudo-positives labelled negative."""


def train_with_pseudo_positives(rng: np.random.Generator, world: World, n_seeds: int) -> PseudoPositiveResults:
    """Train students with and without pseudo-positives."""
    shares, risks = [], []
    for first in WRONG_STEPS_SUCCEED:
        other = replace(world, wrong=(first, world.wrong[1]))
        held_out = annotated_rollouts(rng, other, N_HELD_OUT)
        corpora = [annotated_rollouts(rng, other, int(RHO * N_ROLLOUTS)) for _ in range(n_seeds)]
        phi, is_step = np.stack([c.phi for c in corpora]), np.stack([c.is_step for c in corpora])
        labels: BoolArray = np.stack([c.is_positive for c in corpora])
        pseudo: BoolArray = np.stack([c.is_pseudo_positive for c in corpora])
        shares.append(pseudo.sum() / labels.sum())
        risks.append([quality(train(phi, y, is_step), held_out)["risk"] for y in (labels, labels & ~pseudo)])
    annotated, corrected = np.array(risks).transpose(1, 2, 0)
    return PseudoPositiveResults(share=np.array(shares), annotated=annotated, corrected=corrected)


def compare_strategies(usual: StrategyResults, alike: StrategyResults) -> list[Comparison]:
    """The strategies seed by seed, in a world like the corpus, and in one whose rollouts' steps are much alike."""

    def minus(measure: str, name: str, other: str, results: StrategyResults = usual) -> FloatArray:
        return results.quality[name][measure] - results.quality[other][measure]

    risk = "refitted_risk"
    others = [name for name in PAPER_STRATEGIES if name != "bis"]
    closed = ratio_samples(minus(risk, "random", "bis"), minus(risk, "random", "all"))
    return [
        *(compare(f"BIS against {name}", 0.0, minus(risk, "bis", name)) for name in others),
        *(compare(f"BIS against {name}: macro-F1", 0.0, minus("f1", "bis", name)) for name in ("random", "low-mc")),
        compare("a tenth by BIS against all data", 0.5, closed),
        compare("… its probabilities are not calibrated", 0.0, minus("risk", "bis", "reliable")),
        compare("… steps much alike (correlation 0.8)", 0.0, minus(risk, "bis", "reliable", alike)),
    ]


def compare_pseudo_positives(results: PseudoPositiveResults) -> list[Comparison]:
    """Pseudo-positives harm, and the more of them the more."""
    harm = results.annotated - results.corrected
    return [
        compare("pseudo-positives harm", 0.0, harm[:, ::-1]),
        compare("… the more the worse", 0.0, harm[:, -1] - harm[:, 0]),
    ]

"""Statements on subsets: what students learn from a tenth by each strategy, and from pseudo-positives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import numpy as np

from mprm.selection.strategies import StrategyName
from mprm.theory.arguments import FloatArray
from mprm_lab.theory.annotated import (
    AnnotatedRollouts,
    BoolArray,
    Quality,
    World,
    annotated_rollouts,
    quality,
    subset,
    train,
)
from mprm_lab.theory.lines import Line, make_line, ratio_draws

N_ROLLOUTS = 5000
N_HELD_OUT = 4000
RHO = 0.10
ALPHA = 0.05
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)
MEASURES = ("risk", "refitted_risk", "f1")
SEEDS_AT_ONCE = 20
"""Bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Students of one world, by what they were trained on."""

    world: World
    quality: dict[str, Quality]
    """By strategy, and ``all`` for all rollouts; one student a seed."""
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
                name: {measure: _interval(getattr(found, measure)) for measure in MEASURES}
                | {"pseudo_positive": self.pseudo_positive[name], "negative": self.negative[name]}
                for name, found in self.quality.items()
            },
        }


def _interval(values: FloatArray) -> tuple[float, float]:
    return float(values.mean()), float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def compare_strategies(rng: np.random.Generator, world: World, n_seeds: int) -> Compared:
    """Train a student on each strategy's tenth, and on all rollouts, for every seed."""
    held_out = annotated_rollouts(rng, world, N_HELD_OUT)
    parts: dict[str, list[Quality]] = {name: [] for name in (*STRATEGIES, "all")}
    labels = {name: np.zeros(3) for name in parts}
    facts = []
    for start in range(0, n_seeds, SEEDS_AT_ONCE):
        seeds = range(start, min(start + SEEDS_AT_ONCE, n_seeds))
        corpora = [annotated_rollouts(rng, world, N_ROLLOUTS) for _ in seeds]
        counts = [corpus.label_counts() for corpus in corpora]
        facts += [_facts(corpus) for corpus in corpora]
        for name in parts:
            chosen = [
                np.arange(N_ROLLOUTS)
                if name == "all"
                else subset(c, name, int(RHO * N_ROLLOUTS), alpha=ALPHA, seed=seed)  # type: ignore[arg-type]
                for c, seed in zip(counts, seeds, strict=True)
            ]
            found, counted = _students(rng, corpora, chosen, held_out)
            parts[name].append(found)
            labels[name] += counted
    negative_steps, mean_mc, mixed = np.mean(facts, axis=0).tolist()
    return Compared(
        world=world,
        quality={name: _joined(found) for name, found in parts.items()},
        pseudo_positive={name: float(n_pseudo / n_pos) for name, (n_pseudo, n_pos, _) in labels.items()},
        negative={name: float(1 - n_pos / n_steps) for name, (_, n_pos, n_steps) in labels.items()},
        negative_steps=negative_steps,
        mean_mc=mean_mc,
        mixed_rollouts=mixed,
    )


def _facts(corpus: AnnotatedRollouts) -> tuple[float, float, float]:
    n_pos, n = corpus.is_positive.sum(axis=1), corpus.is_step.sum(axis=1)
    scores = corpus.k[corpus.is_step] / corpus.world.N
    return 1 - n_pos.sum() / n.sum(), scores.mean(), ((n_pos > 0) & (n_pos < n)).mean()


def _students(
    rng: np.random.Generator,
    corpora: list[AnnotatedRollouts],
    chosen: list[Any],
    held_out: AnnotatedRollouts,
) -> tuple[Quality, tuple[int, int, int]]:
    """The students, and how many pseudo-positive steps, positive steps and steps they were trained on."""
    order = [rng.permutation(places) for places in chosen]

    def taken(array: Callable[[AnnotatedRollouts], Any]) -> Any:
        return np.stack([array(corpus)[places] for corpus, places in zip(corpora, order, strict=True)])

    labels, is_step = taken(lambda corpus: corpus.is_positive), taken(lambda corpus: corpus.is_step)
    w = train(taken(lambda corpus: corpus.phi), labels, is_step)
    n_pseudo = int(taken(lambda corpus: corpus.is_pseudo_positive).sum())
    return quality(w, held_out), (n_pseudo, int(labels.sum()), int(is_step.sum()))


def _joined(parts: list[Quality]) -> Quality:
    return Quality(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in MEASURES})


WRONG_STEPS_SUCCEED = (0.05, 0.1, 0.2, 0.4, 0.8)
"""First parameter of a wrong step's Beta: the larger, the more pseudo-positives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoPositives:
    """Students of random rollouts in worlds with few and many pseudo-positives."""

    share: FloatArray
    """Of the positive steps, shape (worlds,)."""
    annotated: FloatArray
    """Risk of students with the labels ``k > 0``, shape (seeds, worlds)."""
    corrected: FloatArray
    """Risk of students of the same rollouts with pseudo-positives labelled negative."""


def pseudo_positive_students(rng: np.random.Generator, world: World, n_seeds: int) -> PseudoPositives:
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
        risks.append([quality(train(phi, y, is_step), held_out).risk for y in (labels, labels & ~pseudo)])
    annotated, corrected = np.array(risks).transpose(1, 2, 0)
    return PseudoPositives(share=np.array(shares), annotated=annotated, corrected=corrected)


def strategy_lines(found: Compared, alike: Compared) -> list[Line]:
    """The strategies compared seed by seed.

    Parameters
    ----------
    found, alike
        In a world like the corpus; in one whose rollouts' steps are much alike.
    """
    q = found.quality
    lines = [
        make_line(
            f"BIS against {name}",
            "section 3.3, experiments",
            f"risk, intercept refitted: BIS − {name} < 0",
            "<",
            0.0,
            q["bis"].refitted_risk - q[name].refitted_risk,
        )
        for name in STRATEGIES
        if name != "bis"
    ]
    return [
        *lines,
        *(
            make_line(
                f"BIS against {name}: macro-F1",
                "section 3.3, experiments",
                f"F1: BIS − {name} > 0",
                ">",
                0.0,
                q["bis"].f1 - q[name].f1,
            )
            for name in ("random", "low-mc")
        ),
        make_line(
            "a tenth by BIS against all data",
            "experiments: there no gap",
            "BIS closes more than half of random's gap to all data",
            ">",
            0.5,
            ratio_draws(
                q["random"].refitted_risk - q["bis"].refitted_risk, q["random"].refitted_risk - q["all"].refitted_risk
            ),
        ),
        make_line(
            "… its probabilities are not calibrated",
            "not in the paper",
            "risk, intercept not refitted: BIS − reliable > 0",
            ">",
            0.0,
            q["bis"].risk - q["reliable"].risk,
        ),
        make_line(
            f"… steps much alike (correlation {alike.world.correlation:g})",
            "not in the paper",
            "risk, intercept refitted: BIS − reliable > 0",
            ">",
            0.0,
            alike.quality["bis"].refitted_risk - alike.quality["reliable"].refitted_risk,
        ),
    ]


def pseudo_positive_lines(found: PseudoPositives) -> list[Line]:
    """Pseudo-positives harm, and the more of them the more."""
    harm = found.annotated - found.corrected
    return [
        make_line(
            "pseudo-positives harm",
            "section 3.3",
            "risk with them − risk with them labelled negative > 0",
            ">",
            0.0,
            harm[:, ::-1],
        ),
        make_line(
            "… the more the worse",
            "section 3.3",
            "harm with many − harm with few > 0",
            ">",
            0.0,
            harm[:, -1] - harm[:, 0],
        ),
    ]

"""All statements, simulated and judged together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mprm.errors import ConfigError
from mprm.theory.arguments import FloatArray
from mprm_lab.theory.annotated import World
from mprm_lab.theory.lines import FAMILY_ERROR, Line, Verdict, verdicts
from mprm_lab.theory.steps import rollout_lines, step_lines, success_rate_lines
from mprm_lab.theory.strategies import (
    ALPHA,
    N_ROLLOUTS,
    RHO,
    Compared,
    PseudoPositives,
    compare_strategies,
    pseudo_positive_lines,
    pseudo_positive_students,
    strategy_lines,
)
from mprm_lab.theory.training import Training, train_students, training_lines

PARTS = ("steps", "rollouts", "success-rates", "training", "strategies")
N_SEEDS = 200
"""Students of each strategy in the world like the corpus; as many corpora."""
N_SEEDS_OTHER = 60
"""In each of the other worlds, and for pseudo-positives."""
APART, ALIKE = 0.2, 0.8
"""Correlation of a rollout's steps in the other worlds."""
UNCERTAIN = World(correlation=ALIKE, n_features=9, slope=1.5, intercept=3.0, wrong=(0.25, 1.5))
"""A teacher less sure of its steps, and so more mixed rollouts: told beside the others, and no line is about it."""

CRITERION = (
    "A line holds when it does in all its settings. =, ≤ and ≥: no setting contradicts it beyond chance; < and >:"
    " every setting shows it beyond chance. Chance is granted so much (Bonferroni, Student's t) that a run in which"
    f" all statements are true refuses any of them with a probability of at most {FAMILY_ERROR:.0%}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was simulated, and the verdicts."""

    seed: int
    verdicts: list[Verdict]
    training: Training | None = None
    worlds: list[Compared] = field(default_factory=list)
    pseudo_positives: PseudoPositives | None = None

    @property
    def holds(self) -> bool:
        """Whether every line does."""
        return all(verdict.holds for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {
            "seed": self.seed,
            "holds": self.holds,
            "criterion": CRITERION,
            "lines": [verdict.as_dict() for verdict in self.verdicts],
        }
        if self.training is not None:
            found["training"] = _curves(self.training)
        if self.worlds:
            found["strategies"] = {"rollouts": N_ROLLOUTS, "rho": RHO, "alpha": ALPHA}
            found["strategies"]["worlds"] = [world.as_dict() for world in self.worlds]
        if (pseudo := self.pseudo_positives) is not None:
            found["pseudo_positives"] = {
                "share": pseudo.share.tolist(),
                "annotated": pseudo.annotated.mean(axis=0).tolist(),
                "corrected": pseudo.corrected.mean(axis=0).tolist(),
            }
        return found


def _curves(training: Training) -> dict[str, dict[int, dict[str, float]]]:
    """Mean and standard error of each curve, by number of data or of updates."""

    def points(curve: dict[int, FloatArray]) -> dict[int, dict[str, float]]:
        return {
            size: {"mean": float(values.mean()), "error": float(values.std(ddof=1) / np.sqrt(len(values)))}
            for size, values in curve.items()
        }

    return {name: points(getattr(training, name)) for name in ("single_pass", "minimizer", "deviation")}


def verify(*, seed: int = 0, only: Iterable[str] = (), on_part: Callable[[int], Any] | None = None) -> Verification:
    """Simulate what the paper's statements are about, and judge each statement.

    Parameters
    ----------
    seed
        Of all that is drawn; a part draws the same with or without the others.
    only
        Parts to simulate, of ``steps``, ``rollouts``, ``success-rates``, ``training`` and ``strategies``; all when
        empty.
    on_part
        Called after each part, for progress.

    Examples
    --------
    >>> verify(only=["steps"]).holds
    True
    """
    parts = list(only) or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ConfigError(f"unknown part {unknown[0]!r}; expected {', '.join(PARTS)}")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, got {seed}")
    lines: list[Line] = []
    found = Verification(seed=seed, verdicts=[])
    for number, part in enumerate(PARTS):
        if part not in parts:
            continue
        rng = np.random.default_rng([seed, number])
        if part == "training":
            found = replace(found, training=(training := train_students(rng)))
            lines += training_lines(training)
        elif part == "strategies":
            found, more = _strategies(rng, found)
            lines += more
        else:
            lines += {"steps": step_lines, "rollouts": rollout_lines, "success-rates": success_rate_lines}[part](rng)
        if on_part is not None:
            on_part(1)
    return replace(found, verdicts=verdicts(lines))


def _strategies(rng: np.random.Generator, found: Verification) -> tuple[Verification, list[Line]]:
    usual = compare_strategies(rng, World(), N_SEEDS)
    apart, alike = (compare_strategies(rng, World(correlation=c), N_SEEDS_OTHER) for c in (APART, ALIKE))
    pseudo = pseudo_positive_students(rng, World(), N_SEEDS_OTHER)
    lines = [*strategy_lines(usual, alike), *pseudo_positive_lines(pseudo)]
    uncertain = compare_strategies(rng, UNCERTAIN, N_SEEDS_OTHER)
    return replace(found, worlds=[usual, apart, alike, uncertain], pseudo_positives=pseudo), lines

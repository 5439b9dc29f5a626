"""A statement, what it predicts, what came out, and whether the two go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import scipy_special

FAMILY_ERROR = 0.01
"""Probability that one right line or more of a run is refused by chance, at most (Bonferroni)."""
ROUNDING = 1e-9
"""What floating point may add to either side, relative to the prediction."""

MANY = 1_000_000
"""Independent values behind a standard error that is known, not estimated."""

Relation = Literal["=", "≤", "≥", "<", ">"]
"""Simulated against predicted. ``=``, ``≤`` and ``≥`` are refused where the simulation contradicts them beyond
chance; ``<`` and ``>`` hold only where it shows them beyond chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One statement, compared in one setting or in many."""

    name: str
    equation: str
    """Where the paper has it: the equation's label, or the section."""
    statement: str
    relation: Relation
    predicted: FloatArray
    """Shape (settings,)."""
    simulated: FloatArray
    error: FloatArray
    """Standard error of each simulated value; 0 where nothing is drawn."""
    n_groups: int
    """Independent values that each standard error is estimated from."""
    tolerance: float = 0.0
    """Allowance of a statement that holds for many updates or data only."""

    @property
    def n_settings(self) -> int:
        """How many settings the statement is compared in."""
        return len(self.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A line and whether it holds."""

    line: Line
    holds: bool
    limit: float
    """Standard errors that chance is granted in each setting."""
    worst: float
    """Standard errors on the wrong side of the prediction, in the worst setting; infinite where nothing is drawn."""

    def interval(self) -> tuple[float, float]:
        """95% interval of the simulated value of the first setting, the one that tables show."""
        half = float(_t_limit(0.05, self.line.n_groups) * self.line.error[0])
        value = float(self.line.simulated[0])
        return value - half, value + half

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every setting with its values."""
        line, (low, high) = self.line, self.interval()
        return {
            "name": line.name,
            "equation": line.equation,
            "statement": line.statement,
            "relation": line.relation,
            "holds": self.holds,
            "predicted": float(line.predicted[0]),
            "simulated": float(line.simulated[0]),
            "low": low,
            "high": high,
            "n_settings": line.n_settings,
            "tolerance": line.tolerance,
            "worst": self.worst if np.isfinite(self.worst) else None,
            "limit": self.limit,
            "settings": {
                "predicted": line.predicted.tolist(),
                "simulated": line.simulated.tolist(),
                "error": line.error.tolist(),
            },
        }


def make_line(
    name: str,
    equation: str,
    statement: str,
    relation: Relation,
    predicted: ArrayLike,
    draws: ArrayLike | None = None,
    *,
    simulated: ArrayLike | None = None,
    error: ArrayLike = 0.0,
    n_groups: int = MANY,
    tolerance: float = 0.0,
) -> Line:
    """A line from draws, which lie on the first axis, shape (draws, settings); or from values and their errors."""
    if draws is not None:
        values = np.asarray(draws, np.float64).reshape(len(np.asarray(draws)), -1)
        mean, error, n_groups = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)), len(values)
    else:
        mean = np.asarray(simulated, np.float64).ravel()
    return Line(
        name=name,
        equation=equation,
        statement=statement,
        relation=relation,
        predicted=np.broadcast_to(np.asarray(predicted, np.float64).ravel(), mean.shape).copy(),
        simulated=mean,
        error=np.broadcast_to(np.asarray(error, np.float64).ravel(), mean.shape).copy(),
        n_groups=n_groups,
        tolerance=tolerance,
    )


def ratio_draws(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Draws whose mean is the ratio of the means, and whose spread is that of the ratio (delta method)."""
    ratio = float(part.mean() / whole.mean())
    draws: FloatArray = ratio + (part - ratio * whole) / whole.mean()
    return draws


def verdicts(lines: Sequence[Line]) -> list[Verdict]:
    """Whether each line holds, with the chance of a false refusal shared by all settings of all lines."""
    n_comparisons = max(1, sum(int(np.sum(line.error > 0)) for line in lines))  # chance has no part in the others
    return [_verdict(line, _t_limit(FAMILY_ERROR / n_comparisons, line.n_groups)) for line in lines]


def _verdict(line: Line, limit: float) -> Verdict:
    above = line.simulated - line.predicted
    # how far each setting lies on the wrong side
    wrong = {"=": np.abs(above), "≤": above, "≥": -above, "<": above, ">": -above}[line.relation]
    chance = limit * line.error
    slack = line.tolerance + ROUNDING * np.maximum(1e-3, np.abs(line.predicted))
    is_strict = line.relation in ("<", ">")
    good = wrong + chance < 0 if is_strict else wrong <= chance + slack
    beyond = wrong if is_strict else np.maximum(wrong - slack, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(line.error > 0, beyond / line.error, np.where(good, -np.inf, np.inf))
    worst = float(np.max(scaled))
    return Verdict(line=line, holds=bool(np.all(good)), limit=limit, worst=worst)


def _t_limit(alpha: float, n_groups: int) -> float:
    """Two-sided limit of Student's t."""
    return float(-scipy_special().stdtrit(n_groups - 1, alpha / 2))

"""The paper's statements, what each predicts, what a simulation gives, and whether the two agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from mprm.theory import FloatArray, scipy_special

Relation = Literal["=", "≤", "≥", "<", ">"]
"""Simulated against predicted. ``=``, ``≤`` and ``≥`` are rejected where the simulation contradicts them beyond
chance; ``<`` and ``>`` hold only where it shows them beyond chance."""

STATEMENTS = msgspec.json.decode(
    (files("mprm_lab.theory") / "statements.json").read_bytes(), type=dict[str, tuple[str, str, Relation]]
)
"""By name: where the paper has it (the equation's label, or the section), what it says, and how it is compared."""

FAMILY_ERROR = 0.01
"""Probability that one true statement or more of a run is rejected by chance, at most (Bonferroni)."""
ROUNDING = 1e-9
"""What floating point may add to either side, relative to the prediction."""
N_KNOWN = 1_000_000
"""Independent values behind a standard error that is known, not estimated."""
CRITERION = (
    "A line holds when it does in all its settings. =, ≤ and ≥: no setting contradicts it beyond chance; < and >:"
    " every setting shows it beyond chance. Chance is granted so much (Bonferroni, Student's t) that a run in which"
    f" all statements are true rejects any of them with a probability of at most {FAMILY_ERROR:.0%}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One statement, compared in one setting or in many; arrays have shape (settings,)."""

    name: str
    predicted: FloatArray
    simulated: FloatArray
    error: FloatArray
    """Standard error of each simulated value; 0 where nothing is sampled."""
    n_groups: int
    """Independent values that each standard error is estimated from."""
    tolerance: float = 0.0
    """Allowance of a statement that holds in the limit of many optimizer steps or data only."""

    @property
    def relation(self) -> Relation:
        """How the simulated values must lie to the predicted ones."""
        return STATEMENTS[self.name][2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A comparison and whether the statement holds."""

    comparison: Comparison
    holds: bool
    limit: float
    """Standard errors that chance is granted in each setting."""
    worst: float
    """Standard errors on the wrong side of the prediction in the worst setting; infinite where nothing is sampled."""

    def interval(self) -> tuple[float, float]:
        """95% interval of the simulated value of the first setting, the one that tables show."""
        half = float(_t_limit(0.05, self.comparison.n_groups) * self.comparison.error[0])
        value = float(self.comparison.simulated[0])
        return value - half, value + half

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every setting with its values."""
        compared, (low, high) = self.comparison, self.interval()
        equation, statement, relation = STATEMENTS[compared.name]
        return {
            "name": compared.name,
            "equation": equation,
            "statement": statement,
            "relation": relation,
            "holds": self.holds,
            "predicted": float(compared.predicted[0]),
            "simulated": float(compared.simulated[0]),
            "low": low,
            "high": high,
            "n_settings": len(compared.predicted),
            "tolerance": compared.tolerance,
            "worst": self.worst if np.isfinite(self.worst) else None,
            "limit": self.limit,
            "settings": {
                "predicted": compared.predicted.tolist(),
                "simulated": compared.simulated.tolist(),
                "error": compared.error.tolist(),
            },
        }


def compare(
    name: str,
    predicted: ArrayLike,
    samples: ArrayLike | None = None,
    *,
    simulated: ArrayLike | None = None,
    error: ArrayLike = 0.0,
    tolerance: float = 0.0,
) -> Comparison:
    """A comparison from samples on the first axis, shape (samples, settings); or from values and their errors."""
    n_groups = N_KNOWN
    if samples is not None:
        values = np.asarray(samples, np.float64).reshape(len(np.asarray(samples)), -1)
        mean, error, n_groups = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)), len(values)
    else:
        mean = np.asarray(simulated, np.float64).ravel()
    return Comparison(
        name=name,
        predicted=np.broadcast_to(np.asarray(predicted, np.float64).ravel(), mean.shape).copy(),
        simulated=mean,
        error=np.broadcast_to(np.asarray(error, np.float64).ravel(), mean.shape).copy(),
        n_groups=n_groups,
        tolerance=tolerance,
    )


def ratio_samples(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Samples whose mean is the ratio of the means, and whose spread is that of the ratio (delta method)."""
    ratio = float(part.mean() / whole.mean())
    samples: FloatArray = ratio + (part - ratio * whole) / whole.mean()
    return samples


def check_all(comparisons: Sequence[Comparison]) -> list[CheckResult]:
    """Whether each statement holds; the chance of a false rejection is shared by all settings of all of them."""
    n_tests = max(1, sum(int(np.sum(each.error > 0)) for each in comparisons))  # chance has no part in the others
    return [_check(each, _t_limit(FAMILY_ERROR / n_tests, each.n_groups)) for each in comparisons]


def _check(compared: Comparison, limit: float) -> CheckResult:
    above = compared.simulated - compared.predicted
    # how far each setting lies on the wrong side
    wrong = {"=": np.abs(above), "≤": above, "≥": -above, "<": above, ">": -above}[compared.relation]
    chance = limit * compared.error
    slack = compared.tolerance + ROUNDING * np.maximum(1e-3, np.abs(compared.predicted))
    is_strict = compared.relation in ("<", ">")
    is_good = wrong + chance < 0 if is_strict else wrong <= chance + slack
    beyond = wrong if is_strict else np.maximum(wrong - slack, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(compared.error > 0, beyond / compared.error, np.where(is_good, -np.inf, np.inf))
    return CheckResult(comparison=compared, holds=bool(np.all(is_good)), limit=limit, worst=float(np.max(scaled)))


def _t_limit(alpha: float, n_groups: int) -> float:
    """Two-sided limit of Student's t."""
    return float(-scipy_special().stdtrit(n_groups - 1, alpha / 2))

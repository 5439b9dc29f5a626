"""One score for a candidate, out of the scores of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mprm.errors import ConfigError

FloatArray = NDArray[np.float64]
Aggregate = Literal["mean", "min", "last", "product", "max"]

AGGREGATES: dict[str, Callable[[FloatArray], float]] = {
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "min": lambda scores: float(scores.min()),
    "last": lambda scores: float(scores[-1]),
    "product": lambda scores: float(np.sort(scores).prod()),
    "max": lambda scores: float(scores.max()),
}
"""``mean`` is the paper's: ``S = (1/T) Σ s_t``. None depends on the order of adding: equal scores tie exactly."""


def aggregate(step_scores: Sequence[float], how: str = "mean") -> float:
    """Score of a candidate, in [0, 1]; higher is better.

    Steps that truncation cut off (nan) are left out: nothing is known of them, so the candidate is
    judged by what the model saw of it, and ``last`` is the last step that it saw. A candidate without
    any scored step, because it has none or all were cut off, has score nan and ranks below all others.

    Examples
    --------
    >>> aggregate([0.5, 1.0, float("nan")], "mean"), aggregate([0.5, 1.0], "product")
    (0.75, 0.5)
    """
    if how not in AGGREGATES:
        raise ConfigError(f"unknown aggregate {how!r}; expected one of {', '.join(AGGREGATES)}")
    scores = np.asarray(step_scores, dtype=np.float64)
    seen = scores[~np.isnan(scores)]
    return AGGREGATES[how](seen) if len(seen) else float("nan")

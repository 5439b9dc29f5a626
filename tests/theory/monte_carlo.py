"""Whether a simulated mean agrees with what an equation predicts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

STANDARD_ERRORS = 4.5
"""Half width of the interval: a right equation is refused once in 150,000 means, and the seeds are fixed."""


def agrees(draws: ArrayLike, predicted: ArrayLike) -> bool:
    """Whether every prediction lies in the interval around the mean of its draws, which lie on the first axis."""
    draws = np.asarray(draws, np.float64)
    error = STANDARD_ERRORS * draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return bool(np.all(np.abs(draws.mean(axis=0) - predicted) <= error))

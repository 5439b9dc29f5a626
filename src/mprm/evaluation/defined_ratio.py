"""Division that says where there is nothing to divide by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def defined_ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """``part / whole``; nan where the whole is 0."""
    found = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found

"""Arguments of an equation as arrays, refused where the equation says nothing of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mprm.errors import DataError

FloatArray = NDArray[np.float64]


def within(name: str, values: ArrayLike, low: float, high: float) -> FloatArray:
    """The values as floats; each must lie in [low, high].

    Examples
    --------
    >>> within("q", [0.0, 0.5], 0, 1).tolist()
    [0.0, 0.5]
    """
    array = np.asarray(values, dtype=np.float64)
    bad = ~((array >= low) & (array <= high))  # so written, nan is bad too
    if np.any(bad):
        raise DataError(f"{name} must lie in [{low:g}, {high:g}], got {array[bad][0]:g}")
    return array


def probabilities_of_steps(name: str, values: ArrayLike) -> FloatArray:
    """Probabilities with the steps of a rollout on the last axis, shape (..., n); n must be at least 1."""
    array = within(name, values, 0, 1)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise DataError(f"{name} must hold one probability for each step, at least one, got shape {array.shape}")
    return array


def squared_norms(values: ArrayLike) -> FloatArray:
    """Squared norms of representations, finite and at least 0."""
    return within("norm_sq", values, 0, np.finfo(np.float64).max)


def above_zero(name: str, values: ArrayLike) -> FloatArray:
    """The values as floats; each must be finite and above 0."""
    array = np.asarray(values, dtype=np.float64)
    bad = ~((array > 0) & np.isfinite(array))
    if np.any(bad):
        raise DataError(f"{name} must be above 0 and finite, got {array[bad][0]:g}")
    return array

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.theory.equations import gradient, positive_probability

numbers = st.floats(-5, 5)
vectors = st.lists(numbers, min_size=3, max_size=3)


def test_probabilities_come_out_as_by_hand() -> None:
    # <w, phi> = 2 log 3 - log 3 = log 3, so 3 / (3 + 1); and for the opposite phi 1 / 4
    w = [2 * np.log(3), np.log(3)]
    assert positive_probability([[1, -1], [-1, 1]], w) == pytest.approx([0.75, 0.25])


def test_huge_logits_neither_warn_nor_lose_a_small_probability() -> None:
    assert positive_probability([[1000.0], [-1000.0]], [1.0]).tolist() == [1.0, 0.0]
    assert positive_probability([-50.0], [1.0]) == pytest.approx(np.exp(-50), rel=1e-12)


@given(vectors, vectors, st.integers(0, 1))
def test_gradient_is_the_slope_of_the_loss(phi: list[float], w: list[float], label: int) -> None:
    def loss(w: np.ndarray) -> float:
        z = float(np.dot(phi, w))
        return float(np.logaddexp(0, -z) if label else np.logaddexp(0, z))

    step = 1e-5
    slopes = [(loss(w + step * e) - loss(w - step * e)) / (2 * step) for e in np.eye(3)]
    assert gradient(phi, label, w) == pytest.approx(np.array(slopes), abs=1e-6)


def test_gradients_broadcast_over_replicas_with_their_own_parameters() -> None:
    phi, w = np.ones((4, 2)), np.zeros((4, 2))
    assert gradient(phi, np.array([0, 1, 0, 1]), w).tolist() == [[0.5, 0.5], [-0.5, -0.5]] * 2

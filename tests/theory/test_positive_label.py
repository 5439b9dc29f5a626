"""Labels and scores of steps by hand, and against drawn continuations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.theory.equations import positive_label_probability, score_variance
from tests.theory.monte_carlo import agrees

R = np.array([0.01, 0.05, 0.2, 0.4])  # even 0.4 fails 16 times in some of the draws: 50,000 * 0.6^16 = 14


def successes(n_mc: int, seed: int, n_draws: int = 50_000) -> np.ndarray:
    """Successful continuations of each draw of each step, each continuation drawn."""
    rng = np.random.default_rng(seed)
    return sum((rng.random((n_draws, len(R))) < R for _ in range(n_mc)), start=np.zeros((n_draws, len(R))))


@pytest.mark.parametrize("n_mc", [1, 4, 16])
def test_probability_is_the_share_of_simulated_positive_labels(n_mc: int) -> None:
    labels = successes(n_mc, seed=8) > 0
    assert agrees(labels, positive_label_probability(R, n_mc))
    assert not agrees(labels, positive_label_probability(R, n_mc + 1))
    assert not agrees(labels, 1 - (1 - R) ** (n_mc / 2))


def test_simulation_refuses_the_probability_that_all_continuations_succeed() -> None:
    assert not agrees(successes(4, seed=8) > 0, R**4)


@pytest.mark.parametrize("n_mc", [2, 16])
def test_scores_have_the_simulated_mean_and_variance(n_mc: int) -> None:
    scores = successes(n_mc, seed=9) / n_mc
    assert agrees(scores, R)
    assert agrees((scores - R) ** 2, score_variance(R, n_mc))
    assert not agrees((scores - R) ** 2, R * (1 - R) / n_mc**2)
    assert not agrees((scores - R) ** 2, R * (1 - R))


def test_values_come_out_as_by_hand() -> None:
    # 1 - (3/4)^2 = 7/16; 1 - (1/2)^16 = 65535/65536; variance 3/16 / 4 = 3/64
    assert positive_label_probability([0.25, 0.5], [2, 16]) == pytest.approx([7 / 16, 65535 / 65536])
    assert score_variance(0.25, 4) == 3 / 64


def test_ends_are_exact_and_a_tiny_probability_is_kept() -> None:
    assert positive_label_probability([0.0, 1.0], 16).tolist() == [0.0, 1.0]
    assert positive_label_probability(1e-20, 16) == pytest.approx(1.6e-19)


@given(st.floats(0, 0.5), st.floats(1e-3, 0.5), st.integers(1, 32))
def test_probability_rises_with_the_success_rate_and_with_continuations(r: float, more: float, n_mc: int) -> None:
    here = positive_label_probability(r, n_mc)
    assert here <= positive_label_probability(r, n_mc + 1)
    assert here <= positive_label_probability(r + more, n_mc)
    assert r - 1e-12 <= here <= min(1, n_mc * r) + 1e-12  # never below one try, never above the union bound


def test_probability_rises_strictly_over_a_grid() -> None:
    assert np.all(np.diff(positive_label_probability(np.linspace(0, 0.8, 100), 16)) > 0)


@pytest.mark.parametrize(
    ("r", "n_mc", "message"), [(1.2, 4, "r must"), (0.5, 0, "N must be above 0"), (0.5, 2.5, "whole")]
)
def test_values_outside_their_range_are_refused(r: float, n_mc: float, message: str) -> None:
    for function in (positive_label_probability, score_variance):
        with pytest.raises(DataError, match=message):
            function(r, n_mc)

"""The signal by hand, and against gradients of simulated rollouts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.theory.equations import (
    gradient,
    gradient_second_moment,
    positive_probability,
    rollout_signal,
    step_information,
)
from tests.theory.monte_carlo import agrees

W_STAR = np.array([0.7, -0.5])
PHI = np.random.default_rng(10).normal(size=(3, 4, 2)) * 1.5
"""Three rollouts of four steps."""
ETA = np.array([[0.0, 0.1, 0.05, 0.2], [0.4, 0.3, 0.45, 0.4], [0.0, 0.0, 0.0, 0.0]])
Q = positive_probability(PHI, W_STAR)
NORM_SQ = (PHI**2).sum(-1)


def simulated(seed: int, n_draws: int = 50_000) -> np.ndarray:
    """Mean squared gradient norm of each rollout and draw, less the noise that does not depend on q."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((n_draws, *Q.shape)) < Q) ^ (rng.random((n_draws, *Q.shape)) < ETA)
    moments = (gradient(PHI, labels, W_STAR) ** 2).sum(-1).mean(-1)
    return moments - (ETA * NORM_SQ).mean(-1)


def test_signal_is_what_noise_leaves_of_simulated_gradients() -> None:
    assert agrees(simulated(11), rollout_signal(Q, eta=ETA, norm_sq=NORM_SQ))


@pytest.mark.parametrize("factor", [0, 2, 8])
def test_simulation_refuses_another_weight_of_noise(factor: int) -> None:
    wrong = ((1 - factor * ETA) * Q * (1 - Q) * NORM_SQ).mean(-1)
    assert not agrees(simulated(11), wrong)


def test_simulation_refuses_the_mean_rate_in_place_of_each_steps_own() -> None:
    wrong = rollout_signal(Q, eta=ETA.mean(-1, keepdims=True), norm_sq=NORM_SQ)
    assert not agrees(simulated(11), wrong)


def test_values_come_out_as_by_hand() -> None:
    # (1 * 1/4 * 2 + (1 - 1/2) * 3/16 * 4) / 2 = (1/2 + 3/8) / 2
    assert rollout_signal([0.5, 0.25], eta=[0.0, 0.125], norm_sq=[2.0, 4.0]) == 0.4375


def test_signal_is_negative_for_noise_above_a_quarter_and_then_falls_with_uncertainty() -> None:
    # (1 - 1.6) * 1/4 = -0.15; (1 - 1.6) * 0.09 = -0.054
    assert rollout_signal([[0.5], [0.9]], eta=0.4) == pytest.approx([-0.15, -0.054])


steps = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 9)), min_size=1, max_size=10)


@given(steps)
def test_signal_and_noise_are_the_mean_second_moment(rows: list[tuple[float, float, float]]) -> None:
    q, eta, norm_sq = np.array(rows).T
    noise = (eta * norm_sq).mean()
    whole = gradient_second_moment(q, eta=eta, norm_sq=norm_sq).mean()
    assert rollout_signal(q, eta=eta, norm_sq=norm_sq) + noise == pytest.approx(whole, abs=1e-12)


@given(steps)
def test_signal_is_at_most_the_information_without_noise(rows: list[tuple[float, float, float]]) -> None:
    q, eta, norm_sq = np.array(rows).T
    clean = step_information(q, norm_sq=norm_sq)
    assert rollout_signal(q, eta=0.0, norm_sq=norm_sq) == pytest.approx(clean)
    assert rollout_signal(q, eta=eta, norm_sq=norm_sq) <= clean + 1e-12


def test_values_outside_their_range_are_refused() -> None:
    with pytest.raises(DataError, match=r"^q must hold one probability for each step"):
        rollout_signal([], eta=0.1)
    with pytest.raises(DataError, match=r"^eta must"):
        rollout_signal([0.5], eta=1.5)
    with pytest.raises(DataError, match=r"^norm_sq must"):
        rollout_signal([0.5], eta=0.1, norm_sq=float("inf"))

"""The moment by hand, and against labels drawn from a teacher and flipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.theory.equations import gradient, gradient_second_moment, positive_probability
from tests.theory.monte_carlo import agrees

W_STAR = np.array([0.8, -1.1, 0.4])
PHI = np.array([[0.1, 0.2, 0.3], [2.0, -1.0, 0.5], [-1.0, 1.5, 0.0], [3.0, -2.0, 1.0]])
Q = positive_probability(PHI, W_STAR)
NORM_SQ = (PHI**2).sum(-1)

unit = st.floats(0, 1)


def simulated(eta: float, seed: int, n_draws: int = 100_000) -> np.ndarray:
    """Squared norm of the gradient at the teacher, for each draw and each of the four steps."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n_draws, len(PHI))) < Q
    flipped = rng.random(Y.shape) < eta
    return (gradient(PHI, Y ^ flipped, W_STAR) ** 2).sum(-1)


@pytest.mark.parametrize("eta", [0.0, 0.05, 0.2, 0.45, 0.9])
def test_second_moment_is_that_of_simulated_gradients(eta: float) -> None:
    assert agrees(simulated(eta, seed=1), gradient_second_moment(Q, norm_sq=NORM_SQ, eta=eta))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, eta: (1 - 2 * eta) * q * (1 - q) + eta,
        lambda q, eta: (1 - 4 * eta) * q * (1 - q),
        lambda q, eta: (1 - 4 * eta) * q * (1 - q) + eta**2,
        lambda q, eta: (1 - 4 * eta) * q**2 * (1 - q) + eta,
        lambda q, eta: ((1 - 2 * eta) * q + eta) * (1 - (1 - 2 * eta) * q - eta),  # the variance: leaves out the bias
    ],
)
def test_simulation_refuses_a_wrong_equation(wrong: object) -> None:
    assert callable(wrong)
    assert not agrees(simulated(0.2, seed=1), wrong(Q, 0.2) * NORM_SQ)


def test_simulation_refuses_a_norm_that_is_not_squared() -> None:
    assert not agrees(simulated(0.0, seed=1), gradient_second_moment(Q, norm_sq=np.sqrt(NORM_SQ)))


def test_moments_come_out_as_by_hand() -> None:
    # 3/4 * 1/4 = 3/16; with eta 1/8, (1 - 1/2) * 3/16 + 1/8 = 7/32; both times 2
    assert gradient_second_moment(0.75, norm_sq=2.0) == 0.375
    assert gradient_second_moment(0.75, norm_sq=2.0, eta=0.125) == 0.4375


@given(unit, unit)
def test_noise_adds_its_share_of_the_squared_distance_from_even(q: float, eta: float) -> None:
    clean, noisy = gradient_second_moment(q), gradient_second_moment(q, eta=eta)
    assert noisy == pytest.approx(clean + eta * (1 - 2 * q) ** 2)
    assert clean <= 0.25


@given(unit, unit)
def test_either_label_may_be_called_positive(q: float, eta: float) -> None:
    assert gradient_second_moment(q, eta=eta) == pytest.approx(gradient_second_moment(1 - q, eta=eta))


def test_a_rate_above_half_is_not_its_complement() -> None:
    # q = 1 and eta = 0.9: nine labels in ten are wrong, each with squared residual 1
    assert gradient_second_moment(1.0, eta=0.9) == pytest.approx(0.9)
    assert gradient_second_moment(1.0, eta=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [{"q": 1.1}, {"q": float("nan")}, {"eta": -0.1}, {"eta": 2}, {"norm_sq": -1.0}])
def test_values_outside_their_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(DataError, match=rf"^{name} must lie in"):
        gradient_second_moment(**({"q": 0.5} | wrong))

"""Flips by hand, against flipped labels, and the bounds for any mixture and rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.theory.equations import (
    expected_mixture,
    flipped_mixture,
    flipped_probability,
    mixture_shift,
    mixture_shift_bound,
    step_information,
    teacher_mixture,
)
from tests.theory.monte_carlo import agrees

Q = np.array([0.95, 0.9, 0.8, 0.3, 0.6])
ETA = 0.15

rates = st.floats(0, 1)
mixtures = st.floats(0, 0.25)


def flipped_labels(seed: int, n_draws: int = 100_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((n_draws, len(Q))) < Q) ^ (rng.random((n_draws, len(Q))) < ETA)


def test_flipped_probability_is_the_share_of_simulated_positives() -> None:
    labels = flipped_labels(seed=4)
    assert agrees(labels, flipped_probability(Q, eta=ETA))
    assert not agrees(labels, (1 - ETA) * Q + ETA)  # flips of negative labels only
    assert not agrees(labels, (1 - 2 * ETA) * Q)


def simulated_theta(seed: int) -> np.ndarray:
    """Unbiased for theta~: from two independent labellings of the rollout, p (1 - p')."""
    return flipped_labels(seed).mean(-1) * (1 - flipped_labels(seed + 1).mean(-1))


def test_flipped_mixture_is_that_of_simulated_labels() -> None:
    theta = teacher_mixture(Q)
    assert agrees(simulated_theta(5), flipped_mixture(theta, eta=ETA))
    assert agrees(simulated_theta(5), theta + mixture_shift(theta, eta=ETA))


@pytest.mark.parametrize("wrong", ["first power", "no offset", "offset eta", "no noise"])
def test_simulation_refuses_a_wrong_mixture(wrong: str) -> None:
    theta, offset = teacher_mixture(Q), ETA * (1 - ETA)
    predicted = {
        "first power": (1 - 2 * ETA) * theta + offset,
        "no offset": (1 - 2 * ETA) ** 2 * theta,
        "offset eta": (1 - 2 * ETA) ** 2 * theta + ETA,
        "no noise": theta,
    }
    assert not agrees(simulated_theta(5), predicted[wrong])


def test_observed_mixture_of_flipped_labels_is_the_lemma_with_flipped_probabilities() -> None:
    p_hat = flipped_labels(seed=7).mean(-1)
    assert agrees(p_hat * (1 - p_hat), expected_mixture(flipped_probability(Q, eta=ETA)))
    # the clean steps' information gives the wrong bias
    wrong = flipped_mixture(teacher_mixture(Q), eta=ETA) - step_information(Q) / len(Q)
    assert not agrees(p_hat * (1 - p_hat), wrong)


@given(st.lists(rates, min_size=1, max_size=10), rates)
def test_flipped_mixture_is_the_mixture_of_flipped_probabilities(q: list[float], eta: float) -> None:
    direct = teacher_mixture(flipped_probability(q, eta=eta))
    assert flipped_mixture(teacher_mixture(q), eta=eta) == pytest.approx(direct, abs=1e-12)


@given(mixtures, rates)
def test_shift_keeps_to_the_papers_bound_and_to_half_of_it(theta: float, eta: float) -> None:
    shift = flipped_mixture(theta, eta=eta) - theta
    assert abs(shift) <= mixture_shift_bound(theta, eta=eta) + 1e-12
    assert mixture_shift_bound(theta, eta=eta) <= 2 * eta + 1e-12
    assert shift == pytest.approx(mixture_shift(theta, eta=eta), abs=1e-12)
    assert -1e-12 <= shift <= eta * (1 - eta) + 1e-12


def test_a_bound_of_higher_order_in_eta_fails() -> None:
    assert flipped_mixture(0.0, eta=0.1) - 0.0 > 2 * 0.1**2  # 0.09, above 0.02


def test_values_come_out_as_by_hand() -> None:
    # theta = 3/16, eta = 1/4: 3/64 + 3/16 = 15/64; shift 3/16 * 1/4 = 3/64; bound 3/16 + 3/16
    assert flipped_mixture(0.1875, eta=0.25) == 15 / 64
    assert mixture_shift(0.1875, eta=0.25) == 3 / 64
    assert mixture_shift_bound(0.1875, eta=0.25) == 0.375
    assert flipped_mixture([0.0, 0.1, 0.25], eta=0.5).tolist() == [0.25] * 3


def test_values_outside_their_range_are_refused() -> None:
    for function in (flipped_mixture, mixture_shift, mixture_shift_bound):
        with pytest.raises(DataError, match=r"^theta must lie in \[0, 0.25\], got 0.3"):
            function(0.3, eta=0.1)
    with pytest.raises(DataError, match=r"^eta must lie in"):
        flipped_probability(0.3, eta=1.1)

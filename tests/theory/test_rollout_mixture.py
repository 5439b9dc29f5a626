"""The mixture's expectation by hand and by enumeration, and against drawn labels; its bounds for any rollout."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.theory.equations import expected_mixture, mixture_bounds, step_information, teacher_mixture
from tests.theory.monte_carlo import agrees

ROLLOUTS = np.array([[0.9, 0.8, 0.5, 0.1], [0.5, 0.5, 0.5, 0.5], [0.99, 0.95, 0.9, 0.9], [0.0, 1.0, 0.3, 0.6]])

rollouts = st.lists(st.floats(0, 1), min_size=1, max_size=12)
short_rollouts = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def simulated(seed: int, n_draws: int = 100_000) -> np.ndarray:
    """Mixture of the labels of each draw of each rollout."""
    rng = np.random.default_rng(seed)
    p_hat = (rng.random((n_draws, *ROLLOUTS.shape)) < ROLLOUTS).mean(-1)
    return p_hat * (1 - p_hat)


def test_expectation_is_the_mean_mixture_of_simulated_labels() -> None:
    assert agrees(simulated(seed=2), expected_mixture(ROLLOUTS))


@pytest.mark.parametrize("power", [0, 2, None])
def test_simulation_refuses_another_power_of_n(power: int | None) -> None:
    n = ROLLOUTS.shape[-1]
    bias = 0.0 if power is None else step_information(ROLLOUTS) / n**power  # right: 1
    assert not agrees(simulated(seed=2), teacher_mixture(ROLLOUTS) - bias)


def test_simulated_mixtures_keep_to_the_bounds() -> None:
    draws = simulated(seed=3)
    mean, error = draws.mean(0), 4.5 * draws.std(0) / np.sqrt(len(draws))
    low, high = mixture_bounds(ROLLOUTS)
    assert np.all((low - error <= mean) & (mean <= high + error))
    too_low = teacher_mixture(ROLLOUTS) * (1 - 1 / ROLLOUTS.shape[-1] ** 2)  # as if the bias were O(1/n^2)
    assert not np.all(too_low - error <= mean)
    assert not np.all(mean <= step_information(ROLLOUTS) + error)  # A(x) is no upper bound


@given(short_rollouts)
@settings(deadline=None)
def test_expectation_is_the_sum_over_all_labellings(q: list[float]) -> None:
    total = 0.0
    for labels in product([0, 1], repeat=len(q)):
        probability = np.prod([p if y else 1 - p for p, y in zip(q, labels, strict=True)])
        p_hat = sum(labels) / len(q)
        total += float(probability) * p_hat * (1 - p_hat)
    assert expected_mixture(q) == pytest.approx(total, abs=1e-12)


@given(rollouts)
def test_expectation_lies_between_its_bounds(q: list[float]) -> None:
    low, high = mixture_bounds(q)
    assert low - 1e-12 <= expected_mixture(q) <= high + 1e-12
    assert step_information(q) <= teacher_mixture(q) + 1e-12
    assert teacher_mixture(q) - expected_mixture(q) <= 1 / (4 * len(q)) + 1e-12


def test_both_bounds_are_reached() -> None:
    assert expected_mixture([0.3] * 5) == pytest.approx(mixture_bounds([0.3] * 5)[0])
    assert expected_mixture([0.0, 1.0, 1.0]) == pytest.approx(mixture_bounds([0.0, 1.0, 1.0])[1])


@given(rollouts, st.lists(st.floats(0.5, 8), min_size=12, max_size=12))
def test_norms_change_the_information_by_no_more_than_their_range(q: list[float], norms: list[float]) -> None:
    norm_sq = norms[: len(q)]
    A, A_full = step_information(q), step_information(q, norm_sq=norm_sq)
    assert min(norm_sq) * A - 1e-12 <= A_full <= max(norm_sq) * A + 1e-12


def test_values_come_out_as_by_hand() -> None:
    q = [0.25, 0.75, 0.5]
    # q_bar = 1/2: theta = 1/4; A = (3/16 + 3/16 + 4/16) / 3 = 10/48; E = 1/4 - 10/144 = 13/72
    assert teacher_mixture(q) == pytest.approx(0.25)
    assert step_information(q) == pytest.approx(10 / 48)
    assert expected_mixture(q) == pytest.approx(13 / 72)
    # norms 4, 0, 1: (4 * 3/16 + 0 + 1/4) / 3 = 1/3
    assert step_information(q, norm_sq=[4, 0, 1]) == pytest.approx(1 / 3)


def test_one_step_is_never_mixed() -> None:
    assert expected_mixture([0.4]) == pytest.approx(0)


@pytest.mark.parametrize("q", [[], 0.5, [0.5, 1.5], [float("nan")]])
def test_rollouts_without_steps_or_probabilities_are_refused(q: object) -> None:
    for function in (step_information, teacher_mixture, expected_mixture, mixture_bounds):
        with pytest.raises(DataError, match=r"^q must"):
            function(q)  # type: ignore[operator]

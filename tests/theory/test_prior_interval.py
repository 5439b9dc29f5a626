"""Slopes and curvature against differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from mprm.theory.beta_binomial import (
    fit_beta,
    likelihood_slopes,
    log_interval,
    observed_information,
    prior_covariance,
)

K, N, COUNTS = np.array([0, 1, 3, 4, 16, 12]), np.array([4, 8, 4, 4, 16, 16]), np.array([3, 1, 4, 20, 9, 6])


def likelihood(log_a: float, log_b: float) -> np.ndarray:
    a, b = np.exp(log_a), np.exp(log_b)
    return special.betaln(a + K, b + N - K) - special.betaln(a, b)


def test_slopes_are_those_of_the_likelihood() -> None:
    la, lb, h = 0.3, -0.6, 1e-5
    by_difference = np.stack(
        [
            (likelihood(la + h, lb) - likelihood(la - h, lb)) / (2 * h),
            (likelihood(la, lb + h) - likelihood(la, lb - h)) / (2 * h),
        ],
        axis=-1,
    )
    assert likelihood_slopes(K, N, a=np.exp(la), b=np.exp(lb)) == pytest.approx(by_difference, abs=1e-6)
    assert likelihood_slopes(0, 0, a=1.0, b=2.0).tolist() == [0, 0]


def test_information_is_the_curvature_at_the_maximum() -> None:
    a, b = fit_beta(K, N, COUNTS)
    la, lb, h = np.log(a), np.log(b), 1e-3

    def total(da: float, db: float) -> float:
        return float(COUNTS @ likelihood(la + da, lb + db))

    aa = (total(h, 0) - 2 * total(0, 0) + total(-h, 0)) / h**2
    bb = (total(0, h) - 2 * total(0, 0) + total(0, -h)) / h**2
    ab = (total(h, h) - total(h, -h) - total(-h, h) + total(-h, -h)) / (4 * h**2)
    found = observed_information(K, N, COUNTS, a=a, b=b)
    assert found == pytest.approx(-np.array([[aa, ab], [ab, bb]]), rel=1e-3)


def test_covariance_of_rollouts_of_one_step_is_about_that_of_independent_steps() -> None:
    rng = np.random.default_rng(0)
    n = np.full(20_000, 16)
    k = rng.binomial(n, rng.beta(1.5, 0.5, len(n)))
    a, b = fit_beta(k, n)
    slopes = likelihood_slopes(k, n, a=a, b=b)
    information = observed_information(k, n, np.ones(len(n)), a=a, b=b)
    assert prior_covariance(information, slopes.T @ slopes) == pytest.approx(prior_covariance(information), rel=0.05)


def test_interval_by_hand() -> None:
    # exp(1.96 * 0.1) = 1.2165
    assert log_interval(1.0, 0.01) == pytest.approx((1 / 1.2165, 1.2165), rel=1e-4)

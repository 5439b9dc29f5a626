"""The Beta-Binomial model against integration, fits against known priors, and how certain they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, special, stats

from mprm.errors import DataError
from mprm.theory.beta_binomial import (
    all_fail,
    eta_eff,
    fit_beta,
    likelihood_slopes,
    log_interval,
    observed_information,
    posterior_mean,
    prior_covariance,
    pseudo_positive_share,
)


@pytest.mark.parametrize(("a", "b", "tau"), [(1, 1, 0.5), (0.5, 0.5, 0.3), (1.5, 0.2, 0.8)])
def test_eta_eff_is_the_integral_of_the_posterior(a: float, b: float, tau: float) -> None:
    for k, n in [(1, 4), (3, 4), (5, 8), (1, 16), (12, 16)]:
        density = stats.beta(a + k, b + n - k).pdf
        mass, _ = integrate.quad(density, 0, tau)
        assert eta_eff(k, n, tau=tau, a=a, b=b) == pytest.approx(mass, abs=1e-8)


def test_all_fail_is_the_integral_over_the_posterior() -> None:
    mass, _ = integrate.quad(lambda r: (1 - r) ** 12 * stats.beta(0.7, 1.3 + 4).pdf(r), 0, 1)
    assert all_fail(4, 16, a=0.7, b=1.3) == pytest.approx(mass, abs=1e-8)


@given(st.floats(0.05, 20), st.floats(0.05, 20), st.floats(0.05, 0.95), st.integers(1, 40))
def test_pseudo_positives_are_the_noise_averaged_over_positive_counts(a: float, b: float, tau: float, n: int) -> None:
    k = np.arange(1, n + 1)
    weight = stats.betabinom(n, a, b).pmf(k)
    average = weight @ eta_eff(k, n, tau=tau, a=a, b=b) / weight.sum()
    assert pseudo_positive_share(n, tau=tau, a=a, b=b) == pytest.approx(average, rel=1e-6, abs=1e-9)


def test_pseudo_positives_grow_with_the_number_of_continuations() -> None:
    share = pseudo_positive_share(np.arange(1, 65), tau=0.5, a=0.7, b=0.3)
    assert np.all(np.diff(share) > 0)
    # one continuation: E[r; r < 1/2] / E[r] under the uniform prior is (1/8) / (1/2)
    assert pseudo_positive_share(1, tau=0.5, a=1, b=1) == pytest.approx(1 / 4)


def test_posterior_mean_by_hand() -> None:
    # prior Beta(2, 3) and 5 of 10: 7 / 15
    assert posterior_mean(5, 10, a=2, b=3) == pytest.approx(7 / 15)
    with pytest.raises(DataError, match="at most the number"):
        posterior_mean(5, 4, a=1, b=1)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.1, 3.0), (1.5, 0.18), (30.0, 2.0), (0.05, 0.05)])
def test_fit_recovers_known_priors_from_mixed_numbers_of_continuations(a: float, b: float) -> None:
    rng = np.random.default_rng(2)
    n = rng.choice([0, 4, 8, 12, 16], 40_000)
    k = rng.binomial(n, rng.beta(a, b, len(n)))
    # 40,000 counts: about 1 to 3% standard error
    assert fit_beta(k, n) == pytest.approx((a, b), rel=0.1)


def test_fit_to_a_histogram_is_the_fit_to_its_steps() -> None:
    k, n, counts = np.array([0, 1, 3, 4, 16]), np.array([4, 8, 4, 4, 16]), np.array([3, 1, 4, 20, 9])
    assert fit_beta(k, n, counts) == pytest.approx(fit_beta(np.repeat(k, counts), np.repeat(n, counts)))


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 8), st.floats(0.05, 8), st.integers(0, 1000))
def test_no_prior_nearby_is_more_likely_than_the_fitted_one(a: float, b: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = rng.choice([4, 8, 16], 300)
    k = rng.binomial(n, rng.beta(a, b, len(n)))
    try:
        fitted = fit_beta(k, n)
    except DataError:
        return  # 300 steps may tell too little; when is tested below

    def likelihood(a: float, b: float) -> float:
        return float(np.sum(special.betaln(a + k, b + n - k) - special.betaln(a, b)))

    best = likelihood(*fitted)
    for factor_a, factor_b in [(1.02, 1), (0.98, 1), (1, 1.02), (1, 0.98), (1.02, 1.02), (0.98, 0.98)]:
        assert likelihood(fitted[0] * factor_a, fitted[1] * factor_b) < best


@pytest.mark.parametrize(
    ("k", "n", "message"),
    [
        ([0, 0, 0], [16, 16, 4], "every continuation fails"),
        ([16, 4], [16, 4], "every continuation succeeds"),
        ([0, 1, 1], [1, 1, 1], "no step has two continuations"),
        ([], [], "no step has two continuations"),
        ([0, 0], [0, 0], "no step has two continuations"),
        ([8] * 50, [16] * 50, "vary no more than chance"),
        ([0, 16] * 50, [16] * 100, "nearly all 0 or 1"),
        ([5], [4], "at most the number"),
        ([-1], [4], "at least 0"),
        ([0.5], [4], "whole numbers, got float64"),
    ],
)
def test_counts_that_tell_of_no_prior_are_refused(k: list[int], n: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit_beta(k, n)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(DataError, match="at least 0"):
        fit_beta([0, 1], [4, 4], counts=[1, -1])


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
    information = observed_information(K, N, COUNTS, a=a, b=b)
    assert information == pytest.approx(-np.array([[aa, ab], [ab, bb]]), rel=1e-3)


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

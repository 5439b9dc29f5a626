"""The fit against known priors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from mprm.errors import DataError
from mprm.theory.beta_binomial import fit_beta


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
        found = fit_beta(k, n)
    except DataError:
        return  # 300 steps may tell too little; when is tested below

    def likelihood(a: float, b: float) -> float:
        return float(np.sum(special.betaln(a + k, b + n - k) - special.betaln(a, b)))

    best = likelihood(*found)
    for factor_a, factor_b in [(1.02, 1), (0.98, 1), (1, 1.02), (1, 0.98), (1.02, 1.02), (0.98, 0.98)]:
        assert likelihood(found[0] * factor_a, found[1] * factor_b) < best


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

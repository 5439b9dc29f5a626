"""Posterior, effective noise and pseudo-positives against integration and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from mprm.errors import DataError
from mprm.theory.beta_binomial import all_fail, eta_eff, posterior_mean, pseudo_positive_share


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

"""The bound by hand; its rates, and what a subset does to them, against trained students."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import ArrayLike

from mprm.errors import ConfigError, DataError
from mprm.theory.equations import RiskBound, risk_bound, subsampled
from mprm_lab.theory.training import (
    batches,
    empirical_minimizer,
    excess_risk,
    fresh,
    largest_deviation,
    parameters,
    samples,
    sgd,
)
from tests.theory.monte_carlo import agrees

M = 1000
"""Students of each simulation."""


def in_ratio(first: np.ndarray, second: np.ndarray, ratio: ArrayLike) -> bool:
    """Whether the mean of the second is that of the first times the predicted ratio, within the interval."""
    return agrees(second - np.asarray(ratio) * first, 0.0)


@pytest.fixture(scope="module")
def single_pass() -> dict[int, np.ndarray]:
    """Excess risk of students that see each training step once, after 1024 and after 4096."""
    kept = sgd(*fresh(np.random.default_rng(12), 4096, M), keep=[1024, 4096])
    return {T: excess_risk(w) for T, w in kept.items()}


def test_excess_risk_of_sgd_falls_as_the_optimization_term(single_pass: dict[int, np.ndarray]) -> None:
    bound = risk_bound(N_eff=1, T=[1024, 4096], C_data=1, C_opt=1)
    ratio = bound.opt[0] / bound.opt[1]
    assert in_ratio(single_pass[4096], single_pass[1024], ratio)
    for wrong in (-0.25, -0.75, -1.0):
        assert not in_ratio(single_pass[4096], single_pass[1024], (1024 / 4096) ** wrong)


def test_single_pass_over_a_quarter_doubles_the_excess_risk(single_pass: dict[int, np.ndarray]) -> None:
    full = risk_bound(N_eff=4096, T=4096, C_data=0.1, C_opt=0.1)
    quarter = subsampled(full, gamma=0.25, updates="single-pass")
    assert in_ratio(single_pass[4096], single_pass[1024], quarter.total / full.total)
    matched = subsampled(full, gamma=0.25, updates="matched")
    assert not in_ratio(single_pass[4096], single_pass[1024], matched.opt / full.opt)


def test_matched_updates_on_a_quarter_of_plenty_change_nothing() -> None:
    rng = np.random.default_rng(13)
    counts = samples(rng, 65_536, M)
    kept = rng.binomial(counts, 0.25)  # each training step with probability 1/4
    on_all, on_quarter = (
        excess_risk(sgd(*batches(rng, sample, 1024), keep=[1024])[1024]) for sample in (counts, kept)
    )
    # the data's part is d / (2 N) = 9e-5 at most, far below what 1024 updates leave: only opt is seen
    full = risk_bound(N_eff=65_536, T=1024, C_data=1, C_opt=1)
    matched = subsampled(full, gamma=0.25, updates="matched")
    assert on_all.mean() > 50 * 3 / (2 * 16_384)
    assert in_ratio(on_all, on_quarter, matched.opt / full.opt)
    single = subsampled(full, gamma=0.25, updates="single-pass")
    assert not in_ratio(on_all, on_quarter, single.opt / full.opt)


def test_empirical_loss_nears_the_population_loss_as_the_data_term() -> None:
    rng = np.random.default_rng(15)
    few, many = (
        largest_deviation(samples(rng, n, M), parameters(np.random.default_rng(14), 500)) for n in (256, 4096)
    )
    bound = risk_bound(N_eff=[256, 4096], T=1, C_data=1, C_opt=1)
    assert in_ratio(many, few, bound.data[0] / bound.data[1])
    for wrong in (-0.25, -0.4, -0.6, -1.0):
        assert not in_ratio(many, few, (256 / 4096) ** wrong)


def test_finite_data_error_keeps_below_its_term_but_grows_faster_on_a_subset() -> None:
    rng = np.random.default_rng(16)
    counts = samples(rng, 4096, M)
    kept = rng.binomial(counts, 0.25)
    on_all, on_quarter = (excess_risk(empirical_minimizer(sample)) for sample in (counts, kept))
    C_data = (
        2
        * float(largest_deviation(samples(rng, 256, M), parameters(np.random.default_rng(14), 500)).mean())
        * 256**0.5
    )  # as in the appendix
    full = risk_bound(N_eff=4096, T=1, C_data=C_data, C_opt=1)
    quarter = subsampled(full, gamma=0.25, updates="matched")
    assert on_all.mean() < full.data
    assert on_quarter.mean() < quarter.data
    # a smooth, well-specified loss errs by about d / (2 N): four times as much on a quarter, not twice
    assert in_ratio(on_all, on_quarter, 4.0)
    assert not in_ratio(on_all, on_quarter, quarter.data / full.data)
    assert on_all.mean() == pytest.approx(3 / (2 * 4096), rel=0.1)
    # a term that falls faster, fitted where data is scarce, is no bound where there is more of it
    assert on_all.mean() > on_quarter.mean() * 4**-1.5


def test_values_come_out_as_by_hand() -> None:
    full = risk_bound(N_eff=100, T=[25, 400], C_data=2, C_opt=3)
    assert (full.data, full.opt.tolist()) == (0.2, pytest.approx([0.6, 0.15]))
    assert full.total == pytest.approx([0.8, 0.35])
    matched = subsampled(full, gamma=0.25, updates="matched")
    assert matched.total == pytest.approx([1.0, 0.55])  # 0.4 + 0.6 and 0.4 + 0.15
    single = subsampled(full, gamma=0.25, updates="single-pass")
    assert single.total == pytest.approx([1.6, 0.7])


sizes, constants = st.floats(1, 1e9), st.floats(1e-3, 1e3)
problems = st.fixed_dictionaries({"N_eff": sizes, "T": sizes, "C_data": constants, "C_opt": constants})
shares = st.floats(1e-3, 1)


@given(problems, shares)
def test_subset_is_the_bound_with_fewer_steps_and_updates(problem: dict[str, float], gamma: float) -> None:
    full = risk_bound(**problem)
    fewer_steps = problem | {"N_eff": gamma * problem["N_eff"]}
    matched, single = risk_bound(**fewer_steps), risk_bound(**fewer_steps | {"T": gamma * problem["T"]})
    assert subsampled(full, gamma=gamma, updates="matched").total == pytest.approx(matched.total)
    assert subsampled(full, gamma=gamma, updates="single-pass").total == pytest.approx(single.total)


@given(problems, shares)
def test_a_subset_never_has_the_smaller_bound(problem: dict[str, float], gamma: float) -> None:
    full = risk_bound(**problem)
    matched = subsampled(full, gamma=gamma, updates="matched").total
    single = subsampled(full, gamma=gamma, updates="single-pass").total
    assert full.total <= matched * (1 + 1e-12)
    assert matched <= single * (1 + 1e-12)


@pytest.mark.parametrize("wrong", [{"N_eff": 0}, {"T": -1}, {"C_data": float("nan")}, {"C_opt": float("inf")}])
def test_values_outside_their_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(DataError, match=f"^{name} must be above 0"):
        risk_bound(**({"N_eff": 1, "T": 1, "C_data": 1, "C_opt": 1} | wrong))


def test_wrong_subsets_are_refused() -> None:
    full = RiskBound(data=np.array(1.0), opt=np.array(1.0))
    for gamma in (0, 1.5):
        with pytest.raises(DataError, match=r"^gamma must"):
            subsampled(full, gamma=gamma, updates="matched")
    with pytest.raises(ConfigError, match="matched, single-pass, got 'twice'"):
        subsampled(full, gamma=0.5, updates="twice")  # type: ignore[arg-type]

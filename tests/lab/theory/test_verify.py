"""Every statement holds with the paper's formula, and fails with a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special

from mprm import theory
from mprm.selection.strategies import Strategy, rank_low_mc, rank_random
from mprm.theory import FloatArray, RiskBound, beta_binomial, equations
from mprm_lab.theory import selection, steps, training
from mprm_lab.theory.selection import PseudoPositiveResults, StrategyResults, World
from mprm_lab.theory.statements import STATEMENTS, Comparison, check_all
from mprm_lab.theory.training import Training
from mprm_lab.theory.verify import PARTS, verify

SEED = 5


SIMULATIONS = {
    "steps": steps.compare_steps,
    "rollouts": steps.compare_rollouts,
    "success-rates": steps.compare_success_rates,
}


def failing(compared: list[Comparison]) -> set[str]:
    return {result.comparison.name for result in check_all(compared) if not result.holds}


def simulated(part: str) -> list[Comparison]:
    return SIMULATIONS[part](np.random.default_rng(SEED))


@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_hold(seed: int) -> None:
    report = verify(seed=seed, only=("steps", "rollouts", "success-rates"))
    assert [result.comparison.name for result in report.results if not result.holds] == []
    assert report.holds


theta = lambda q: np.mean(q) * (1 - np.mean(q))  # noqa: E731
A = lambda q, norm_sq=1.0: np.mean(q * (1 - q) * norm_sq)  # noqa: E731

# (part, the function's name, a wrong one, the statement that must fail)
WRONG: list[tuple[str, str, Callable[..., Any], str]] = [
    ("steps", "positive_probability", lambda phi, w: equations.positive_probability(phi, 1.2 * w), "teacher"),
    ("steps", "gradient", lambda phi, y, w: 1.01 * equations.gradient(phi, y, w), "gradient"),
    (
        "steps",
        "gradient_second_moment",
        lambda q, norm_sq, eta=0.0: equations.gradient_second_moment(q, eta=eta) * np.sqrt(norm_sq),
        "gradient second moment",
    ),
    (
        "steps",
        "gradient_second_moment",
        lambda q, norm_sq, eta=0.0: ((1 - 2 * eta) * q * (1 - q) + eta) * norm_sq,
        "… under label noise",
    ),
    ("steps", "flipped_probability", lambda q, eta: (1 - eta) * q + eta / 2, "flipped label"),
    ("steps", "positive_label_probability", lambda r, n: np.minimum(1, n * r), "positive label"),
    (
        "steps",
        "positive_label_probability",
        lambda r, n: equations.positive_label_probability(r, n + 1),
        "positive label",
    ),
    ("steps", "score_variance", lambda r, n: r * (1 - r) / (n + 1), "MC score's variance"),
    ("rollouts", "expected_mixture", theta, "expected mixture"),
    ("rollouts", "mixture_bounds", lambda q: (theta(q), theta(q)), "sandwich, below"),
    ("rollouts", "mixture_bounds", lambda q: (0.0, theta(q) * (1 - 1 / len(q))), "sandwich, above"),
    ("rollouts", "step_information", lambda q, norm_sq=1.0: theta(q) * np.mean(norm_sq), "step information"),
    ("rollouts", "teacher_mixture", lambda q: 0.95 * A(q), "Jensen"),
    ("rollouts", "step_information", lambda q, norm_sq=1.0: A(q) * np.mean(norm_sq), "information with norms"),
    ("rollouts", "step_information", lambda q, norm_sq=1.0: 3 * A(q, norm_sq), "norms, below"),
    ("rollouts", "step_information", lambda q, norm_sq=1.0: A(q, norm_sq) / 3, "norms, above"),
    (
        "rollouts",
        "flipped_mixture",
        lambda theta, eta: (1 - 2 * eta) * theta + eta * (1 - eta),
        "mixture under flips",
    ),
    ("rollouts", "mixture_shift", lambda theta, eta: eta * (1 - eta) * (1 - 2 * theta), "flips' shift"),
    (
        "rollouts",
        "mixture_shift_bound",
        lambda theta, eta: 0.5 * equations.mixture_shift(theta, eta=eta),
        "closeness bound",
    ),
    ("rollouts", "mixture_shift_bound", lambda theta, eta: 8 * eta * theta + 2 * eta, "… its ceiling"),
    (
        "rollouts",
        "rollout_signal",
        lambda q, eta, norm_sq: np.mean((1 - 2 * eta) * q * (1 - q) * norm_sq),
        "rollout signal",
    ),
    ("success-rates", "posterior_mean", lambda k, n, **_: (k + 0.5) / (n + 1), "posterior mean (k = 1)"),
    (
        "success-rates",
        "eta_eff",
        lambda k, n, tau, a, b: special.betainc(a + k, b + n - k + 1, tau),
        "effective noise (k = 1)",
    ),
    (
        "success-rates",
        "eta_eff",
        lambda k, n, tau, a, b: 1 - beta_binomial.eta_eff(k, n, tau=tau, a=a, b=b),
        "effective noise falls with k",
    ),
    ("success-rates", "all_fail", lambda _n, n_max, a, b: (b / (a + b)) ** n_max, "negative steps"),
    (
        "success-rates",
        "pseudo_positive_share",
        lambda _n, tau, a, b: special.betainc(a, b, tau),
        "pseudo-positive share",
    ),
]


@pytest.mark.parametrize(("part", "name", "wrong", "statement"), WRONG, ids=[f"{w[1]}: {w[3]}" for w in WRONG])
def test_a_wrong_formula_is_found_out(
    part: str, name: str, wrong: Callable[..., Any], statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory, name, wrong)
    assert statement in failing(simulated(part))


def test_every_closed_form_has_a_formula_that_breaks_it() -> None:
    names = {compared.name for part in SIMULATIONS for compared in simulated(part)}
    assert names == {statement for *_, statement in WRONG}


@pytest.fixture(scope="module")
def trained() -> Iterator[Training]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "N_STUDENTS", 1000)
        yield training.train_students(np.random.default_rng(SEED))


def bound_with(exponent: float) -> Callable[..., RiskBound]:
    def wrong(*, N_eff: Any, T: Any, C_data: Any, C_opt: Any) -> RiskBound:  # noqa: N803
        return RiskBound(
            data=C_data * np.asarray(N_eff, float) ** exponent, opt=C_opt * np.asarray(T, float) ** exponent
        )

    return wrong


def never_subsampled(bound: RiskBound, *, gamma: float, updates: str) -> RiskBound:
    return bound


def always_grown(bound: RiskBound, *, gamma: float, updates: str) -> RiskBound:
    return RiskBound(data=bound.data * gamma**-0.5, opt=bound.opt * gamma**-0.5)


TRAINING = [
    ("risk_bound", bound_with(-0.75), "optimization term: exponent of T"),
    ("risk_bound", bound_with(-0.25), "optimization term: exponent of T"),
    ("risk_bound", bound_with(-0.6), "data term: exponent of N"),
    ("risk_bound", bound_with(-1.5), "… of the minimizer itself"),
    ("risk_bound", bound_with(-2.5), "finite data's risk"),
    ("risk_bound", bound_with(-3.0), "the bound"),
    ("subsampled", never_subsampled, "Random-25%, single pass"),
    ("subsampled", always_grown, "Random-25%, matched updates"),
]


@pytest.mark.parametrize(("name", "wrong", "statement"), TRAINING, ids=[f"{w[0]}: {w[2]}" for w in TRAINING])
def test_a_wrong_bound_is_found_out(
    name: str, wrong: Callable[..., RiskBound], statement: str, trained: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, name, wrong)
    assert statement in failing(training.compare_training(trained))


def test_the_bound_holds_in_training_and_every_statement_on_it_can_fail(trained: Training) -> None:
    compared = training.compare_training(trained)
    assert failing(compared) == set()
    assert {each.name for each in compared} == {statement for *_, statement in TRAINING}


def trained_by_strategy(world: World, n_seeds: int) -> StrategyResults:
    return selection.train_by_strategy(np.random.default_rng(SEED), world, n_seeds)


@pytest.fixture(scope="module")
def usual() -> StrategyResults:
    return trained_by_strategy(World(), 40)


@pytest.fixture(scope="module")
def alike() -> StrategyResults:
    return trained_by_strategy(World(correlation=0.8), 12)


def test_strategies_compare_as_stated(usual: StrategyResults, alike: StrategyResults) -> None:
    assert failing(selection.compare_strategies(usual, alike)) == set()
    assert 0.025 < usual.negative_steps < 0.045  # the paper's corpus: 3.6%
    assert 0.84 < usual.mean_mc < 0.90  # 0.86


def with_bis(rank: Callable[..., FloatArray], patch: pytest.MonkeyPatch) -> StrategyResults:
    """The students if BIS ranked so."""
    patch.setitem(selection.keep_top.__globals__["STRATEGIES"], "bis", Strategy(rank, needs_details=False))
    return trained_by_strategy(World(), 12)


def test_a_bis_that_ranks_at_random_is_found_out(alike: StrategyResults, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = selection.compare_strategies(with_bis(rank_random, monkeypatch), alike)
    assert {
        "BIS against random",
        "BIS against mixed",
        "BIS against reliable",
        "BIS against random: macro-F1",
    } <= failing(compared)
    assert "a tenth by BIS against all data" in failing(compared)


def test_a_bis_that_ranks_as_low_mc_is_found_out(alike: StrategyResults, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = selection.compare_strategies(with_bis(rank_low_mc, monkeypatch), alike)
    assert {"BIS against low-mc", "BIS against low-mc: macro-F1"} <= failing(compared)


def test_statements_on_the_limits_of_bis_fail_where_the_limits_are_not(usual: StrategyResults) -> None:
    # as if steps much alike were those of the usual world, and BIS's probabilities those of Reliable
    calibrated = {**usual.quality, "reliable": usual.quality["bis"]}
    comparisons = selection.compare_strategies(StrategyResults(**{**fields(usual), "quality": calibrated}), usual)
    assert {"… its probabilities are not calibrated", "… steps much alike (correlation 0.8)"} <= failing(comparisons)


def fields(results: StrategyResults) -> dict[str, Any]:
    return {name: getattr(results, name) for name in StrategyResults.__slots__}


def test_pseudo_positives_harm_and_statements_fail_where_they_do_not() -> None:
    results = selection.train_with_pseudo_positives(np.random.default_rng(SEED), World(), 10)
    assert failing(selection.compare_pseudo_positives(results)) == set()
    assert np.all(np.diff(results.share) > 0)
    harmless = PseudoPositiveResults(
        share=results.share, annotated=results.corrected, corrected=results.corrected[::-1]
    )
    assert failing(selection.compare_pseudo_positives(harmless)) == {"pseudo-positives harm", "… the more the worse"}


def test_a_part_draws_the_same_with_and_without_the_others() -> None:
    alone, together = verify(only=["rollouts"]), verify(only=["steps", "rollouts"])
    assert [each.comparison.simulated.tolist() for each in alone.results] == [
        each.comparison.simulated.tolist() for each in together.results[-len(alone.results) :]
    ]
    other = verify(seed=1, only=["rollouts"])
    assert alone.results[0].comparison.simulated.tolist() != other.results[0].comparison.simulated.tolist()


@pytest.mark.slow
def test_everything_holds() -> None:
    report = verify()
    assert [result.comparison.name for result in report.results if not result.holds] == []
    assert report.as_dict()["holds"] is True
    assert len(PARTS) == 5
    assert {result.comparison.name for result in report.results} == set(STATEMENTS)

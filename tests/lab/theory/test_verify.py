"""Every line holds with the paper's formula, and fails with a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special

from mprm.errors import ConfigError
from mprm.selection.strategies import Strategy, rank_low_mc, rank_random
from mprm.theory import beta_binomial
from mprm.theory import equations as gradient_moment
from mprm.theory import equations as label_flips
from mprm.theory import equations as logistic_teacher
from mprm.theory import equations as positive_label
from mprm.theory.arguments import FloatArray
from mprm.theory.equations import RiskBound
from mprm_lab.theory import annotated as annotated_rollouts
from mprm_lab.theory import steps, strategies, training
from mprm_lab.theory import steps as rollouts
from mprm_lab.theory import steps as success_rates
from mprm_lab.theory.annotated import World
from mprm_lab.theory.lines import Line, verdicts
from mprm_lab.theory.strategies import Compared, PseudoPositives
from mprm_lab.theory.training import Training
from mprm_lab.theory.verify import PARTS, verify

SEED = 5


def failing(lines: list[Line]) -> set[str]:
    return {verdict.line.name for verdict in verdicts(lines) if not verdict.holds}


def lines_of(part: str) -> list[Line]:
    make = {"steps": steps.step_lines, "rollouts": rollouts.rollout_lines}.get(part, success_rates.success_rate_lines)
    return make(np.random.default_rng(SEED))


@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_hold(seed: int) -> None:
    found = verify(seed=seed, only=("steps", "rollouts", "success-rates"))
    assert [verdict.line.name for verdict in found.verdicts if not verdict.holds] == []
    assert found.holds


theta = lambda q: np.mean(q) * (1 - np.mean(q))  # noqa: E731
A = lambda q, norm_sq=1.0: np.mean(q * (1 - q) * norm_sq)  # noqa: E731

# (part, the function's name there, a wrong one, the line that must fail)
WRONG: list[tuple[str, str, Callable[..., Any], str]] = [
    ("steps", "positive_probability", lambda phi, w: logistic_teacher.positive_probability(phi, 1.2 * w), "teacher"),
    ("steps", "gradient", lambda phi, y, w: 1.01 * logistic_teacher.gradient(phi, y, w), "gradient"),
    (
        "steps",
        "gradient_second_moment",
        lambda q, norm_sq, eta=0.0: gradient_moment.gradient_second_moment(q, eta=eta) * np.sqrt(norm_sq),
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
        lambda r, n: positive_label.positive_label_probability(r, n + 1),
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
        lambda theta, eta: 0.5 * label_flips.mixture_shift(theta, eta=eta),
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


@pytest.mark.parametrize(("part", "name", "wrong", "line"), WRONG, ids=[f"{w[1]}: {w[3]}" for w in WRONG])
def test_a_wrong_formula_is_found_out(
    part: str, name: str, wrong: Callable[..., Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"steps": steps, "rollouts": rollouts, "success-rates": success_rates}[part]
    monkeypatch.setattr(module, name, wrong)
    assert line in failing(lines_of(part))


def test_every_closed_form_line_has_a_formula_that_breaks_it() -> None:
    names = {line.name for part in ("steps", "rollouts", "success-rates") for line in lines_of(part)}
    assert names == {line for *_, line in WRONG}


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


@pytest.mark.parametrize(("name", "wrong", "line"), TRAINING, ids=[f"{w[0]}: {w[2]}" for w in TRAINING])
def test_a_wrong_bound_is_found_out(
    name: str, wrong: Callable[..., RiskBound], line: str, trained: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, name, wrong)
    assert line in failing(training.training_lines(trained))


def test_the_bound_holds_in_training_and_every_line_of_it_can_fail(trained: Training) -> None:
    lines = training.training_lines(trained)
    assert failing(lines) == set()
    assert {line.name for line in lines} == {line for *_, line in TRAINING}


def compared(world: World, n_seeds: int) -> Compared:
    return strategies.compare_strategies(np.random.default_rng(SEED), world, n_seeds)


@pytest.fixture(scope="module")
def usual() -> Compared:
    return compared(World(), 40)


@pytest.fixture(scope="module")
def alike() -> Compared:
    return compared(World(correlation=0.8), 12)


def test_strategies_compare_as_stated(usual: Compared, alike: Compared) -> None:
    assert failing(strategies.strategy_lines(usual, alike)) == set()
    assert 0.025 < usual.negative_steps < 0.045  # the paper's corpus: 3.6%
    assert 0.84 < usual.mean_mc < 0.90  # 0.86


def with_bis(rank: Callable[..., FloatArray], patch: pytest.MonkeyPatch) -> Compared:
    """The students if BIS ranked so."""
    patch.setitem(annotated_rollouts.keep_top.__globals__["STRATEGIES"], "bis", Strategy(rank, False, ""))
    return compared(World(), 12)


def test_a_bis_that_ranks_at_random_is_found_out(alike: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = strategies.strategy_lines(with_bis(rank_random, monkeypatch), alike)
    assert {
        "BIS against random",
        "BIS against mixed",
        "BIS against reliable",
        "BIS against random: macro-F1",
    } <= failing(lines)
    assert "a tenth by BIS against all data" in failing(lines)


def test_a_bis_that_ranks_as_low_mc_is_found_out(alike: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = strategies.strategy_lines(with_bis(rank_low_mc, monkeypatch), alike)
    assert {"BIS against low-mc", "BIS against low-mc: macro-F1"} <= failing(lines)


def test_lines_on_the_limits_of_bis_fail_where_the_limits_are_not(usual: Compared) -> None:
    # as if steps much alike were those of the usual world, and BIS's probabilities those of Reliable
    calibrated = {**usual.quality, "reliable": usual.quality["bis"]}
    found = strategies.strategy_lines(Compared(**{**fields(usual), "quality": calibrated}), usual)
    assert {"… its probabilities are not calibrated", "… steps much alike (correlation 0.5)"} <= failing(found)


def fields(found: Compared) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Compared.__slots__}


def test_pseudo_positives_harm_and_lines_fail_where_they_do_not() -> None:
    found = strategies.pseudo_positive_students(np.random.default_rng(SEED), World(), 10)
    assert failing(strategies.pseudo_positive_lines(found)) == set()
    assert np.all(np.diff(found.share) > 0)
    harmless = PseudoPositives(share=found.share, annotated=found.corrected, corrected=found.corrected[::-1])
    assert failing(strategies.pseudo_positive_lines(harmless)) == {"pseudo-positives harm", "… the more the worse"}


def test_unknown_parts_and_negative_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="seed must be at least 0, got -1"):
        verify(seed=-1)
    with pytest.raises(ConfigError, match="unknown part 'lemmas'; expected steps, rollouts"):
        verify(only=["lemmas"])


def test_a_part_draws_the_same_with_and_without_the_others() -> None:
    alone, together = verify(only=["rollouts"]), verify(only=["steps", "rollouts"])
    assert [v.line.simulated.tolist() for v in alone.verdicts] == [
        v.line.simulated.tolist() for v in together.verdicts[-len(alone.verdicts) :]
    ]
    other = verify(seed=1, only=["rollouts"])
    assert alone.verdicts[0].line.simulated.tolist() != other.verdicts[0].line.simulated.tolist()


@pytest.mark.slow
def test_everything_holds() -> None:
    found = verify()
    assert [verdict.line.name for verdict in found.verdicts if not verdict.holds] == []
    assert found.as_dict()["holds"] is True
    assert len(PARTS) == 5

"""The rule by hand, its probabilities against simulation; the figures of its document."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import ArrayLike
from scipy import stats

from mprm.annotation.annotate import AdaptiveRule
from mprm.errors import ConfigError, DataError, MissingDependencyError
from mprm.theory.beta_binomial import all_fail, eta_eff
from mprm.theory.equations import FloatArray

ROOT = Path(__file__).parents[2]


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("adaptive_benchmark", ROOT / "benchmarks" / "adaptive.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


def expected_disagreement(k: ArrayLike, n: ArrayLike, rule: AdaptiveRule) -> FloatArray:
    """Probability that all N continuations would give the other hard label than these n."""
    a, b = rule.prior
    return np.where(np.asarray(k) > 0, 0.0, 1 - all_fail(n, rule.continuations, a=a, b=b))


# With the uniform prior and tau = 1/2, eta(k, n) = Pr(Binomial(n + 1, 1/2) >= k + 1), and
# all_fail(n, 16) = (n + 1) / 17.
BY_HAND = [
    (0, 0, "undecided", 4),
    (4, 4, "positive-reliable", 0),  # eta = 1/32 = 0.031
    (3, 4, "undecided", 4),  # eta = (5 + 1)/32 = 0.188
    (1, 4, "undecided", 4),  # eta = 1 - (1 + 5)/32 = 0.813
    (0, 4, "undecided", 4),  # all_fail = 5/17
    (7, 8, "positive-reliable", 0),  # eta = (9 + 1)/512 = 0.020
    (6, 8, "undecided", 4),  # eta = (36 + 9 + 1)/512 = 0.090
    (1, 8, "positive-unreliable", 0),  # eta = 1 - (1 + 9)/512 = 0.980
    (2, 8, "undecided", 4),  # eta = 1 - (1 + 9 + 36)/512 = 0.910
    (0, 12, "undecided", 4),  # all_fail = 13/17 = 0.765
    (0, 16, "negative", 0),
    (8, 16, "undecided", 0),  # eta = 1/2, and the budget is spent
]


@pytest.mark.parametrize(("k", "n", "decision", "more"), BY_HAND)
def test_default_rule_decides_as_worked_by_hand(k: int, n: int, decision: str, more: int) -> None:
    rule = AdaptiveRule()
    assert rule.decision(k, n) == decision
    assert rule.n_next(k, n) == more


def test_a_prior_that_leans_to_zero_calls_a_step_negative_early() -> None:
    # a = b = 0.1: all_fail(12, 16) = (12.1/12.2) (13.1/13.2) (14.1/14.2) (15.1/15.2) = 0.9713
    assert all_fail(12, 16, a=0.1, b=0.1) == pytest.approx(12.1 / 12.2 * 13.1 / 13.2 * 14.1 / 14.2 * 15.1 / 15.2)
    assert AdaptiveRule(prior=(0.1, 0.1), delta=0.03).decision(0, 12) == "negative"
    assert AdaptiveRule(prior=(0.1, 0.1), delta=0.02).decision(0, 12) == "undecided"


def test_a_prior_alone_labels_nothing() -> None:
    rule = AdaptiveRule(prior=(1e-6, 1.0))  # expects failures so firmly that all 16 fail with probability above 0.95
    assert all_fail(0, 16, a=1e-6, b=1.0) > 0.95
    assert (rule.decision(0, 0), rule.n_next(0, 0)) == ("undecided", 4)
    assert rule.decision(0, 4) == "negative"


def test_last_round_is_cut_to_the_budget() -> None:
    assert AdaptiveRule(continuations=10).n_next(0, 8) == 2
    assert AdaptiveRule(continuations=3).n_next(0, 0) == 3


def test_functions_take_arrays() -> None:
    k, n = np.array([[0], [2]]), np.array([4, 8, 16])
    noise = eta_eff(k, n, tau=0.5, a=1, b=1)
    assert noise.shape == (2, 3)
    assert noise[1, 1] == pytest.approx(eta_eff(2, 8, tau=0.5, a=1, b=1))
    assert expected_disagreement(k, n, AdaptiveRule()) == pytest.approx(np.array([[12 / 17, 8 / 17, 0], [0, 0, 0]]))


priors = st.floats(0.05, 20)
rules = st.builds(
    AdaptiveRule,
    continuations=st.integers(1, 40),
    round=st.integers(1, 12),
    reliable=st.floats(0.05, 0.95),
    delta=st.floats(0.001, 0.49),
    prior=st.tuples(priors, priors),
)


@given(rule=rules, n=st.integers(1, 40))
def test_eta_eff_falls_as_successes_rise(rule: AdaptiveRule, n: int) -> None:
    noise = eta_eff(np.arange(n + 1), n, tau=rule.reliable, a=rule.prior[0], b=rule.prior[1])
    falls = -np.diff(noise)
    assert np.all(falls > -1e-14)
    # strictly, but where floating point cannot tell the probability from 0 or 1
    inside = (noise[:-1] < 1 - 1e-9) & (noise[1:] > 1e-9)
    assert np.all(falls[inside] > 0)


@given(rule=rules, outcomes=st.lists(st.booleans(), min_size=40, max_size=40))
def test_sampling_ends_within_the_budget_and_only_when_decided_or_spent(
    rule: AdaptiveRule, outcomes: list[bool]
) -> None:
    k = n = 0
    while more := rule.n_next(k, n):
        assert rule.decision(k, n) == "undecided"
        assert 0 < more <= rule.round
        k, n = k + sum(outcomes[n : n + more]), n + more
    assert 0 < n <= rule.continuations
    decision = rule.decision(k, n)
    assert n == rule.continuations or decision != "undecided"
    assert (decision == "negative") == (k == 0)  # no other way to end without a success, and none with one
    bound = expected_disagreement(k, n, rule)
    assert 0 <= bound <= rule.delta + 1e-12
    assert bound == 0 or (k == 0 and n < rule.continuations)
    at_once = BENCHMARK.replay(np.array([outcomes[: rule.continuations]]), rule)
    assert (at_once[0].tolist(), at_once[1].tolist()) == ([k], [n])


def test_measured_disagreement_is_the_expected_one_and_within_delta() -> None:
    rule = AdaptiveRule(prior=(0.15, 0.3), delta=0.1)
    rng = np.random.default_rng(0)
    r = rng.beta(*rule.prior, 100_000)
    outcomes = rng.random((len(r), rule.continuations)) < r[:, None]
    k, n = BENCHMARK.replay(outcomes, rule)
    differs = (k > 0) != outcomes.any(axis=1)
    expected = expected_disagreement(k, n, rule)
    # the rule must have taken chances, or the rest says nothing
    assert differs.sum() > 1000
    error = np.sqrt(expected.sum()) / len(r)
    assert differs.mean() == pytest.approx(expected.mean(), abs=4 * error)
    assert differs[k == 0].mean() <= rule.delta
    # the same stops under a prior that is wrong about r: the bound must not hold by construction
    shifted = rng.beta(0.5, 2.0, len(r))
    outcomes = rng.random((len(r), rule.continuations)) < shifted[:, None]
    k, n = BENCHMARK.replay(outcomes, rule)
    assert ((k > 0) != outcomes.any(axis=1))[k == 0].mean() > rule.delta


def test_reliability_is_wrong_as_often_as_eta_eff_says_whatever_stopped_the_sampling() -> None:
    rule = AdaptiveRule(prior=(1.5, 0.5), delta=0.1)
    rng = np.random.default_rng(1)
    r = rng.beta(*rule.prior, 100_000)
    k, n = BENCHMARK.replay(rng.random((len(r), rule.continuations)) < r[:, None], rule)
    noise = eta_eff(k, n, tau=rule.reliable, a=1.5, b=0.5)
    reliable = (k > 0) & (noise <= rule.delta)
    error = np.sqrt(noise[reliable].sum()) / reliable.sum()
    assert (r[reliable] < rule.reliable).mean() == pytest.approx(noise[reliable].mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"continuations": 0}, "continuations must be at least 1, got 0"),
        ({"round": 2.5}, "round must be a whole number, got 2.5"),
        ({"reliable": 1.0}, "reliable must be above 0 and below 1, got 1.0"),
        ({"delta": 0.0}, "delta must be above 0 and below 0.5, got 0.0"),
        ({"delta": 0.5}, "delta must be above 0 and below 0.5, got 0.5"),
        ({"prior": (0.0, 1.0)}, "prior must be above 0, got 0.0"),
        ({"prior": (1.0, float("nan"))}, "prior must be above 0, got nan"),
        ({"prior": (1.0, float("inf"))}, "prior must be above 0, got inf"),
        ({"prior": (1.0,)}, "prior takes two numbers, a and b, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptiveRule(**option)  # type: ignore[arg-type]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(DataError, match="at most the number"):
        AdaptiveRule().decision(5, 4)


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match=r"pip install scipy.*\[theory\]"):
        AdaptiveRule().n_next(1, 4)


def test_success_rates_with_a_lump_at_zero_are_recovered() -> None:
    truth = BENCHMARK.SuccessRates(zero=0.1, a=3.0, b=0.4)
    rng = np.random.default_rng(3)
    r = np.where(rng.random(50_000) < truth.zero, 0.0, rng.beta(truth.a, truth.b, 50_000))
    k = rng.binomial(16, r)
    fitted = BENCHMARK.fit_success_rates(k, 16)
    assert (fitted.zero, fitted.a, fitted.b) == pytest.approx((truth.zero, truth.a, truth.b), rel=0.05)
    # sampled from the posteriors, rates are distributed as those that made the counts
    again = fitted.sample(k, 16, rng)
    assert (again == 0).mean() == pytest.approx(truth.zero, abs=0.005)
    assert stats.ks_2samp(again[again > 0], r[r > 0]).statistic < 0.02


COLUMNS = {
    "per step": ("continuations", "{:.2f}"),
    "saved": ("saved", "{:.1%}"),
    "labels differ": ("labels_differ", "{:.3%}"),
    "pseudo-positive": ("pseudo_positive", "{:.2%}"),
    "reliability wrong": ("reliability_wrong", "{:.2%}"),
    "score off": ("score_difference", "{:.4f}"),
    "BIS-10% overlap": ("bis_overlap", "{:.1%}"),
    "of its mixed": ("mixed_overlap", "{:.1%}"),
    "Brier": ("brier", "{:.5f}"),
    "bias": ("bias_to_r", "{:+.4f}"),
}
DOCUMENT = (ROOT / "docs" / "adaptive.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "adaptive.json").read_text(encoding="utf-8"))


def table_with(head: str) -> list[list[str]]:
    """The cells of the table with that column; without its rule."""
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", DOCUMENT, re.MULTILINE) if f"| {head} |" in table]
    assert len(tables) == 1
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0].splitlines()]
    return [lines[0], *lines[2:]]


def test_numbers_of_the_document_are_those_of_the_benchmark() -> None:
    heads, *lines, (last, *half_widths) = table_with("BIS-10% overlap")
    assert heads[1:] == list(COLUMNS)
    assert last == "largest half-width"
    shown: dict[str, set[str]] = {}
    largest = dict.fromkeys(COLUMNS, 0.0)
    for name, *cells in lines:
        if name.startswith("**"):
            corpus = name.strip("*")
            shown[corpus] = set()
            continue
        shown[corpus].add(name)
        for head, cell in zip(heads[1:], cells, strict=True):
            key, form = COLUMNS[head]
            mean, half_width = RESULTS["corpora"][corpus]["rows"][name][key]
            assert cell == form.format(mean), f"{corpus}, {name}, {head}"
            largest[head] = max(largest[head], half_width)
    assert shown.keys() == RESULTS["corpora"].keys()
    assert all({"all 16", "another 16", "δ 0.05", "δ 0.05: fixed, same cost"} <= names for names in shown.values())
    assert half_widths == [COLUMNS[head][1].replace("+", "").format(largest[head]) for head in COLUMNS]


def test_corpora_of_the_document_are_those_of_the_benchmark() -> None:
    _, *lines = table_with("one Beta expects")
    assert [line[0] for line in lines] == list(RESULTS["corpora"])
    for name, *cells in lines:
        corpus = RESULTS["corpora"][name]
        of, like = corpus["made_of"], corpus["simulated"]
        shown = [f"{corpus['n_rollouts']:,}", f"{corpus['n_steps']:,}"]
        for key, form in [("mean_score", "{:.3f}"), ("negative_steps", "{:.2%}"), ("mixed_rollouts", "{:.2%}")]:
            shown += [form.format(of[key]), form.format(like[key][0])]
        shown.insert(6, f"{corpus['one_beta']['negative_steps']:.2%}")
        if name == "hard":  # made harder than what it is made of
            shown = ["–" if number in (2, 4, 6, 7) else cell for number, cell in enumerate(shown)]
        assert cells == shown
    assert f"over {RESULTS['seeds']} seeds" in DOCUMENT

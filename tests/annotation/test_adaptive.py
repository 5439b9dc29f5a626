"""The rule by hand, its probabilities against simulation."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mprm.annotation.adaptive import AdaptiveRule, expected_disagreement, replay
from mprm.annotation.simulate import SuccessRates, fit_success_rates
from mprm.errors import ConfigError, DataError, MissingDependencyError
from mprm.theory.beta_binomial import all_fail, eta_eff

ROOT = Path(__file__).parents[2]

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
    assert rule.next(k, n) == more


def test_a_prior_that_leans_to_zero_calls_a_step_negative_early() -> None:
    # a = b = 0.1: all_fail(12, 16) = (12.1/12.2) (13.1/13.2) (14.1/14.2) (15.1/15.2) = 0.9713
    assert all_fail(12, 16, a=0.1, b=0.1) == pytest.approx(12.1 / 12.2 * 13.1 / 13.2 * 14.1 / 14.2 * 15.1 / 15.2)
    assert AdaptiveRule(a=0.1, b=0.1, delta=0.03).decision(0, 12) == "negative"
    assert AdaptiveRule(a=0.1, b=0.1, delta=0.02).decision(0, 12) == "undecided"


def test_a_prior_alone_labels_nothing() -> None:
    rule = AdaptiveRule(a=1e-6)  # expects failures so firmly that all 16 fail with probability above 0.95
    assert all_fail(0, 16, a=rule.a, b=rule.b) > 0.95
    assert (rule.decision(0, 0), rule.next(0, 0)) == ("undecided", 4)
    assert rule.decision(0, 4) == "negative"


def test_last_round_is_cut_to_the_budget() -> None:
    assert AdaptiveRule(n_max=10).next(0, 8) == 2
    assert AdaptiveRule(n_max=3).next(0, 0) == 3


def test_functions_take_arrays() -> None:
    k, n = np.array([[0], [2]]), np.array([4, 8, 16])
    noise = eta_eff(k, n, tau=0.5, a=1, b=1)
    assert noise.shape == (2, 3)
    assert noise[1, 1] == pytest.approx(eta_eff(2, 8, tau=0.5, a=1, b=1))
    assert expected_disagreement(k, n, AdaptiveRule()) == pytest.approx(np.array([[12 / 17, 8 / 17, 0], [0, 0, 0]]))


priors = st.floats(0.05, 20)
rules = st.builds(
    AdaptiveRule,
    n_max=st.integers(1, 40),
    round=st.integers(1, 12),
    tau=st.floats(0.05, 0.95),
    delta=st.floats(0.001, 0.49),
    a=priors,
    b=priors,
)


@given(rule=rules, n=st.integers(1, 40))
def test_eta_eff_falls_as_successes_rise(rule: AdaptiveRule, n: int) -> None:
    noise = eta_eff(np.arange(n + 1), n, tau=rule.tau, a=rule.a, b=rule.b)
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
    while more := rule.next(k, n):
        assert rule.decision(k, n) == "undecided"
        assert 0 < more <= rule.round
        k, n = k + sum(outcomes[n : n + more]), n + more
    assert 0 < n <= rule.n_max
    decision = rule.decision(k, n)
    assert n == rule.n_max or decision != "undecided"
    assert (decision == "negative") == (k == 0)  # no other way to end without a success, and none with one
    bound = expected_disagreement(k, n, rule)
    assert 0 <= bound <= rule.delta + 1e-12
    assert bound == 0 or (k == 0 and n < rule.n_max)
    at_once = replay(np.array([outcomes[: rule.n_max]]), rule)
    assert (at_once[0].tolist(), at_once[1].tolist()) == ([k], [n])


def test_measured_disagreement_is_the_expected_one_and_within_delta() -> None:
    rule = AdaptiveRule(a=0.15, b=0.3, delta=0.1)
    rng = np.random.default_rng(0)
    r = rng.beta(rule.a, rule.b, 100_000)
    outcomes = rng.random((len(r), rule.n_max)) < r[:, None]
    k, n = replay(outcomes, rule)
    differs = (k > 0) != outcomes.any(axis=1)
    expected = expected_disagreement(k, n, rule)
    # the rule must have taken chances, or the rest says nothing
    assert differs.sum() > 1000
    error = np.sqrt(expected.sum()) / len(r)
    assert differs.mean() == pytest.approx(expected.mean(), abs=4 * error)
    assert differs[k == 0].mean() <= rule.delta
    # the same stops under a prior that is wrong about r: the bound must not hold by construction
    shifted = rng.beta(0.5, 2.0, len(r))
    outcomes = rng.random((len(r), rule.n_max)) < shifted[:, None]
    k, n = replay(outcomes, rule)
    assert ((k > 0) != outcomes.any(axis=1))[k == 0].mean() > rule.delta


def test_reliability_is_wrong_as_often_as_eta_eff_says_whatever_stopped_the_sampling() -> None:
    rule = AdaptiveRule(a=1.5, b=0.5, delta=0.1)
    rng = np.random.default_rng(1)
    r = rng.beta(rule.a, rule.b, 100_000)
    k, n = replay(rng.random((len(r), rule.n_max)) < r[:, None], rule)
    noise = eta_eff(k, n, tau=rule.tau, a=rule.a, b=rule.b)
    reliable = (k > 0) & (noise <= rule.delta)
    error = np.sqrt(noise[reliable].sum()) / reliable.sum()
    assert (r[reliable] < rule.tau).mean() == pytest.approx(noise[reliable].mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"n_max": 0}, "n_max must be a whole number of at least 1, got 0"),
        ({"round": 2.5}, "round must be a whole number of at least 1, got 2.5"),
        ({"tau": 1.0}, "tau must be in"),
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": 0.5}, "delta must be in"),
        ({"a": 0.0}, "above 0, got a = 0.0, b = 1.0"),
        ({"b": float("nan")}, "above 0"),
        ({"b": float("inf")}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptiveRule(**option)  # type: ignore[arg-type]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(DataError, match="at most the number"):
        AdaptiveRule().decision(5, 4)
    with pytest.raises(DataError, match="8 outcomes; the rule samples up to 16"):
        replay(np.zeros((1, 8), bool), AdaptiveRule())


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match=r"pip install scipy.*\[annotate\]"):
        AdaptiveRule().next(1, 4)


def test_success_rates_with_a_lump_at_zero_are_recovered() -> None:
    truth = SuccessRates(zero=0.1, a=3.0, b=0.4)
    rng = np.random.default_rng(3)
    r = np.where(rng.random(50_000) < truth.zero, 0.0, rng.beta(truth.a, truth.b, 50_000))
    k = rng.binomial(16, r)
    found = fit_success_rates(k, 16)
    assert (found.zero, found.a, found.b) == pytest.approx((truth.zero, truth.a, truth.b), rel=0.05)
    # drawn from the posteriors, rates are distributed as those that made the counts
    again = found.draw(k, 16, rng)
    assert (again == 0).mean() == pytest.approx(truth.zero, abs=0.005)
    assert stats.ks_2samp(again[again > 0], r[r > 0]).statistic < 0.02
    with pytest.raises(DataError, match="17 successes of 16"):
        fit_success_rates(np.array([17]), 16)


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


def table_below(heading: str) -> list[list[str]]:
    """The cells of the first table below the line that begins so; without its rule."""
    text = DOCUMENT[DOCUMENT.index(f"\n{heading}") + 1 :]
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found is not None
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
    return [lines[0], *lines[2:]]


@pytest.mark.parametrize("corpus", RESULTS["corpora"])
def test_numbers_of_the_document_are_those_of_the_benchmark(corpus: str) -> None:
    heads, *lines = table_below(f"### {corpus}\n")
    rows = RESULTS["corpora"][corpus]["rows"]
    assert heads[1:] == list(COLUMNS)
    assert {"all 16", "another 16", "δ 0.05", "δ 0.05: fixed, same cost"} <= {line[0] for line in lines}
    for name, *cells in lines:
        for head, cell in zip(heads[1:], cells, strict=True):
            key, form = COLUMNS[head]
            mean, half_width = rows[name][key]
            expected = f"{form.format(mean)} ± {form.replace('+', '').format(half_width)}"
            assert cell == expected, f"{corpus}, {name}, {head}"


def test_corpora_of_the_document_are_those_of_the_benchmark() -> None:
    _, *lines = table_below("- *hard*")
    assert [line[0] for line in lines] == list(RESULTS["corpora"])
    for name, *cells in lines:
        found = RESULTS["corpora"][name]
        of, like = found["made_of"], found["simulated"]
        shown = [f"{found['n_rollouts']:,}", f"{found['n_steps']:,}"]
        for key, form in [("mean_score", "{:.3f}"), ("negative_steps", "{:.2%}"), ("mixed_rollouts", "{:.2%}")]:
            shown += [form.format(of[key]), form.format(like[key][0])]
        shown.insert(6, f"{found['one_beta']['negative_steps']:.2%}")
        if name == "hard":  # made harder than what it is made of
            shown = ["–" if number in (2, 4, 6, 7) else cell for number, cell in enumerate(shown)]
        assert cells == shown
    assert f"over {RESULTS['seeds']} seeds" in DOCUMENT

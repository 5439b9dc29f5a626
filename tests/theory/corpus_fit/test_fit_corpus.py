"""A known prior is recovered within its interval; what cannot be fitted is refused or told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mprm
from mprm.errors import ConfigError, DataError
from mprm.selection.strategies import SelectConfig
from mprm.theory import eta_eff, fit_corpus
from mprm.theory.beta_binomial import log_interval, observed_information, prior_covariance
from mprm.theory.fit_corpus import _Fit
from tests.conftest import raw_record, write_jsonl
from tests.theory.corpus_fit.simulated_counts import correlated_counts, step_counts

CONFIG = SelectConfig(strategy=("bis", "random"), rho=(0.1,))


def write_counts(path: Path, k: np.ndarray, n: int) -> Path:
    records = [raw_record((row / n).tolist(), n_mc=n, number=i) for i, row in enumerate(k)]
    return write_jsonl(path, records)


def test_a_known_prior_is_recovered_from_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, a, b in [("easy", 3.0, 0.4), ("hard", 0.5, 1.5)]:
        k = correlated_counts(rng, 800, 4, a=a, b=b, n=16, correlation=0.5)
        write_counts(tmp_path / f"{name}.jsonl", k, 16)
    found = fit_corpus(tmp_path)
    assert [source.name for source in found.sources] == ["easy", "hard"]
    for source, a, b in zip(found.sources, (3.0, 0.5), (0.4, 1.5), strict=True):
        assert source.prior is not None
        assert source.prior.a_interval[0] < a < source.prior.a_interval[1]
        assert source.prior.b_interval[0] < b < source.prior.b_interval[1]
        assert source.prior.a_interval[1] / source.prior.a_interval[0] < 1.6  # and the interval says something
    assert found.N == 16
    assert sum(row.steps for row in found.noise) == 2 * 800 * 4


@pytest.mark.parametrize(("a", "b", "n"), [(2.0, 0.4, 16), (0.6, 0.8, 8)])
def test_intervals_cover_the_truth_in_19_of_20_corpora_though_steps_are_alike(a: float, b: float, n: int) -> None:
    rng = np.random.default_rng(1)
    n_corpora, covered, naive = 200, np.zeros(2), np.zeros(2)
    for _ in range(n_corpora):
        k = correlated_counts(rng, 300, 5, a=a, b=b, n=n, correlation=0.6)
        fit = _Fit(step_counts(k, n), CONFIG, 0.5, None)
        prior = fit.corpus_fit(0).total.prior
        assert prior is not None
        covered += [low < truth < high for truth, (low, high) in ((a, prior.a_interval), (b, prior.b_interval))]
        counts = fit.counts(None)
        plain = prior_covariance(observed_information(counts.k, counts.n, counts.steps, a=prior.a, b=prior.b))
        ends = log_interval(prior.a, plain[0, 0]), log_interval(prior.b, plain[1, 1])
        naive += [low < truth < high for truth, (low, high) in zip((a, b), ends, strict=True)]
    # 190 of 200 expected, with a standard deviation of 3.1
    assert np.all(np.abs(covered - 190) <= 3 * 3.1)
    # intervals that take steps for independent would not do
    assert np.any(naive < 190 - 4 * 3.1)


def test_the_share_of_pseudo_positives_is_that_of_the_success_rates_behind_the_counts() -> None:
    rng = np.random.default_rng(2)
    r = rng.beta(1.2, 0.4, (20_000, 3))
    k = rng.binomial(16, r)
    found = _Fit(step_counts(k, 16), CONFIG, 0.5, None).corpus_fit(0).total
    low, high = found.pseudo_positive.interval
    truth = float((r[k > 0] < 0.5).mean())
    assert found.pseudo_positive.share == pytest.approx(truth, abs=0.005)
    assert low - 0.003 < truth < high + 0.003  # the truth is a draw of 60,000 steps, and varies too
    assert found.negative == pytest.approx(float((k == 0).mean()))
    assert found.expected_negative == pytest.approx(found.negative, abs=0.005)


def test_subsets_are_weighed_step_by_step(random_corpus: Path, tmp_path: Path) -> None:
    found = fit_corpus(random_corpus, rho=0.3, reliable=0.4, seed=3)
    priors = {source.name: source.prior or found.total.prior for source in found.sources}
    for entry in found.subsets:
        if entry.strategy == "all":
            rollouts = list(mprm.open_corpus(random_corpus).located())
        else:
            out = tmp_path / entry.strategy
            selection = mprm.select(random_corpus, strategy=entry.strategy, rho=0.3, seed=3)  # type: ignore[arg-type]
            selection.write_all(str(out), by_source=True)
            rollouts = list(mprm.open_corpus([str(path) for path in out.rglob("*.jsonl")]).located())
        noise = [
            float(eta_eff(round(16 * score), 16, tau=0.4, a=prior.a, b=prior.b))
            for placed in rollouts
            if (prior := priors[placed.source]) is not None
            for score in placed.rollout.scores
            if score > 0
        ]
        assert (entry.n_rollouts, entry.n_positive) == (len(rollouts), len(noise))
        assert entry.pseudo_positive == pytest.approx(np.mean(noise))
        assert entry.of_all_steps == pytest.approx(np.sum(noise) / entry.n_steps)


def test_scores_without_counts_are_fitted_by_their_grid() -> None:
    k = correlated_counts(np.random.default_rng(3), 300, 4, a=1.0, b=0.5, n=12, correlation=0.3)
    with_counts = _Fit(step_counts(k, 12), CONFIG, 0.5, None).corpus_fit(0).total
    without = _Fit(step_counts(k, 12, is_told=False), CONFIG, 0.5, None).corpus_fit(0).total
    assert without.is_inferred
    assert not with_counts.is_inferred
    assert without.continuations == (12,)
    assert without.prior is not None
    assert with_counts.prior is not None
    assert (without.prior.a, without.prior.b) == (with_counts.prior.a, with_counts.prior.b)


def test_a_source_without_a_prior_says_why_and_takes_that_of_all(corpus: Callable[..., Path]) -> None:
    good = [[k / 16, 1 - k / 16] for k in range(17)] * 4
    found = fit_corpus(corpus(good=good, sure=[[1.0, 1.0]] * 5, never=[[0.0]] * 5, split=[[1.0, 0.0]] * 40))
    by_name = {source.name: source for source in found.sources}
    assert by_name["good"].prior is not None
    assert "every continuation succeeds" in by_name["sure"].why_no_prior
    assert "every continuation fails" in by_name["never"].why_no_prior
    assert "nearly all 0 or 1" in by_name["split"].why_no_prior
    assert all(by_name[name].prior is None for name in ("sure", "never", "split"))
    overall = found.total.prior
    assert overall is not None
    expected = eta_eff(16, 16, tau=0.5, a=overall.a, b=overall.b)
    assert by_name["sure"].pseudo_positive.share == pytest.approx(float(expected))
    assert by_name["never"].pseudo_positive.share == 0  # no positive step


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        ([[1.0, 1.0]] * 20, "every continuation succeeds"),
        ([[0.0]] * 20, "every continuation fails"),
        ([[1.0, 0.0]] * 20, "nearly all 0 or 1"),
        ([[0.5, 0.5]] * 50, "vary no more than chance"),
    ],
)
def test_a_corpus_without_a_prior_is_refused_with_the_reason(
    rollouts: list[list[float]], message: str, corpus: Callable[..., Path]
) -> None:
    with pytest.raises(DataError, match=f"no Beta prior fits the corpus: .*{message}"):
        fit_corpus(corpus(a=rollouts))


HARD: list[dict[str, Any]] = [{"prompt": "q", "completions": ["a", "b"], "labels": [True, False]}] * 5


def test_hard_labels_are_refused() -> None:
    with pytest.raises(DataError, match="holds right or wrong for each step and no MC scores"):
        fit_corpus(HARD)
    record = {
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "Question: q\nProcess: a<prm>\n\nb<prm>"},
            {"from": "gpt", "value": [1.0, 0.0]},
        ],
    }
    with pytest.raises(DataError, match="all scores are 0 or 1 and no counts are given"):
        fit_corpus([record] * 5)


def test_never_sampled_steps_weigh_nothing(tmp_path: Path) -> None:
    k = np.array([[0, 4, 8, 12, 16]] * 30)
    plain = write_counts(tmp_path / "plain" / "a.jsonl", k, 16)
    records = []
    for row in k:
        record = raw_record([*(row / 16).tolist(), 0.0], n_mc=16)
        record["steps_with_score"][-1]["num_mc_total"] = 0
        records.append(record)
    stopped = write_jsonl(tmp_path / "stopped" / "a.jsonl", records)
    first, second = fit_corpus(plain).total, fit_corpus(stopped).total
    assert first.prior is not None
    assert second.prior is not None
    assert (second.prior.a, second.prior.b) == pytest.approx((first.prior.a, first.prior.b))
    assert (first.n_unsampled, second.n_unsampled) == (0, 30)
    assert second.negative == pytest.approx(first.negative)


def test_wrong_options_are_refused(random_corpus: Path) -> None:
    with pytest.raises(ConfigError, match="reliable must be in"):
        fit_corpus(random_corpus, reliable=1.0)
    with pytest.raises(ConfigError, match="continuations must be at least 2"):
        fit_corpus(random_corpus, continuations=1)
    with pytest.raises(ConfigError, match="rho must be in"):
        fit_corpus(random_corpus, rho=0.0)


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match="nothing to fit"):
        fit_corpus(tmp_path)


def test_a_score_that_no_count_gives_is_refused(tmp_path: Path) -> None:
    record = raw_record([0.3, 0.5], n_mc=16)
    for step in record["steps_with_score"]:
        del step["num_mc_correct"]
    with pytest.raises(DataError, match=r"score 0\.3 of 16 continuations; no number of successes gives it"):
        fit_corpus(write_jsonl(tmp_path / "a.jsonl", [record]))


def test_any_number_of_continuations_is_tabled_in_little_space(corpus: Callable[..., Path]) -> None:
    found = fit_corpus(corpus(n_mc=2**31, a=[[0.25, 0.5, 0.75, 1.0, 0.0]] * 20))
    assert found.N == 2**31
    assert [row.k for row in found.noise] == [0, 2**29, 2**30, 3 * 2**29, 2**31]
    assert [row.steps for row in found.noise] == [20] * 5

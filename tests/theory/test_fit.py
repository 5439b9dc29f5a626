"""Steps are counted, a known prior is recovered within its interval, and what cannot be fitted is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import mprm
from mprm.cli.theory import run_theory as run
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine, ProcessEngine
from mprm.data.output import DroppedRecords
from mprm.errors import ConfigError, DataError
from mprm.selection import ROW_TYPE, LabelCounts
from mprm.theory import CorpusFit, FitConfig, eta_eff, fit_beta, fit_corpus
from mprm.theory.beta_binomial import log_interval, observed_information, prior_covariance
from mprm.theory.fit import Fit, StepCounts, count_corpus_steps, grid, infer_continuations
from tests.conftest import raw_record, write_jsonl


def counted(paths: Any, **options: Any) -> StepCounts:
    return count_corpus_steps(open_corpus(paths), InlineEngine(), **options)


def as_dict(counts: StepCounts, source: str) -> dict[tuple[float, int | None], int]:
    row = counts.histogram()[counts.labels.sources.index(source)]
    return {kind: int(n) for kind, n in zip(counts.kinds, row, strict=True) if n}


def test_steps_are_counted_by_source_score_and_continuations(corpus: Callable[..., Path]) -> None:
    counts = counted(corpus(n_mc=4, ai2d=[[1.0, 0.5], [0.5]], vqa=[[0.25, 0.0]]))
    assert as_dict(counts, "ai2d") == {(1.0, 4): 1, (0.5, 4): 2}
    assert as_dict(counts, "vqa") == {(0.25, 4): 1, (0.0, 4): 1}


def test_missing_counts_and_steps_never_sampled_are_told_apart(tmp_path: Path) -> None:
    record = raw_record([0.5, 0.0, 0.0], n_mc=4)
    del record["steps_with_score"][0]["num_mc_total"]
    record["steps_with_score"][2]["num_mc_total"] = 0
    counts = counted(write_jsonl(tmp_path / "a.jsonl", [record]))
    assert as_dict(counts, "a") == {(0.5, None): 1, (0.0, 4): 1, (0.0, 0): 1}


def test_a_line_that_needs_a_closer_look_is_counted_all_the_same(tmp_path: Path) -> None:
    odd = raw_record([0.5, 1.0], n_mc=4)
    odd["steps_with_score"][1]["num_mc_total"] = "four"  # a field that is not needed: the record is good
    counts = counted(write_jsonl(tmp_path / "a.jsonl", [raw_record([0.25], n_mc=4), odd]))
    assert as_dict(counts, "a") == {(0.25, 4): 1, (0.5, 4): 1, (1.0, None): 1}


def test_bad_records_and_blank_lines_count_nothing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([0.5]), b"", raw_record([1.5]), raw_record([1.0, 0.25])])
    with pytest.raises(DataError, match=r"a\.jsonl:3"):
        counted(path)
    dropped = DroppedRecords()
    counts = counted(path, on_bad=dropped)
    assert as_dict(counts, "a") == {(0.5, 16): 1, (1.0, 16): 1, (0.25, 16): 1}
    assert len(dropped) == 1


def test_every_container_and_engine_counts_the_same(random_corpus: Path, tmp_path: Path) -> None:
    plain = counted(random_corpus)
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in random_corpus.glob("*.jsonl"):
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    workers = count_corpus_steps(open_corpus(random_corpus), ProcessEngine(2))
    for other in (counted(packed), workers):
        for source in plain.labels.sources:
            assert as_dict(other, source) == as_dict(plain, source)


def test_mm_prm_soft_scores_have_no_counts() -> None:
    record = {
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "Question: q\nProcess: a<prm>\n\nb<prm>"},
            {"from": "gpt", "value": [0.875, 0.0]},
        ],
    }
    counts = counted([record])
    assert sorted(counts.kinds) == [(0.0, None), (0.875, None)]


def test_steps_of_kept_rollouts_are_those_that_are_written(random_corpus: Path, tmp_path: Path) -> None:
    counts = counted(random_corpus)
    selection = mprm.select(random_corpus, rho=0.2)
    selection.write(str(tmp_path / "kept.jsonl"))
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    scores = sorted(step["score"] for line in lines for step in json.loads(line)["steps_with_score"])
    histogram = counts.histogram(selection.subsets[0].kept).sum(axis=0)
    assert sorted(np.repeat([score for score, _ in counts.kinds], histogram).tolist()) == scores


def test_sums_over_a_rollout_s_steps(corpus: Callable[..., Path]) -> None:
    counts = counted(corpus(n_mc=4, a=[[1.0, 0.5], [0.25]], b=[[0.5, 0.5, 0.5]]))
    values = np.zeros((2, len(counts.kinds), 1))
    values[0, :, 0] = values[1, :, 0] = [score for score, _ in counts.kinds]
    values[1] *= 10
    source, sums = counts.sums(values)
    assert source.tolist() == [0, 0, 1]
    assert sums[:, 0].tolist() == [1.5, 0.25, 15.0]


@pytest.mark.parametrize("n", [1, 3, 7, 12, 16, 64])
def test_all_shares_of_n_tell_n(n: int) -> None:
    assert grid(np.arange(n + 1) / n) == n


def test_six_digits_are_enough() -> None:
    assert grid(np.array([0.333333, 0.666667])) == 3


def test_scores_of_no_grid_have_none() -> None:
    assert grid(np.array([0.5, 0.8317])) is None


SCORES = np.array([0.0, 0.125, 0.25, 0.3333333333333333, 1.0])


def test_each_source_has_its_own_number() -> None:
    # 20 scores between 0 and 1 each: eighths, and thirds
    counts = np.array([[5, 15, 5, 0, 5], [5, 0, 0, 20, 5], [0, 0, 0, 0, 0]])
    assert infer_continuations(SCORES, counts, ["a", "b", "none"]).tolist() == [8, 3, 0]


def test_a_source_with_few_scores_takes_the_grid_of_all() -> None:
    # the second has quarters only, but just 3 of them
    counts = np.array([[5, 15, 5, 0, 5], [5, 0, 3, 0, 5], [7, 0, 0, 0, 0]])
    assert infer_continuations(SCORES, counts, ["a", "b", "c"]).tolist() == [8, 8, 8]


def test_hard_labels_tell_no_grid() -> None:
    with pytest.raises(DataError, match=r"all scores are 0 or 1.*hard labels.*--continuations N"):
        infer_continuations(np.array([0.0, 1.0]), np.array([[5, 5]]), ["a"])


def test_scores_of_no_grid_are_refused_by_source() -> None:
    with pytest.raises(
        DataError, match=r"scores of soft lie on no grid k/N with N up to 64 \(there are 0.5, 0.8317\)"
    ):
        infer_continuations(np.array([0.5, 0.8317]), np.array([[20, 0], [20, 20]]), ["mc", "soft"])


def test_a_number_that_is_given_is_taken_or_refused() -> None:
    rounded = np.array([0.0, 0.33, 0.67])
    assert infer_continuations(rounded, np.array([[1, 1, 1], [0, 0, 0]]), ["a", "b"], 3).tolist() == [3, 0]
    assert infer_continuations(np.array([0.0, 1.0]), np.array([[5, 5]]), ["a"], 16).tolist() == [16]
    with pytest.raises(DataError, match=r"score 0\.4 is no k/3"):
        infer_continuations(np.array([0.4]), np.array([[1]]), ["a"], 3)


def correlated_counts(
    rng: np.random.Generator, n_rollouts: int, n_steps: int, *, a: float, b: float, n: int, correlation: float
) -> np.ndarray:
    """Successes of n of each step, shape (rollouts, steps): every r is Beta(a, b), those of a rollout alike."""
    shared, own = rng.normal(size=(n_rollouts, 1)), rng.normal(size=(n_rollouts, n_steps))
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    return rng.binomial(n, special.betaincinv(a, b, stats.norm.cdf(z)))


def step_counts(k: np.ndarray, n: int, *, is_given: bool = True) -> StepCounts:
    """What reading a corpus with these counts of n gives, one source; the file gives n, or not."""
    rows = np.zeros(len(k), ROW_TYPE)
    rows["n_steps"], rows["n_pos"] = k.shape[1], (k > 0).sum(axis=1)
    rows["sum_all"] = rows["sum_pos"] = (k / n).sum(axis=1)
    kinds = [(value / n, n if is_given else None) for value in range(n + 1)]
    return StepCounts(LabelCounts(rows, [], ["simulated"]), kinds, k.ravel().astype(np.uint32))


def fitted(k: np.ndarray, n: int, **options: Any) -> CorpusFit:
    return Fit(step_counts(k, n, **options), FitConfig()).corpus_fit()


def write_counts(path: Path, k: np.ndarray, n: int) -> Path:
    records = [raw_record((row / n).tolist(), n_mc=n, number=i) for i, row in enumerate(k)]
    return write_jsonl(path, records)


def test_a_known_prior_is_recovered_from_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, a, b in [("easy", 3.0, 0.4), ("hard", 0.5, 1.5)]:
        k = correlated_counts(rng, 800, 4, a=a, b=b, n=16, correlation=0.5)
        write_counts(tmp_path / f"{name}.jsonl", k, 16)
    fit = fit_corpus(tmp_path)
    assert [source.name for source in fit.sources] == ["easy", "hard"]
    for source, a, b in zip(fit.sources, (3.0, 0.5), (0.4, 1.5), strict=True):
        assert source.prior is not None
        assert source.prior.a_interval[0] < a < source.prior.a_interval[1]
        assert source.prior.b_interval[0] < b < source.prior.b_interval[1]
        assert source.prior.a_interval[1] / source.prior.a_interval[0] < 1.6  # and the interval says something
    assert fit.N == 16
    assert sum(row.steps for row in fit.noise) == 2 * 800 * 4


@pytest.mark.parametrize(("a", "b", "n"), [(2.0, 0.4, 16), (0.6, 0.8, 8)])
def test_intervals_cover_the_truth_in_19_of_20_corpora_though_steps_are_alike(a: float, b: float, n: int) -> None:
    rng = np.random.default_rng(1)
    n_corpora, covered, naive = 200, np.zeros(2), np.zeros(2)
    for _ in range(n_corpora):
        k = correlated_counts(rng, 300, 5, a=a, b=b, n=n, correlation=0.6)
        fit = Fit(step_counts(k, n), FitConfig())
        prior = fit.corpus_fit().total.prior
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
    fit = fitted(k, 16).total
    low, high = fit.pseudo_positive_interval
    truth = float((r[k > 0] < 0.5).mean())
    assert fit.pseudo_positive == pytest.approx(truth, abs=0.005)
    assert low - 0.003 < truth < high + 0.003  # the truth is a draw of 60,000 steps, and varies too
    assert fit.negative == pytest.approx(float((k == 0).mean()))
    assert fit.expected_negative == pytest.approx(fit.negative, abs=0.005)


def test_subsets_are_weighed_step_by_step(random_corpus: Path, tmp_path: Path) -> None:
    fit = fit_corpus(random_corpus, rho=0.3, reliable=0.4, seed=3)
    priors = {source.name: source.prior or fit.total.prior for source in fit.sources}
    for entry in fit.subsets:
        if entry.strategy == "all":
            rollouts = list(mprm.open_corpus(random_corpus).located())
        else:
            out = tmp_path / entry.strategy
            selection = mprm.select(random_corpus, strategy=entry.strategy, rho=0.3, seed=3)  # type: ignore[arg-type]
            selection.write_all(str(out), by_source=True)
            rollouts = list(mprm.open_corpus([str(path) for path in out.rglob("*.jsonl")]).located())
        noise = [
            float(eta_eff(round(16 * score), 16, tau=0.4, a=prior.a, b=prior.b))
            for located in rollouts
            if (prior := priors[located.source]) is not None
            for score in located.rollout.scores
            if score > 0
        ]
        assert (entry.n_rollouts, entry.n_positive) == (len(rollouts), len(noise))
        assert entry.pseudo_positive == pytest.approx(np.mean(noise))
        assert entry.of_all_steps == pytest.approx(np.sum(noise) / entry.n_steps)


def test_scores_without_counts_are_fitted_by_their_grid() -> None:
    k = correlated_counts(np.random.default_rng(3), 300, 4, a=1.0, b=0.5, n=12, correlation=0.3)
    with_counts = fitted(k, 12).total
    without = fitted(k, 12, is_given=False).total
    assert without.continuations_inferred
    assert not with_counts.continuations_inferred
    assert without.continuations == (12,)
    assert without.prior is not None
    assert with_counts.prior is not None
    assert (without.prior.a, without.prior.b) == (with_counts.prior.a, with_counts.prior.b)


def test_a_source_without_a_prior_says_why_and_takes_that_of_all(corpus: Callable[..., Path]) -> None:
    good = [[k / 16, 1 - k / 16] for k in range(17)] * 4
    fit = fit_corpus(corpus(good=good, sure=[[1.0, 1.0]] * 5, never=[[0.0]] * 5, split=[[1.0, 0.0]] * 40))
    by_name = {source.name: source for source in fit.sources}
    assert by_name["good"].prior is not None
    assert "every continuation succeeds" in str(by_name["sure"].why_no_prior)
    assert "every continuation fails" in str(by_name["never"].why_no_prior)
    assert "nearly all 0 or 1" in str(by_name["split"].why_no_prior)
    assert all(by_name[name].prior is None for name in ("sure", "never", "split"))
    overall = fit.total.prior
    assert overall is not None
    expected = eta_eff(16, 16, tau=0.5, a=overall.a, b=overall.b)
    assert by_name["sure"].pseudo_positive == pytest.approx(float(expected))
    assert by_name["never"].pseudo_positive == 0  # no positive step


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
    with pytest.raises(ConfigError, match="reliable must be above 0 and below 1"):
        fit_corpus(random_corpus, reliable=1.0)
    with pytest.raises(ConfigError, match="continuations must be at least 2"):
        fit_corpus(random_corpus, continuations=1)
    with pytest.raises(ConfigError, match="rho must be above 0 and at most 1"):
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
    fit = fit_corpus(corpus(n_mc=2**31, a=[[0.25, 0.5, 0.75, 1.0, 0.0]] * 20))
    assert fit.N == 2**31
    assert [row.k for row in fit.noise] == [0, 2**29, 2**30, 3 * 2**29, 2**31]
    assert [row.steps for row in fit.noise] == [20] * 5


def rollout(counts: Sequence[int], of: int = 16, **kept: Any) -> dict[str, Any]:
    steps = [{"step": "s", "score": k / of, "num_mc_correct": k, "num_mc_total": of} for k in counts]
    return {"question": "?", "steps_with_score": steps, **kept}


def test_a_likelihood_that_rises_to_the_end_is_refused_wherever_the_search_would_stop() -> None:
    rng = np.random.default_rng(5)
    for N in (2, 16, 64) * 10:
        k = rng.binomial(N, rng.beta(2000, 2000, 40))
        n = np.full(40, N)
        try:
            a, b = fit_beta(k, n)
        except DataError:
            continue
        # a real maximum: both ways along the ridge the likelihood is lower
        from scipy.special import betaln

        def likelihood(times: float, a: float = a, b: float = b, k: Any = k, n: Any = n) -> float:
            return float(np.sum(betaln(times * a + k, times * b + n - k) - betaln(times * a, times * b)))

        assert likelihood(1.0) >= max(likelihood(1e4 / max(a, b)), likelihood(0.5)), (N, a, b)


def test_one_rollout_tells_no_interval() -> None:
    with pytest.raises(DataError, match="only one rollout"):
        fit_corpus([rollout([0, 4, 8, 12, 16, 16, 16])], text_only=True)


def test_few_rollouts_have_intervals_that_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    n_held, n_fitted = 0, 0
    for _ in range(60):
        rates = np.repeat(rng.beta(1.5, 0.5, (3, 1)), 5, axis=1)  # the steps of a rollout are all alike
        try:
            fit = fit_corpus([rollout(row.tolist()) for row in rng.binomial(16, rates)], text_only=True)
        except DataError:
            continue
        assert fit.total.prior is not None
        low, high = fit.total.prior.a_interval
        n_held, n_fitted = n_held + (low <= 1.5 <= high), n_fitted + 1
    assert n_fitted > 40
    assert n_held / n_fitted > 0.8


def test_a_score_that_no_count_gives_is_named_with_its_line(tmp_path: Path) -> None:
    bad = rollout([1, 2, 3], 3)
    for step in bad["steps_with_score"]:
        step["score"] = round(step["score"], 2)
        del step["num_mc_correct"]
    write_jsonl(tmp_path / "good.jsonl", [rollout([0, 1, 2, 3], 3)] * 3)
    path = write_jsonl(tmp_path / "odd.jsonl", [rollout([0, 3], 3), rollout([2], 3), bad])
    with pytest.raises(DataError, match=rf"^{path}:3: a step has score 0\.33 of 3 continuations"):
        fit_corpus(tmp_path, text_only=True)


def test_continuations_that_were_given_are_not_called_inferred(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"question": "?", "steps_with_score": [{"step": "s", "score": k / 8} for k in (0, 1, 5, 8)]}] * 20
    path = str(write_jsonl(tmp_path / "a.jsonl", records))
    assert fit_corpus(path, text_only=True).total.continuations_inferred
    assert not fit_corpus(path, text_only=True, continuations=16).total.continuations_inferred
    assert run(["fit", path, "--text-only", "--continuations", "16"]) == 0
    assert "coarsest grid" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="continuations must be"):
        fit_corpus(path, text_only=True, continuations=10**21)


def test_a_source_s_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [rollout([0, 4, 8, 12, 16], source="good")] * 9 + [rollout([16], source="\x1b[2Jones")] * 3
    write_jsonl(tmp_path / "a.jsonl", records)
    assert run(["fit", str(tmp_path), "--text-only"]) == 0
    out = capsys.readouterr().out
    assert "every continuation succeeds" in out
    assert "\x1b[2J" not in out

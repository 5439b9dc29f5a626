import numpy as np
import pytest

from mprm.evaluation.bootstrap import (
    bootstrap_metrics,
    bootstrap_overall,
    compare,
    compute_metrics,
    count_units,
    model_result,
    permutation_test,
)
from mprm.evaluation.metrics import StepTable, choose_thresholds
from tests.evaluation.scorers import scored, simulated


def test_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    # the truth: the metrics of a very large benchmark of the same kind, cut at the same threshold
    large = StepTable.of(simulated(20_000, seed=999, skill=1.0))
    truth = compute_metrics(count_units(large, choose_thresholds(large, 0.5, folds=2, seed=0)), np.ones((1, 20_000)))
    n_covered = dict.fromkeys(["overall", "auc", "f1_error", "ap_error", "ece", "processbench_f1"], 0)
    for seed in range(60):
        result = model_result(simulated(100, seed=seed, skill=1.0), 0.5, draws=200, seed=seed).metrics
        for metric in n_covered:
            estimate = result[None, metric]
            n_covered[metric] += estimate.low <= truth[None, metric][0] <= estimate.high
    # 57 of 60 expected; fewer than 50 has a chance below 1 in 1,000. The calibration error, which small
    # samples overstate, is left some more room
    assert n_covered.pop("ece") >= 40
    assert min(n_covered.values()) >= 50, n_covered


def test_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solutions = simulated(20, seed=0, skill=1.0)
    whole = model_result(solutions, draws=50).distribution
    monkeypatch.setattr("mprm.evaluation.bootstrap.MAX_WEIGHTS", 1)
    single = model_result(solutions, draws=50).distribution
    for key, values in whole.items():
        np.testing.assert_allclose(values, single[key], rtol=1e-12)


def test_a_metric_that_some_draws_lack_says_how_many_have_it() -> None:
    # one problem of four has an error step: a draw without it has no AUC, which has a chance of (3/4)^4
    solutions = [scored([1, 1], [0.9, 0.8], problem=f"p{n}") for n in range(3)]
    solutions.append(scored([1, -1], [0.9, 0.1], problem="q"))
    result = model_result(solutions, 0.5, draws=500).metrics
    assert result[None, "accuracy"].n_draws == 500
    assert 500 * 0.55 < result[None, "auc"].n_draws < 500 * 0.8
    assert (result[None, "auc"].low, result[None, "auc"].high) == (1.0, 1.0)


def test_a_real_difference_is_detected() -> None:
    weak = simulated(150, seed=0, skill=0.3, noise_seed=1)
    strong = simulated(150, seed=0, skill=1.2, noise_seed=2)
    result = compare(model_result(strong, draws=500), model_result(weak, draws=500), draws=500, seed=0)
    overall = result.differences[None, "overall"]
    assert overall.estimate.low > 0.05
    assert overall.p_value < 0.01
    assert result.permutation_p < 0.01
    back = compare(model_result(weak, draws=500), model_result(strong, draws=500), draws=500, seed=0)
    assert back.differences[None, "overall"].estimate.value == -overall.estimate.value
    assert back.differences[None, "overall"].estimate.high == pytest.approx(-overall.estimate.low)


def test_models_alike_are_told_apart_no_more_often_than_by_chance() -> None:
    n_boot = n_swap = 0
    for seed in range(40):
        first = simulated(40, seed=seed, skill=1.0, noise_seed=10_000 + seed)
        second = simulated(40, seed=seed, skill=1.0, noise_seed=20_000 + seed)
        pair = [model_result(x, 0.5, draws=200) for x in (first, second)]
        result = compare(pair[0], pair[1], draws=200, seed=seed)
        n_boot += result.differences[None, "overall"].p_value < 0.05
        n_swap += result.permutation_p < 0.05
    # 2 of 40 expected; more than 7 has a chance of about 1 in 1,000
    assert n_boot <= 7
    assert n_swap <= 7


def test_a_model_does_not_differ_from_itself() -> None:
    model = model_result(simulated(20, seed=0, skill=1.0), draws=500)
    result = compare(model, model, draws=500, seed=0)
    assert result.permutation_p == 1
    for difference in result.differences.values():
        if difference.estimate.value is not None:
            assert (difference.estimate.value, difference.estimate.low, difference.p_value) == (0, 0, 1)


def test_the_swapping_test_is_exact_for_few_problems() -> None:
    # 3 problems with one correct and one incorrect step each; the model is right everywhere, the baseline
    # nowhere. Overall 1 against 0. Of 8 ways of swapping only swapping none and all give a difference of 1
    right = [scored([1, -1], [0.9, 0.1], problem=f"p{n}") for n in range(3)]
    wrong = [scored([1, -1], [0.1, 0.9], problem=f"p{n}") for n in range(3)]
    counts = [model_result(x, 0.5).counts for x in (right, wrong)]
    assert permutation_test(counts[0], counts[1], draws=1000, seed=0) == (2 / 8, 8, True)
    # 7 draws are fewer than the 8 ways: they are drawn
    p, n, is_exact = permutation_test(counts[0], counts[1], draws=7, seed=0)
    assert (n, is_exact) == (7, False)
    assert p in {(k + 1) / 8 for k in range(8)}
    assert permutation_test(counts[0], counts[1], draws=0, seed=0) == (None, 0, False)


def test_steps_that_only_one_model_scored_count_for_neither() -> None:
    full = simulated(20, seed=0, skill=1.0)
    cut = [scored(s.labels, [*s.scores[:-1], None], source=s.source, problem=s.problem, id=s.id) for s in full]
    result = compare(model_result(full, draws=20), model_result(cut, draws=20), draws=20, seed=0)
    assert result.n_left_out == sum(s.labels[-1] != 0 for s in full)
    # on the steps that are left, the two are the same model but for their thresholds
    assert result.differences[None, "auc"].estimate.value == 0


def test_the_overall_value_alone_is_drawn_as_with_all_the_others() -> None:
    table = StepTable.of(simulated(30, seed=0, skill=1.0))
    result = bootstrap_metrics(table, choose_thresholds(table, "held-out", folds=5, seed=0), draws=50, seed=3)
    alone = bootstrap_overall(result.counts, draws=50, seed=3)
    assert alone[0] == result.value("overall")
    assert np.array_equal(alone[1:], result.distribution[None, "overall"])

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.evaluation.bootstrap import count_units, measure
from mprm.evaluation.metrics import macro_f1, ranked, ranking_metrics, step_weighted_mean
from mprm.evaluation.step_table import step_table
from mprm.evaluation.thresholds import EvaluateConfig, choose_thresholds
from tests.evaluation.scorers import scored, simulated

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def measured(solutions, *, threshold=0.5):
    table = step_table(solutions)
    counts = count_units(table, choose_thresholds(table, threshold, folds=2, seed=0))
    return {key: float(values[0]) for key, values in measure(counts, np.ones((1, len(table.issues)))).items()}


# Two sources. The threshold is 0.5, a score of 0.5 itself is taken for correct.
#   a: labels  1   1  -1 | -1 |  1   scores .9 .5 .6 | .2 | .4
#      TP 2 (.9 .5)  FP 1 (.6)  FN 1 (.4)  TN 1 (.2)
#      F1 correct 4/6, F1 error 2/4, macro 7/12
#   b: labels -1   0   1             scores .1 .3 .8
#      TP 1  FP 0  FN 0  TN 1: both F1 1, macro 1; the neutral step does not count
WORKED = [
    scored([1, 1, -1], [0.9, 0.5, 0.6], source="a", problem="p1"),
    scored([-1], [0.2], source="a", problem="p2"),
    scored([1], [0.4], source="a", problem="p1"),
    scored([-1, 0, 1], [0.1, 0.3, 0.8], source="b", problem="p3"),
]


def test_f1_and_accuracy_worked_by_hand() -> None:
    found = measured(WORKED)
    assert found["a", "f1_correct"] == pytest.approx(4 / 6)
    assert found["a", "f1_error"] == pytest.approx(2 / 4)
    assert found["a", "macro_f1"] == pytest.approx(7 / 12)
    assert found["b", "macro_f1"] == 1
    # 5 steps of a, 2 of b
    assert found[None, "overall"] == pytest.approx((5 * 7 / 12 + 2 * 1) / 7)
    # pooled: TP 3, FP 1, FN 1, TN 2; F1 correct 6/8, F1 error 4/6
    assert found[None, "macro_f1"] == pytest.approx((6 / 8 + 4 / 6) / 2)
    assert found[None, "accuracy"] == pytest.approx(5 / 7)


def test_auc_and_average_precision_worked_by_hand() -> None:
    found = measured(WORKED)
    # a: correct .9 .5 .4, incorrect .6 .2; won: .9 beats 2, .5 beats 1, .4 beats 1 of 6 pairs
    assert found["a", "auc"] == pytest.approx(4 / 6)
    # errors from the lowest score up: .2 (1 of 1), .4 no, .5 no, .6 (2 of 4)
    assert found["a", "ap_error"] == pytest.approx((1 + 2 / 4) / 2)
    # correct from the highest down: .9 (1 of 1), .6 no, .5 (2 of 3), .4 (3 of 4)
    assert found["a", "ap_correct"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_equal_scores_count_half_in_the_auc() -> None:
    # correct .5 .5, incorrect .5 .1: of 4 pairs 2 are won and 2 tied
    assert measured([scored([1, 1, -1, -1], [0.5, 0.5, 0.5, 0.1])])[None, "auc"] == 3 / 4


def test_calibration_error_worked_by_hand() -> None:
    # bins of 1/15: .9 and .92 lie in bin 13 (.8667 to .9333), .1 in bin 1, 1.0 in the last
    # bin 13: mean score .91, half correct: 2/4 * .41; bin 1: .1 and none correct: 1/4 * .1; the last: 1 and correct
    found = measured([scored([1, -1, -1, 1], [0.9, 0.92, 0.1, 1.0])])
    assert found[None, "ece"] == pytest.approx(0.5 * 0.41 + 0.25 * 0.1)


def test_first_errors_worked_by_hand() -> None:
    # threshold 0.5: the first step below it is the predicted first error
    solutions = [
        scored([1, -1, 1], [0.9, 0.2, 0.1], source="a", problem="1"),  # predicted 1: right
        scored([1, -1, 1], [0.4, 0.2, 0.9], source="a", problem="2"),  # predicted 0: wrong
        scored([-1, 1], [0.1, 0.9], source="a", problem="3"),  # predicted 0: right
        scored([1, 1], [0.9, 0.5], source="a", problem="4"),  # none, and there is none: right
        scored([1, 0], [0.9, 0.3], source="a", problem="5"),  # predicted 1, and there is none: wrong
        scored([-1], [0.7], source="b", problem="6"),  # none predicted: wrong
        scored([1], [0.7], source="b", problem="7"),  # right
    ]
    found = measured(solutions)
    assert found["a", "erroneous_accuracy"] == pytest.approx(2 / 3)
    assert found["a", "correct_accuracy"] == pytest.approx(1 / 2)
    assert found["a", "first_error_accuracy"] == pytest.approx(3 / 5)
    # harmonic mean of 2/3 and 1/2
    assert found["a", "processbench_f1"] == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))
    assert found["b", "processbench_f1"] == 0  # of 0 and 1
    assert found[None, "processbench_f1"] == pytest.approx(found["a", "processbench_f1"] / 2)
    assert found[None, "first_error_accuracy"] == pytest.approx(4 / 7)


def test_a_source_with_one_class_has_half_a_macro_f1_and_no_auc() -> None:
    mixed = [scored([-1], [0.1], source="t", problem="q"), scored([1], [0.9], source="t", problem="r")]
    found = measured([scored([1, 1], [0.9, 0.8]), *mixed])
    assert found["s", "macro_f1"] == 0.5  # F1 of correct 1, of incorrect 0
    assert np.isnan(found["s", "auc"])
    assert np.isnan(found["s", "ap_error"])
    assert np.isnan(found["s", "processbench_f1"])
    assert found[None, "overall"] == 0.75
    assert found[None, "processbench_f1"] == 1  # of the one source that has both kinds


def test_unscored_steps_are_no_predictions() -> None:
    with_lost = [*WORKED, scored([1, -1, 1], [0.9, None, None], source="b", problem="p3")]
    kept = [*WORKED, scored([1, 0, 0], [0.9, None, None], source="b", problem="p3")]
    found = measured(with_lost)
    assert found == pytest.approx(measured(kept), nan_ok=True)
    # TP 2, TN 1 in b
    assert found["b", "accuracy"] == 1
    assert found["b", "first_error_accuracy"] == measured(WORKED)["b", "first_error_accuracy"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.50001, 0.9, 1.0]), st.sampled_from([1, -1])),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_metrics_are_those_of_scikit_learn(steps: list[tuple[float, int]], threshold: float) -> None:
    scores, labels = (np.array(column) for column in zip(*steps, strict=True))
    found = measured([scored(labels.tolist(), scores.tolist())], threshold=threshold)
    predicted = np.where(scores >= threshold, 1, -1)
    both = {"labels": [1, -1], "zero_division": 0}
    f1 = sklearn_metrics.f1_score(labels, predicted, average=None, **both)
    assert [found[None, "f1_correct"], found[None, "f1_error"]] == pytest.approx(f1.tolist())
    assert found[None, "macro_f1"] == pytest.approx(
        sklearn_metrics.f1_score(labels, predicted, average="macro", **both)
    )
    assert found[None, "overall"] == pytest.approx(found[None, "macro_f1"])  # there is one source
    assert found[None, "accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    if len(set(labels.tolist())) < 2:
        assert np.isnan([found[None, m] for m in ("auc", "ap_error", "ap_correct")]).all()
        return
    assert found[None, "auc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels == 1, scores))
    assert found[None, "ap_correct"] == pytest.approx(sklearn_metrics.average_precision_score(labels == 1, scores))
    assert found[None, "ap_error"] == pytest.approx(sklearn_metrics.average_precision_score(labels == -1, -scores))


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_weights_of_problems_are_as_good_as_copies_of_them(seed: int) -> None:
    # a draw that holds a problem twice must measure as a benchmark that lists its solutions twice
    solutions = simulated(6, seed=seed, skill=1.0)
    table = step_table(solutions)
    counts = count_units(table, choose_thresholds(table, 0.5, folds=2, seed=0))
    weights = np.random.default_rng(seed).integers(0, 3, size=(1, len(table.issues))).astype(float)
    copies = [s for s in solutions for _ in range(int(weights[0][table.issues.index(s.problem)]))]
    if not any(label for s in copies for label in s.labels):
        return
    expected = measured(copies)
    found = {key: float(values[0]) for key, values in measure(counts, weights).items()}
    for key, value in found.items():
        if key in expected:
            assert value == pytest.approx(expected[key], nan_ok=True), key


def test_weighted_ranking_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    scores, is_correct = rng.integers(0, 20, 200) / 19, rng.random(200) < 0.6
    weights = rng.integers(0, 4, (3, 200)).astype(float)
    steps = ranked(scores, is_correct)
    found = ranking_metrics(steps, weights[:, steps.order])
    for draw in range(3):
        expected = sklearn_metrics.roc_auc_score(is_correct, scores, sample_weight=weights[draw])
        assert found["auc"][draw] == pytest.approx(expected)
        expected = sklearn_metrics.average_precision_score(~is_correct, -scores, sample_weight=weights[draw])
        assert found["ap_error"][draw] == pytest.approx(expected)


def test_a_class_that_is_nowhere_has_f1_zero_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert macro_f1(np.array([0.0, 0.0, 0.0, 0.0])) == 0
        assert np.isnan(step_weighted_mean(np.array([0.0]), np.array([0.0])))


def test_a_table_with_nothing_to_measure_is_refused() -> None:
    with pytest.raises(DataError, match="no step is labelled"):
        step_table([scored([0, 0], [0.5, 0.6])])
    with pytest.raises(DataError, match="no labelled step could be scored"):
        step_table([scored([1, 0], [None, 0.6])])


def test_the_default_threshold_is_held_out() -> None:
    assert EvaluateConfig().threshold == "held-out"

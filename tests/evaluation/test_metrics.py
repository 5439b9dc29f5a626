"""Metrics worked by hand and against scikit-learn; thresholds against an oracle."""

import random
import warnings
from bisect import bisect_left
from fractions import Fraction
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mprm.errors import ConfigError, DataError
from mprm.evaluation.bootstrap import compute_metrics, count_units
from mprm.evaluation.metrics import (
    StepTable,
    best_threshold,
    calibration_bin,
    candidate_thresholds,
    choose_thresholds,
    first_error_ranges,
    folds_of,
    macro_f1,
    mean_processbench_f1,
    overall_f1,
    prmscore,
    rank_steps,
    ranking_metrics,
    step_ranges,
)
from tests.evaluation.scorers import scored, simulated

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def metrics_of(solutions, *, threshold=0.5):
    table = StepTable.of(solutions)
    counts = count_units(table, choose_thresholds(table, threshold, folds=2, seed=0))
    return {
        key: float(values[0]) for key, values in compute_metrics(counts, np.ones((1, len(table.problems)))).items()
    }


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
    metrics = metrics_of(WORKED)
    assert metrics["a", "f1_correct"] == pytest.approx(4 / 6)
    assert metrics["a", "f1_error"] == pytest.approx(2 / 4)
    assert metrics["a", "macro_f1"] == pytest.approx(7 / 12)
    assert metrics["b", "macro_f1"] == 1
    # 5 steps of a, 2 of b
    assert metrics[None, "overall"] == pytest.approx((5 * 7 / 12 + 2 * 1) / 7)
    # pooled: TP 3, FP 1, FN 1, TN 2; F1 correct 6/8, F1 error 4/6
    assert metrics[None, "macro_f1"] == pytest.approx((6 / 8 + 4 / 6) / 2)
    assert metrics[None, "accuracy"] == pytest.approx(5 / 7)


def test_auc_and_average_precision_worked_by_hand() -> None:
    metrics = metrics_of(WORKED)
    # a: correct .9 .5 .4, incorrect .6 .2; won: .9 beats 2, .5 beats 1, .4 beats 1 of 6 pairs
    assert metrics["a", "auc"] == pytest.approx(4 / 6)
    # errors from the lowest score up: .2 (1 of 1), .4 no, .5 no, .6 (2 of 4)
    assert metrics["a", "ap_error"] == pytest.approx((1 + 2 / 4) / 2)
    # correct from the highest down: .9 (1 of 1), .6 no, .5 (2 of 3), .4 (3 of 4)
    assert metrics["a", "ap_correct"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_equal_scores_count_half_in_the_auc() -> None:
    # correct .5 .5, incorrect .5 .1: of 4 pairs 2 are won and 2 tied
    assert metrics_of([scored([1, 1, -1, -1], [0.5, 0.5, 0.5, 0.1])])[None, "auc"] == 3 / 4


def test_prmscore_worked_by_hand() -> None:
    # 1 error step, not found; 3 of 4 correct steps found: F1 2 * 3 / (2 * 3 + 1 + 1) and 0; without errors 6 / 7
    assert prmscore(np.array([[1.0, 0.0, 4.0, 3.0], [0.0, 0.0, 4.0, 3.0]])).tolist() == pytest.approx([0.375, 6 / 7])


def test_calibration_error_worked_by_hand() -> None:
    # bins of 1/15: .9 and .92 lie in bin 13 (.8667 to .9333), .1 in bin 1, 1.0 in the last
    # bin 13: mean score .91, half correct: 2/4 * .41; bin 1: .1 and none correct: 1/4 * .1; the last: 1 and correct
    metrics = metrics_of([scored([1, -1, -1, 1], [0.9, 0.92, 0.1, 1.0])])
    assert metrics[None, "ece"] == pytest.approx(0.5 * 0.41 + 0.25 * 0.1)


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
    metrics = metrics_of(solutions)
    assert metrics["a", "erroneous_accuracy"] == pytest.approx(2 / 3)
    assert metrics["a", "correct_accuracy"] == pytest.approx(1 / 2)
    assert metrics["a", "first_error_accuracy"] == pytest.approx(3 / 5)
    # harmonic mean of 2/3 and 1/2
    assert metrics["a", "processbench_f1"] == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))
    assert metrics["b", "processbench_f1"] == 0  # of 0 and 1
    assert metrics[None, "processbench_f1"] == pytest.approx(metrics["a", "processbench_f1"] / 2)
    assert metrics[None, "first_error_accuracy"] == pytest.approx(4 / 7)


def test_a_source_with_one_class_has_half_a_macro_f1_and_no_auc() -> None:
    mixed = [scored([-1], [0.1], source="t", problem="q"), scored([1], [0.9], source="t", problem="r")]
    metrics = metrics_of([scored([1, 1], [0.9, 0.8]), *mixed])
    assert metrics["s", "macro_f1"] == 0.5  # F1 of correct 1, of incorrect 0
    assert np.isnan(metrics["s", "auc"])
    assert np.isnan(metrics["s", "ap_error"])
    assert np.isnan(metrics["s", "processbench_f1"])
    assert metrics[None, "overall"] == 0.75
    assert metrics[None, "processbench_f1"] == 1  # of the one source that has both kinds


def test_unscored_steps_are_no_predictions() -> None:
    with_lost = [*WORKED, scored([1, -1, 1], [0.9, None, None], source="b", problem="p3")]
    kept = [*WORKED, scored([1, 0, 0], [0.9, None, None], source="b", problem="p3")]
    metrics = metrics_of(with_lost)
    assert metrics == pytest.approx(metrics_of(kept), nan_ok=True)
    # TP 2, TN 1 in b
    assert metrics["b", "accuracy"] == 1
    assert metrics["b", "first_error_accuracy"] == metrics_of(WORKED)["b", "first_error_accuracy"]


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
    metrics = metrics_of([scored(labels.tolist(), scores.tolist())], threshold=threshold)
    predicted = np.where(scores >= threshold, 1, -1)
    both = {"labels": [1, -1], "zero_division": 0}
    f1 = sklearn_metrics.f1_score(labels, predicted, average=None, **both)
    assert [metrics[None, "f1_correct"], metrics[None, "f1_error"]] == pytest.approx(f1.tolist())
    assert metrics[None, "macro_f1"] == pytest.approx(
        sklearn_metrics.f1_score(labels, predicted, average="macro", **both)
    )
    assert metrics[None, "overall"] == pytest.approx(metrics[None, "macro_f1"])  # there is one source
    assert metrics[None, "accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    if len(set(labels.tolist())) < 2:
        assert np.isnan([metrics[None, m] for m in ("auc", "ap_error", "ap_correct")]).all()
        return
    assert metrics[None, "auc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels == 1, scores))
    assert metrics[None, "ap_correct"] == pytest.approx(sklearn_metrics.average_precision_score(labels == 1, scores))
    assert metrics[None, "ap_error"] == pytest.approx(sklearn_metrics.average_precision_score(labels == -1, -scores))


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_weights_of_problems_are_as_good_as_copies_of_them(seed: int) -> None:
    # a draw that holds a problem twice must measure as a benchmark that lists its solutions twice
    solutions = simulated(6, seed=seed, skill=1.0)
    table = StepTable.of(solutions)
    counts = count_units(table, choose_thresholds(table, 0.5, folds=2, seed=0))
    weights = np.random.default_rng(seed).integers(0, 3, size=(1, len(table.problems))).astype(float)
    copies = [s for s in solutions for _ in range(int(weights[0][table.problems.index(s.problem)]))]
    if not any(label for s in copies for label in s.labels):
        return
    expected = metrics_of(copies)
    metrics = {key: float(values[0]) for key, values in compute_metrics(counts, weights).items()}
    for key, value in metrics.items():
        if key in expected:
            assert value == pytest.approx(expected[key], nan_ok=True), key


def test_weighted_ranking_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    scores, is_correct = rng.integers(0, 20, 200) / 19, rng.random(200) < 0.6
    weights = rng.integers(0, 4, (3, 200)).astype(float)
    steps = rank_steps(scores, is_correct)
    metrics = ranking_metrics(steps, weights[:, steps.order])
    for draw in range(3):
        expected = sklearn_metrics.roc_auc_score(is_correct, scores, sample_weight=weights[draw])
        assert metrics["auc"][draw] == pytest.approx(expected)
        expected = sklearn_metrics.average_precision_score(~is_correct, -scores, sample_weight=weights[draw])
        assert metrics["ap_error"][draw] == pytest.approx(expected)


def test_a_class_that_is_nowhere_has_f1_zero_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert macro_f1(np.array([0.0, 0.0, 0.0, 0.0])) == 0
        assert np.isnan(overall_f1(np.zeros((1, 4))))


def test_a_table_with_nothing_to_measure_is_refused() -> None:
    with pytest.raises(DataError, match="no step is labelled"):
        StepTable.of([scored([0, 0], [0.5, 0.6])])
    with pytest.raises(DataError, match="no labelled step could be scored"):
        StepTable.of([scored([1, 0], [None, 0.6])])


def value_at(threshold, scores, labels, sources):
    """The overall value as the paper's code defines it, one step after the other."""
    total = 0.0
    for source in sorted(set(sources)):
        tp = fp = fn = tn = 0
        for score, label, where in zip(scores, labels, sources, strict=True):
            if where == source:
                tp += label == 1 and score >= threshold
                fp += label == -1 and score >= threshold
                fn += label == 1 and score < threshold
                tn += label == -1 and score < threshold
        f1_correct = 2 * tp / (2 * tp + fp + fn) if tp else 0.0
        f1_error = 2 * tn / (2 * tn + fp + fn) if tn else 0.0
        total += (tp + fp + fn + tn) * (f1_correct + f1_error) / 2
    return total / len(scores)


def ranges_of(scores, labels, sources):
    """The arguments of `best_threshold` for steps."""
    steps = zip(scores, labels, sources, strict=True)
    table = StepTable.of([scored([int(label)], [float(score)], source=str(source)) for score, label, source in steps])
    ranges = step_ranges(table)
    return ranges, table.source[ranges.solution]


def candidates_of(scores):
    """Distinct scores rounded by Python; when more than 1,000, every (count // 1,000)-th of them."""
    best = sorted({round(score, 4) for score in scores})
    if len(best) > 1000:
        best = best[:: len(best) // 1000]
    return best


steps = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([1, 1, -1]), st.sampled_from([0, 1, 2])), min_size=1, max_size=60
)


@settings(deadline=None)
@given(steps)
def test_the_search_finds_what_the_oracle_finds(sampled) -> None:
    scores, labels, sources = (list(column) for column in zip(*sampled, strict=True))
    candidates = candidates_of(scores)
    values = [value_at(threshold, scores, labels, sources) for threshold in candidates]
    best = best_threshold(*ranges_of(scores, labels, sources), overall_f1)
    # the first candidate that is as good as the best, up to rounding
    assert best == next(t for t, v in zip(candidates, values, strict=True) if v >= max(values) - 1e-12)


@pytest.mark.parametrize(
    ("n", "n_candidates"), [(999, 999), (1000, 1000), (1001, 1001), (1999, 1999), (2000, 1000), (2001, 1001)]
)
def test_more_than_a_thousand_candidates_are_thinned_as_in_the_paper_s_code(n: int, n_candidates: int) -> None:
    digits = np.random.default_rng(n).choice(10_000, n, replace=False) / 10_000
    for scores, expected in ((digits, n_candidates), (digits + 0.00005, None)):  # numpy's round moves some of these
        candidates = candidate_thresholds(np.concatenate([scores, scores])).tolist()
        assert candidates == candidates_of(scores.tolist())
        assert expected in (None, len(candidates))


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 3000), st.integers(0, 10_000), st.sampled_from([5, 7]))
def test_the_test_threshold_is_the_first_best_of_the_oracle(n: int, seed: int, digits: int) -> None:
    """Plain Python with exact fractions, of up to 3,000 distinct scores."""
    rng = random.Random(seed)
    steps = [(round(rng.random(), digits), rng.choice([1, 1, -1]), rng.choice("abc")) for _ in range(n)]
    scores, _, sources = zip(*steps, strict=True)
    by_kind = {
        source: [sorted(score for score, *kind in steps if kind == [label, source]) for label in (1, -1)]
        for source in sorted(set(sources))
    }

    def overall(threshold: float) -> Fraction:
        total = Fraction(0)
        for correct, wrong in by_kind.values():
            fn, tn = bisect_left(correct, threshold), bisect_left(wrong, threshold)
            tp, fp = len(correct) - fn, len(wrong) - tn
            f1 = [Fraction(2 * hits, 2 * hits + fp + fn) if hits + fp + fn else 0 for hits in (tp, tn)]
            total += (len(correct) + len(wrong)) * Fraction(sum(f1), 2)
        return total / n

    best, best_value = None, Fraction(-1)
    for threshold in candidates_of(scores):
        if (value := overall(threshold)) > best_value:
            best, best_value = threshold, value
    table = StepTable.of([scored([y], [s], source=k, problem=str(i)) for i, (s, y, k) in enumerate(steps)])
    chosen = choose_thresholds(table, "test", folds=2, seed=0)
    assert chosen.steps == (best,)
    counts = count_units(table, chosen)
    assert compute_metrics(counts, np.ones((1, n)))[None, "overall"][0] == pytest.approx(float(best_value), abs=1e-12)


def test_27_thousand_steps_are_searched_in_well_under_a_second() -> None:
    rng = np.random.default_rng(0)
    scores, labels, sources = rng.random(27_000), rng.choice([1, -1], 27_000), rng.integers(0, 5, 27_000)
    ranges = ranges_of(scores, labels, sources)
    started = perf_counter()
    best_threshold(*ranges, overall_f1)
    assert perf_counter() - started < 0.5


solution_lists = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.sampled_from([1, -1])), min_size=1, max_size=4),
        st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


def f1_at(threshold, solutions):
    """ProcessBench's F1 of each source that has both kinds, averaged, by predicting first errors one by one."""
    best = []
    for source in {s.source for s in solutions}:
        right = {True: [], False: []}
        for s in solutions:
            if s.source == source:
                predicted = next((j for j, score in enumerate(s.scores) if score < threshold), None)
                right[s.first_error is None].append(predicted == s.first_error)
        if right[True] and right[False]:
            a, b = (sum(r) / len(r) for r in right.values())
            best.append(2 * a * b / (a + b) if a + b else 0.0)
    return sum(best) / len(best) if best else None


@settings(deadline=None)
@given(solution_lists)
def test_the_threshold_of_first_errors_is_the_best_for_processbench_f1(drawn) -> None:
    solutions = [
        scored([label for _, label in steps], [score for score, _ in steps], source=source) for steps, source in drawn
    ]
    table = StepTable.of(solutions)
    ranges = first_error_ranges(table)
    best = best_threshold(ranges, table.source[ranges.solution], mean_processbench_f1)
    values = {t: f1_at(t, solutions) for t in (0.1, 0.3, 0.5, 0.7, 0.9)}
    if values[0.1] is None:
        assert best is None
        return
    # only scores next to a first error can be candidates; no other threshold is better
    assert values[best] == pytest.approx(max(values.values()))


@settings(deadline=None)
@given(solution_lists, st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_the_range_of_thresholds_tells_whether_the_first_error_is_found(drawn, threshold) -> None:
    solutions = [scored([label for _, label in steps], [score for score, _ in steps]) for steps, _ in drawn]
    ranges = first_error_ranges(StepTable.of(solutions))
    is_hit = (ranges.above < threshold) & (threshold <= ranges.up_to)
    for hit, s in zip(is_hit, solutions, strict=True):
        predicted = next((j for j, score in enumerate(s.scores) if score < threshold), None)
        assert hit == (predicted == s.first_error)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_labels_of_a_problem_do_not_move_its_own_threshold(seed: int) -> None:
    solutions = simulated(10, seed=seed, skill=1.0, neutral=0.0)
    before = StepTable.of(solutions)
    key = solutions[0].problem
    turned = [
        scored([-label for label in s.labels], s.scores, source=s.source, problem=s.problem)
        if s.problem == key
        else s
        for s in solutions
    ]
    after = StepTable.of(turned)
    problem = before.problems.index(key)
    chosen = [choose_thresholds(table, "held-out", folds=5, seed=0) for table in (before, after)]
    fold = chosen[0].fold[problem]
    assert chosen[1].fold[problem] == fold
    assert chosen[0].steps[fold] == chosen[1].steps[fold]
    assert chosen[0].solutions[fold] == chosen[1].solutions[fold]


def test_the_labels_of_other_problems_do_move_it() -> None:
    # else the test above could not fail
    solutions = simulated(10, seed=0, skill=1.0, neutral=0.0)
    turned = [
        scored([-label for label in s.labels], s.scores, source=s.source, problem=s.problem)
        if s.problem != "p0"
        else s
        for s in solutions
    ]
    before, after = (choose_thresholds(StepTable.of(x), "held-out", folds=5, seed=0) for x in (solutions, turned))
    assert before.steps[before.fold[0]] != after.steps[after.fold[0]]


def test_a_held_out_threshold_is_the_best_of_the_other_folds() -> None:
    solutions = simulated(20, seed=3, skill=1.0)
    table = StepTable.of(solutions)
    chosen = choose_thresholds(table, "held-out", folds=4, seed=7)
    for fold in range(4):
        others = [s for s in solutions if chosen.fold[table.problems.index(s.problem)] != fold]
        rest = StepTable.of(others)
        assert chosen.steps[fold] == choose_thresholds(rest, "test", folds=2, seed=0).steps[0]
        assert chosen.solutions[fold] == choose_thresholds(rest, "test", folds=2, seed=0).solutions[0]


def test_folds_are_of_equal_size_and_depend_on_keys_and_seed_alone() -> None:
    keys = tuple(f"problem {number}" for number in range(23))
    fold = folds_of(keys, folds=5, seed=0)
    assert sorted(np.bincount(fold)) == [4, 4, 5, 5, 5]
    turned = folds_of(keys[::-1], folds=5, seed=0)
    assert (turned[::-1] == fold).all()
    assert (folds_of(keys, folds=5, seed=1) != fold).any()


def test_too_few_problems_for_the_folds_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 problems cannot be split into 5 folds; take fewer"):
        folds_of(("a", "b", "c"), folds=5, seed=0)
    # one problem holds every label: nothing is left to choose its threshold on
    solutions = [scored([1, -1], [0.9, 0.1], problem="a"), scored([0], [0.5], problem="b")]
    with pytest.raises(ConfigError, match="some fold holds every labelled step"):
        choose_thresholds(StepTable.of(solutions), "held-out", folds=2, seed=0)


def test_candidate_thresholds_are_the_distinct_scores_to_four_digits() -> None:
    assert candidate_thresholds(np.array([0.5, 0.25, 0.50001])).tolist() == [0.25, 0.5]


def test_scores_fall_into_bins_of_equal_width() -> None:
    assert calibration_bin(np.array([0.0, 0.5, 1.0])).tolist() == [0, 7, 14]

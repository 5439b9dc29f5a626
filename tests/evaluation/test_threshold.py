from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mprm.errors import ConfigError
from mprm.evaluation.metrics import first_error_ranges
from mprm.evaluation.step_table import step_table
from mprm.evaluation.thresholds import (
    best_solution_threshold,
    best_step_threshold,
    candidate_thresholds,
    choose_thresholds,
    folds_of,
    overall_value,
)
from tests.evaluation.scorers import scored, simulated


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


def candidates_of(scores):
    """Distinct scores rounded to 4 digits; when more than 1,000, 1,000 of them evenly spaced by rank."""
    found = sorted({round(score, 4) for score in scores})
    if len(found) <= 1000:
        return found
    return [found[round(i * (len(found) - 1) / 999)] for i in range(1000)]


steps = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([1, 1, -1]), st.sampled_from([0, 1, 2])), min_size=1, max_size=60
)


@settings(deadline=None)
@given(steps)
def test_the_search_finds_what_the_oracle_finds(found_steps) -> None:
    scores, labels, sources = (list(column) for column in zip(*found_steps, strict=True))
    candidates = candidates_of(scores)
    values = [value_at(threshold, scores, labels, sources) for threshold in candidates]
    found = best_step_threshold(np.array(scores), np.array(labels), np.array(sources))
    # the first candidate that is as good as the best, up to rounding
    assert found == next(t for t, v in zip(candidates, values, strict=True) if v >= max(values) - 1e-12)


def test_more_than_a_thousand_candidates_are_thinned_evenly() -> None:
    scores = np.random.default_rng(0).random(5000)
    expected = candidates_of(scores.tolist())
    assert len(expected) == 1000
    assert candidate_thresholds(scores).tolist() == expected
    labels, sources = (
        np.where(scores + np.random.default_rng(1).normal(0, 0.3, 5000) > 0.4, 1, -1),
        np.arange(5000) % 3,
    )
    found = best_step_threshold(scores, labels, sources)
    near = [t for t in expected if abs(t - found) < 0.02]
    best = value_at(found, scores, labels, sources)
    assert all(value_at(t, scores, labels, sources) <= best + 1e-12 for t in near)


def test_27_thousand_steps_are_searched_in_well_under_a_second() -> None:
    rng = np.random.default_rng(0)
    scores, labels, sources = rng.random(27_000), rng.choice([1, -1], 27_000), rng.integers(0, 5, 27_000)
    started = perf_counter()
    best_step_threshold(scores, labels, sources)
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
    found = []
    for source in {s.source for s in solutions}:
        right = {True: [], False: []}
        for s in solutions:
            if s.source == source:
                predicted = next((j for j, score in enumerate(s.scores) if score < threshold), None)
                right[s.first_error is None].append(predicted == s.first_error)
        if right[True] and right[False]:
            a, b = (sum(r) / len(r) for r in right.values())
            found.append(2 * a * b / (a + b) if a + b else 0.0)
    return sum(found) / len(found) if found else None


@settings(deadline=None)
@given(solution_lists)
def test_the_threshold_of_first_errors_is_the_best_for_processbench_f1(drawn) -> None:
    solutions = [
        scored([label for _, label in steps], [score for score, _ in steps], source=source) for steps, source in drawn
    ]
    table = step_table(solutions)
    ranges = first_error_ranges(table)
    found = best_solution_threshold(ranges, table.source[ranges.solution])
    values = {t: f1_at(t, solutions) for t in (0.1, 0.3, 0.5, 0.7, 0.9)}
    if values[0.1] is None:
        assert found is None
        return
    # only scores next to a first error can be candidates; no other threshold is better
    assert values[found] == pytest.approx(max(values.values()))


@settings(deadline=None)
@given(solution_lists, st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_the_range_of_thresholds_tells_whether_the_first_error_is_found(drawn, threshold) -> None:
    solutions = [scored([label for _, label in steps], [score for score, _ in steps]) for steps, _ in drawn]
    found = first_error_ranges(step_table(solutions)).found(np.full(len(solutions), threshold))
    for is_found, s in zip(found, solutions, strict=True):
        predicted = next((j for j, score in enumerate(s.scores) if score < threshold), None)
        assert is_found == (predicted == s.first_error)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_labels_of_a_problem_do_not_move_its_own_threshold(seed: int) -> None:
    solutions = simulated(10, seed=seed, skill=1.0, neutral=0.0)
    before = step_table(solutions)
    key = solutions[0].problem
    turned = [
        scored([-label for label in s.labels], s.scores, source=s.source, problem=s.problem)
        if s.problem == key
        else s
        for s in solutions
    ]
    after = step_table(turned)
    place = before.issues.index(key)
    chosen = [choose_thresholds(table, "held-out", folds=5, seed=0) for table in (before, after)]
    assert chosen[0].of_steps[place] == chosen[1].of_steps[place]
    assert chosen[0].of_solutions[place] == chosen[1].of_solutions[place]


def test_the_labels_of_other_problems_do_move_it() -> None:
    # else the test above could not fail
    solutions = simulated(10, seed=0, skill=1.0, neutral=0.0)
    turned = [
        scored([-label for label in s.labels], s.scores, source=s.source, problem=s.problem)
        if s.problem != "p0"
        else s
        for s in solutions
    ]
    one, two = (choose_thresholds(step_table(x), "held-out", folds=5, seed=0) for x in (solutions, turned))
    assert one.of_steps[0] != two.of_steps[0]


def test_a_held_out_threshold_is_the_best_of_the_other_folds() -> None:
    solutions = simulated(20, seed=3, skill=1.0)
    table = step_table(solutions)
    chosen = choose_thresholds(table, "held-out", folds=4, seed=7)
    for fold in range(4):
        others = [s for s in solutions if chosen.fold[table.issues.index(s.problem)] != fold]
        rest = step_table(others)
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
        choose_thresholds(step_table(solutions), "held-out", folds=2, seed=0)


def test_the_value_for_training_is_that_of_the_evaluation() -> None:
    from mprm.evaluation.bootstrap import measured

    solutions = simulated(30, seed=5, skill=1.0, lost=0.1)
    table = step_table(solutions)
    chosen = choose_thresholds(table, "held-out", folds=5, seed=2)
    values = measured(table, chosen, draws=0, seed=0).values
    found = overall_value(
        [np.nan if score is None else score for s in solutions for score in s.scores],
        [label for s in solutions for label in s.labels],
        [s.source for s in solutions for _ in s.labels],
        [s.problem for s in solutions for _ in s.labels],
        folds=5,
        seed=2,
    )
    assert found.overall == pytest.approx(float(values[None, "overall"][0]), abs=1e-12)
    assert found.auc == pytest.approx(float(values[None, "auc"][0]), abs=1e-12)
    assert found.n_counted == int(table.is_counted.sum())
    assert found.n_unscored == int(((table.labels != 0) & np.isnan(table.scores)).sum()) > 0


def test_the_value_for_training_refuses_lists_of_other_lengths() -> None:
    with pytest.raises(ValueError, match="expected as many of each"):
        overall_value([0.5], [1, 1], ["a"], ["p"])

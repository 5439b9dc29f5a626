"""Aggregates of step scores, closed forms against all subsets, and best-of-N over questions."""

import math
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mprm.errors import ConfigError
from mprm.evaluation.best_of_n import (
    AGGREGATES,
    BestOfNResult,
    ScoredQuestion,
    aggregate,
    best_of_n,
    expected_best,
    expected_oracle,
    expected_vote,
    subsets,
)
from mprm.evaluation.bootstrap import bootstrap_means, estimate

NAN = float("nan")


@pytest.mark.parametrize(
    ("how", "expected"),
    # 0.5, 1.0, 0.25: mean 1.75/3, product 0.125
    [("mean", 1.75 / 3), ("min", 0.25), ("last", 0.25), ("product", 0.125), ("max", 1.0)],
)
def test_each_aggregate_of_a_chain(how: str, expected: float) -> None:
    assert aggregate([0.5, 1.0, 0.25], how) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "expected"), [("mean", 0.75), ("min", 0.5), ("last", 1.0), ("product", 0.5), ("max", 1.0)]
)
def test_steps_that_truncation_cut_off_are_left_out(how: str, expected: float) -> None:
    assert aggregate([0.5, 1.0, NAN, NAN], how) == pytest.approx(expected)


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("scores", [[], [NAN, NAN]])
def test_a_candidate_without_any_scored_step_has_no_score(how: str, scores: list[float]) -> None:
    assert math.isnan(aggregate(scores, how))


def test_the_order_of_the_steps_makes_no_difference_to_a_tie() -> None:
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ when they are simply added up, and so do the products
    for how in ("mean", "product"):
        assert aggregate([0.1, 0.2, 0.3], how) == aggregate([0.3, 0.2, 0.1], how)


def test_an_unknown_aggregate_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="expected one of mean, min, last, product, max"):
        aggregate([1.0], "median")


SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0, float("nan")])
"""Few values: many ties."""


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[float], list[bool], list[int], int]:
    m = draw(st.integers(1, 7))
    listed = [draw(st.lists(kind, min_size=m, max_size=m)) for kind in (SCORES, st.booleans(), st.integers(-1, 3))]
    return listed[0], listed[1], listed[2], draw(st.integers(1, m))


def best_by_hand(scores: list[float], correct: list[bool], n: int) -> float:
    """Mean over subsets of the share of correct ones among their best."""
    ranks = [-1.0 if score != score else score for score in scores]
    result = []
    for subset in combinations(range(len(scores)), n):
        top = max(ranks[i] for i in subset)
        best = [i for i in subset if ranks[i] == top]
        result.append(sum(correct[i] for i in best) / len(best))
    return sum(result) / len(result)


def vote_by_hand(answers: list[int], weights: list[float], correct: list[bool], n: int) -> float:
    result = []
    for subset in combinations(range(len(answers)), n):
        votes = {a: [i for i in subset if answers[i] == a] for a in {answers[i] for i in subset} - {-1}}
        if not votes:
            result.append(0.0)
            continue
        sums = {a: sum(weights[i] for i in voters) for a, voters in votes.items()}
        winners = [a for a in sums if abs(sums[a] - max(sums.values())) < 1e-9]
        result.append(sum(sum(correct[i] for i in votes[a]) / len(votes[a]) for a in winners) / len(winners))
    return sum(result) / len(result)


@given(questions())
def test_the_best_of_n_is_as_all_subsets_say(question: tuple[list[float], list[bool], list[int], int]) -> None:
    scores, correct, _, n = question
    expected = best_by_hand(scores, correct, n)
    assert expected_best(np.array(scores), np.array(correct, float), n) == pytest.approx(expected, abs=1e-12)


@given(questions())
def test_the_oracle_is_as_all_subsets_say(question: tuple[list[float], list[bool], list[int], int]) -> None:
    _, correct, _, n = question
    hits = [any(correct[i] for i in subset) for subset in combinations(range(len(correct)), n)]
    assert expected_oracle(np.array(correct, float), n) == pytest.approx(sum(hits) / len(hits), abs=1e-12)


@given(questions())
def test_random_is_as_all_choices_from_all_subsets_say(
    question: tuple[list[float], list[bool], list[int], int],
) -> None:
    scores, correct, _, n = question
    picks = [correct[i] for subset in combinations(range(len(correct)), n) for i in subset]
    result = best_of_n([scored_question(correct, scores)], ns=[n], draws=1).total.accuracy["random"][n]
    assert result.value == pytest.approx(sum(picks) / len(picks), abs=1e-12)


@given(questions(), st.booleans())
def test_votes_are_as_all_subsets_say(
    question: tuple[list[float], list[bool], list[int], int], is_weighted: bool
) -> None:
    scores, correct, answers, n = question
    weights = [0.0 if score != score else score for score in scores] if is_weighted else [1.0] * len(scores)
    masks = subsets(len(scores), n, most=10_000, seed=0)
    result = expected_vote(np.array(answers, dtype=np.intp), np.array(weights), np.array(correct, float), masks)
    assert result == pytest.approx(vote_by_hand(answers, weights, correct, n), abs=1e-9)


@given(questions())
def test_one_candidate_is_a_random_one_and_all_hold_every_oracle(
    question: tuple[list[float], list[bool], list[int], int],
) -> None:
    scores, correct, _, _ = question
    right = np.array(correct, float)
    assert expected_best(np.array(scores), right, 1) == pytest.approx(right.mean())
    assert expected_oracle(right, 1) == pytest.approx(right.mean())
    assert expected_oracle(right, len(correct)) == float(any(correct))


def test_ties_are_split_evenly_whatever_their_order() -> None:
    # three tie at the top, one of them correct: a third, wherever it stands
    for index in range(3):
        correct = np.zeros(4)
        correct[index] = 1
        assert expected_best(np.array([0.9, 0.9, 0.9, 0.1]), correct, 4) == pytest.approx(1 / 3)


def test_two_answers_with_as_many_votes_win_half_each() -> None:
    masks = subsets(4, 4, most=10, seed=0)
    answers, correct = np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 0.0, 0.0])
    assert expected_vote(answers, np.ones(4), correct, masks) == 0.5
    # 0.1 + 0.2 and 0.3 are equal, though floating-point numbers do not add up to it
    assert (
        expected_vote(
            np.array([0, 0, 1]), np.array([0.1, 0.2, 0.3]), np.array([1.0, 1.0, 0.0]), np.ones((1, 3), bool)
        )
        == 0.5
    )


def test_weights_can_overrule_the_majority() -> None:
    answers, correct = np.array([0, 0, 1]), np.array([0.0, 0.0, 1.0])
    all_three = np.ones((1, 3), bool)
    assert expected_vote(answers, np.ones(3), correct, all_three) == 0.0
    assert expected_vote(answers, np.array([0.1, 0.1, 0.9]), correct, all_three) == 1.0


def test_weights_that_are_all_tiny_still_differ() -> None:
    # products of many step scores are: 2e-12 beats 1e-12
    assert (
        expected_vote(np.array([0, 1]), np.array([1e-12, 2e-12]), np.array([0.0, 1.0]), np.ones((1, 2), bool)) == 1.0
    )


def test_without_weights_at_all_every_answer_ties() -> None:
    assert expected_vote(np.array([0, 1]), np.zeros(2), np.array([1.0, 0.0]), np.ones((1, 2), bool)) == 0.5


def test_without_any_answer_no_vote_is_correct() -> None:
    assert expected_vote(np.array([-1, -1]), np.ones(2), np.array([1.0, 1.0]), np.ones((1, 2), bool)) == 0.0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 1), (4, 3), (4, 4), (6, 3)])
def test_few_subsets_are_all_listed_once(m: int, n: int) -> None:
    masks = subsets(m, n, most=1000, seed=0)
    assert len(masks) == comb(m, n) == len(np.unique(masks, axis=0))
    assert (masks.sum(axis=1) == n).all()


def test_of_many_subsets_some_are_drawn_evenly_by_the_seed() -> None:
    masks = subsets(16, 8, most=2000, seed=1)
    assert masks.shape == (2000, 16)
    assert (masks.sum(axis=1) == 8).all()
    assert np.array_equal(masks, subsets(16, 8, most=2000, seed=1))
    assert not np.array_equal(masks, subsets(16, 8, most=2000, seed=2))
    # each candidate is in half of them; five standard deviations are 5 * sqrt(2000)/2 = 112
    assert (abs(masks.sum(axis=0) - 1000) < 112).all()


def scored_question(
    correct: list[int],
    scores: list[float],
    answers: list[int] | None = None,
    *,
    failed: tuple[int, ...] = (),
    source: str = "s",
) -> ScoredQuestion:
    return ScoredQuestion(
        source=source,
        is_correct_M=np.array(correct, bool),
        is_failed_M=np.array([i in failed for i in range(len(correct))]),
        answers_M=np.array(answers if answers is not None else range(len(correct)), dtype=np.intp),
        scores_M={how: np.array(scores) for how in AGGREGATES},
    )


TWO = [
    # the PRM finds the one correct answer; the majority is wrong
    scored_question([0, 0, 1, 0], [0.2, 0.3, 0.9, 0.1], [0, 0, 1, 2]),
    # the PRM is taken in; the majority is right
    scored_question([1, 1, 0, 1], [0.2, 0.3, 0.9, 0.1], [0, 0, 1, 0]),
]


def values(result: BestOfNResult, n: int) -> dict[str, float]:
    return {name: row[n].value for name, row in result.total.accuracy.items()}


def test_all_methods_at_the_full_number_of_candidates() -> None:
    result = values(best_of_n(TWO, ns=[1, 2, 4]), 4)
    assert result == {
        "prm": 0.5,  # 1, 0
        "weighted_vote": 0.5,  # 0.9 against 0.5: 1; 0.6 against 0.9: 0
        "majority_vote": 0.5,  # 0, 1
        "random": 0.5,  # 1/4, 3/4
        "first": 0.5,  # 0, 1
        "oracle": 1.0,
    }


def test_fewer_candidates_are_the_mean_over_all_subsets() -> None:
    result = values(best_of_n(TWO, ns=[2]), 2)
    # the best is in half of the six pairs. First question: those are won. Second: the others are won
    assert result["prm"] == pytest.approx((3 / 6 + 3 / 6) / 2)
    # pairs that hold one of c correct: 3 of 6, and 6 of 6
    assert result["oracle"] == pytest.approx((0.5 + 1.0) / 2)


def test_the_first_n_alone_can_be_asked_for() -> None:
    result = best_of_n(TWO, ns=[1, 2, 3], over="first")
    # among the first two: 0.3 wins, wrong and right; among the first three 0.9, right and wrong
    assert [result.total.accuracy["prm"][n].value for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert [result.sources["s"].accuracy["oracle"][n].value for n in (1, 2, 3)] == [0.5, 0.5, 1.0]
    assert result.total.accuracy["random"][3].value == pytest.approx((1 / 3 + 2 / 3) / 2)


def test_the_lead_is_paired_by_question() -> None:
    # the PRM is right on all of 50 questions on which the first candidate is wrong, and on no other
    questions = [scored_question([0, 1], [0.1, 0.9])] * 50
    result = best_of_n(questions, ns=[2]).total
    lead = result.lead["first"][2]
    assert (lead.value, lead.low, lead.high) == (1.0, 1.0, 1.0)
    # equal choices have no lead in any draw, though both accuracies vary from draw to draw
    same = best_of_n([scored_question([1, 0], [0.9, 0.1]), scored_question([0, 0], [0.9, 0.1])] * 20, ns=[2]).total
    assert same.accuracy["first"][2].low < same.accuracy["first"][2].high
    assert (same.lead["first"][2].low, same.lead["first"][2].high) == (0.0, 0.0)


def test_answers_that_the_checker_failed_on_count_as_wrong_and_bound_the_result() -> None:
    result = best_of_n(
        [scored_question([0, 0], [0.9, 0.1], failed=(0,)), scored_question([1, 0], [0.9, 0.1])], ns=[2]
    ).total
    best = result.accuracy["prm"][2]
    assert (best.value, best.if_failed_correct) == (0.5, 1.0)
    oracle = result.accuracy["oracle"][2]
    assert (oracle.value, oracle.if_failed_correct) == (0.5, 1.0)
    assert result.accuracy["random"][2].if_failed_correct == 0.5  # (1/2 + 1/2) / 2


def test_every_source_is_measured_by_itself() -> None:
    result = best_of_n([scored_question([1], [0.5], source="a"), scored_question([0], [0.5], source="all")], ns=[1])
    assert result.sources["a"].accuracy["prm"][1].value == 1.0
    assert result.sources["all"].accuracy["prm"][1].value == 0.0
    assert result.total.accuracy["prm"][1].value == 0.5
    assert result.total.n_questions == 2


def test_one_candidate_makes_all_methods_alike() -> None:
    result = values(best_of_n([scored_question([1], [0.5]), scored_question([0], [float("nan")])], ns=[1]), 1)
    assert set(result.values()) == {0.5}


def test_candidates_without_a_score_rank_below_all_others() -> None:
    nan = float("nan")
    result = best_of_n([scored_question([0, 1], [nan, 0.0])], ns=[2]).total
    assert result.accuracy["prm"][2].value == 1.0
    none_scored = best_of_n([scored_question([0, 1], [nan, nan])], ns=[2]).total
    assert none_scored.accuracy["prm"][2].value == 0.5


def test_every_aggregate_is_measured() -> None:
    question = scored_question([0, 1], [0.9, 0.1])
    question.scores_M["min"][:] = [0.1, 0.9]
    result = best_of_n([question], ns=[2]).total
    assert {how: row[2].value for how, row in result.by_aggregate.items()} == {
        "mean": 0.0, "min": 1.0, "last": 0.0, "product": 0.0, "max": 0.0,
    }  # fmt: skip
    assert best_of_n([question], ns=[2], aggregate="min").total.accuracy["prm"][2].value == 1.0


def test_no_votes_are_held_where_no_answer_is_known() -> None:
    result = best_of_n([scored_question([1, 0], [0.9, 0.1], [-1, -1])], ns=[2]).total
    assert not {"majority_vote", "weighted_vote"} & result.accuracy.keys()
    assert "majority_vote" not in result.lead


def test_the_seed_decides_about_draws_and_nothing_else_does() -> None:
    rng = np.random.default_rng(0)
    questions = [
        scored_question(rng.integers(0, 2, 16).tolist(), rng.random(16).tolist(), rng.integers(0, 4, 16).tolist())
        for _ in range(20)
    ]
    first, again = (best_of_n(questions, ns=[8], seed=3, draws=200) for _ in range(2))
    assert first == again
    assert best_of_n(questions, ns=[8], seed=4, draws=200) != first
    # the closed forms do not move with the seed
    assert (
        best_of_n(questions, ns=[8], seed=4, draws=200).total.accuracy["prm"][8].value
        == first.total.accuracy["prm"][8].value
    )


def test_drawn_votes_are_near_the_mean_over_all_subsets() -> None:
    rng = np.random.default_rng(1)
    question = scored_question(
        rng.integers(0, 2, 12).tolist(), rng.random(12).tolist(), rng.integers(0, 3, 12).tolist()
    )
    drawn = best_of_n([question], ns=[6], draws=800).total.accuracy["majority_vote"][6].value
    exact = best_of_n([question], ns=[6], draws=924).total.accuracy["majority_vote"][6].value  # C(12, 6) = 924
    # a mean of 800 values in [0, 1] has a standard deviation of at most 0.5 / sqrt(800) = 0.018
    assert drawn == pytest.approx(exact, abs=0.08)


def test_the_bootstrap_interval_of_a_share_is_as_wide_as_theory_says() -> None:
    column = np.array([1.0] * 30 + [0.0] * 70)[:, None]
    share = estimate(0.3, bootstrap_means(column, draws=4000, seed=0)[:, 0])
    # 0.3 plus or minus 1.96 * sqrt(0.3 * 0.7 / 100) = 0.09
    assert share.low == pytest.approx(0.21, abs=0.015)
    assert share.high == pytest.approx(0.39, abs=0.015)

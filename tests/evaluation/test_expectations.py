"""Every closed form against all subsets, one by one."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.evaluation.best_of_n import expected_best, expected_oracle, expected_random, expected_vote, subsets

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
    found = []
    for subset in combinations(range(len(scores)), n):
        top = max(ranks[i] for i in subset)
        best = [i for i in subset if ranks[i] == top]
        found.append(sum(correct[i] for i in best) / len(best))
    return sum(found) / len(found)


def vote_by_hand(answers: list[int], weights: list[float], correct: list[bool], n: int) -> float:
    found = []
    for subset in combinations(range(len(answers)), n):
        votes = {a: [i for i in subset if answers[i] == a] for a in {answers[i] for i in subset} - {-1}}
        if not votes:
            found.append(0.0)
            continue
        sums = {a: sum(weights[i] for i in voters) for a, voters in votes.items()}
        winners = [a for a in sums if abs(sums[a] - max(sums.values())) < 1e-9]
        found.append(sum(sum(correct[i] for i in votes[a]) / len(votes[a]) for a in winners) / len(winners))
    return sum(found) / len(found)


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
    _, correct, _, n = question
    picks = [correct[i] for subset in combinations(range(len(correct)), n) for i in subset]
    assert expected_random(np.array(correct, float)) == pytest.approx(sum(picks) / len(picks), abs=1e-12)


@given(questions(), st.booleans())
def test_votes_are_as_all_subsets_say(
    question: tuple[list[float], list[bool], list[int], int], is_weighted: bool
) -> None:
    scores, correct, answers, n = question
    weights = [0.0 if score != score else score for score in scores] if is_weighted else [1.0] * len(scores)
    masks = subsets(len(scores), n, most=10_000, seed=0)
    found = expected_vote(np.array(answers, dtype=np.intp), np.array(weights), np.array(correct, float), masks)
    assert found == pytest.approx(vote_by_hand(answers, weights, correct, n), abs=1e-9)


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
    for place in range(3):
        correct = np.zeros(4)
        correct[place] = 1
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

from typing import Any

import numpy as np
import pytest

from mprm.errors import ConfigError
from mprm.evaluation.best_of_n import AGGREGATES, Outcome, best_of_n, bootstrap_means, interval, powers_of_two


def outcome(
    correct: list[int],
    scores: list[float],
    answers: list[int] | None = None,
    *,
    failed: tuple[int, ...] = (),
    source: str = "s",
) -> Outcome:
    return Outcome(
        source=source,
        is_correct_M=np.array(correct, bool),
        is_failed_M=np.array([i in failed for i in range(len(correct))]),
        answers_M=np.array(answers if answers is not None else range(len(correct)), dtype=np.intp),
        scores_M={how: np.array(scores) for how in AGGREGATES},
    )


TWO = [
    # the PRM finds the one correct answer; the majority is wrong
    outcome([0, 0, 1, 0], [0.2, 0.3, 0.9, 0.1], [0, 0, 1, 2]),
    # the PRM is taken in; the majority is right
    outcome([1, 1, 0, 1], [0.2, 0.3, 0.9, 0.1], [0, 0, 1, 0]),
]


def values(measured: Any, n: int) -> dict[str, float]:
    return {name: row[n].value for name, row in measured.total.accuracy.items()}


def test_all_methods_at_the_full_number_of_candidates() -> None:
    found = values(best_of_n(TWO, ns=[1, 2, 4]), 4)
    assert found == {
        "prm": 0.5,  # 1, 0
        "weighted_vote": 0.5,  # 0.9 against 0.5: 1; 0.6 against 0.9: 0
        "majority_vote": 0.5,  # 0, 1
        "random": 0.5,  # 1/4, 3/4
        "first": 0.5,  # 0, 1
        "oracle": 1.0,
    }


def test_fewer_candidates_are_the_mean_over_all_subsets() -> None:
    found = values(best_of_n(TWO, ns=[2]), 2)
    # the best is in half of the six pairs. First question: those are won. Second: the others are won
    assert found["prm"] == pytest.approx((3 / 6 + 3 / 6) / 2)
    # pairs that hold one of c correct: 3 of 6, and 6 of 6
    assert found["oracle"] == pytest.approx((0.5 + 1.0) / 2)


def test_the_first_n_alone_can_be_asked_for() -> None:
    found = best_of_n(TWO, ns=[1, 2, 3], over="first")
    # among the first two: 0.3 wins, wrong and right; among the first three 0.9, right and wrong
    assert [found.total.accuracy["prm"][n].value for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert [found.sources["s"].accuracy["oracle"][n].value for n in (1, 2, 3)] == [0.5, 0.5, 1.0]
    assert found.total.accuracy["random"][3].value == pytest.approx((1 / 3 + 2 / 3) / 2)


def test_the_lead_is_paired_by_question() -> None:
    # the PRM is right on all of 50 questions on which the first candidate is wrong, and on no other
    questions = [outcome([0, 1], [0.1, 0.9])] * 50
    found = best_of_n(questions, ns=[2]).total
    lead = found.lead["first"][2]
    assert (lead.value, lead.low, lead.high) == (1.0, 1.0, 1.0)
    # equal choices have no lead in any draw, though both accuracies vary from draw to draw
    same = best_of_n([outcome([1, 0], [0.9, 0.1]), outcome([0, 0], [0.9, 0.1])] * 20, ns=[2]).total
    assert same.accuracy["first"][2].low < same.accuracy["first"][2].high
    assert (same.lead["first"][2].low, same.lead["first"][2].high) == (0.0, 0.0)


def test_answers_that_the_checker_failed_on_count_as_wrong_and_bound_the_result() -> None:
    found = best_of_n([outcome([0, 0], [0.9, 0.1], failed=(0,)), outcome([1, 0], [0.9, 0.1])], ns=[2]).total
    best = found.accuracy["prm"][2]
    assert (best.value, best.if_failed_correct) == (0.5, 1.0)
    oracle = found.accuracy["oracle"][2]
    assert (oracle.value, oracle.if_failed_correct) == (0.5, 1.0)
    assert found.accuracy["random"][2].if_failed_correct == 0.5  # (1/2 + 1/2) / 2


def test_every_source_is_measured_by_itself() -> None:
    found = best_of_n([outcome([1], [0.5], source="a"), outcome([0], [0.5], source="all")], ns=[1])
    assert found.sources["a"].accuracy["prm"][1].value == 1.0
    assert found.sources["all"].accuracy["prm"][1].value == 0.0
    assert found.total.accuracy["prm"][1].value == 0.5
    assert found.total.n_questions == 2


def test_one_candidate_makes_all_methods_alike() -> None:
    found = values(best_of_n([outcome([1], [0.5]), outcome([0], [float("nan")])], ns=[1]), 1)
    assert set(found.values()) == {0.5}


def test_candidates_without_a_score_rank_below_all_others() -> None:
    nan = float("nan")
    found = best_of_n([outcome([0, 1], [nan, 0.0])], ns=[2]).total
    assert found.accuracy["prm"][2].value == 1.0
    none_scored = best_of_n([outcome([0, 1], [nan, nan])], ns=[2]).total
    assert none_scored.accuracy["prm"][2].value == 0.5


def test_every_aggregate_is_measured() -> None:
    question = outcome([0, 1], [0.9, 0.1])
    question.scores_M["min"][:] = [0.1, 0.9]
    found = best_of_n([question], ns=[2]).total
    assert {how: row[2].value for how, row in found.by_aggregate.items()} == {
        "mean": 0.0, "min": 1.0, "last": 0.0, "product": 0.0, "max": 0.0,
    }  # fmt: skip
    assert best_of_n([question], ns=[2], aggregate="min").total.accuracy["prm"][2].value == 1.0


def test_no_votes_are_held_where_no_answer_is_known() -> None:
    found = best_of_n([outcome([1, 0], [0.9, 0.1], [-1, -1])], ns=[2]).total
    assert not {"majority_vote", "weighted_vote"} & found.accuracy.keys()
    assert "majority_vote" not in found.lead


def test_the_seed_decides_about_draws_and_nothing_else_does() -> None:
    rng = np.random.default_rng(0)
    questions = [
        outcome(rng.integers(0, 2, 16).tolist(), rng.random(16).tolist(), rng.integers(0, 4, 16).tolist())
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
    question = outcome(rng.integers(0, 2, 12).tolist(), rng.random(12).tolist(), rng.integers(0, 3, 12).tolist())
    drawn = best_of_n([question], ns=[6], draws=800).total.accuracy["majority_vote"][6].value
    exact = best_of_n([question], ns=[6], draws=924).total.accuracy["majority_vote"][6].value  # C(12, 6) = 924
    # a mean of 800 values in [0, 1] has a standard deviation of at most 0.5 / sqrt(800) = 0.018
    assert drawn == pytest.approx(exact, abs=0.08)


@pytest.mark.parametrize("ns", [[0], [3], [], [1, 5]])
def test_an_n_without_candidates_is_refused(ns: list[int]) -> None:
    with pytest.raises(ConfigError, match="N must be from 1 to 2"):
        best_of_n([outcome([1, 0], [0.1, 0.2])], ns=ns)


def test_no_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="no questions"):
        best_of_n([], ns=[1])


@pytest.mark.parametrize(
    ("n", "expected"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16))]
)
def test_powers_of_two_go_up_to_the_number_of_candidates(n: int, expected: tuple[int, ...]) -> None:
    assert powers_of_two(n) == expected


def test_the_bootstrap_interval_of_a_share_is_as_wide_as_theory_says() -> None:
    column = np.array([1.0] * 30 + [0.0] * 70)[:, None]
    low, high = interval(bootstrap_means(column, draws=4000, seed=0)[:, 0])
    # 0.3 plus or minus 1.96 * sqrt(0.3 * 0.7 / 100) = 0.09
    assert low == pytest.approx(0.21, abs=0.015)
    assert high == pytest.approx(0.39, abs=0.015)

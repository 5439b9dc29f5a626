"""AUC among steps that have their source and their place in common."""

from __future__ import annotations

import numpy as np
import pytest

from mprm.evaluation import ScoredSolution, StepTable
from mprm_lab.reproduce.same_place import auc_at_same_place, scored_by_place


def table(*solutions: tuple[str, list[int], list[float]]) -> StepTable:
    return StepTable.of(
        [
            ScoredSolution(
                id=str(n), source=source, problem=str(n), labels=tuple(labels), first_error=None, scores=tuple(scores)
            )
            for n, (source, labels, scores) in enumerate(solutions)
        ]
    )


def test_a_model_that_knows_places_alone_is_at_chance() -> None:
    # later steps are wrong more often and score lower; at one place all scores are alike
    rng = np.random.default_rng(0)
    solutions = [
        (
            "a",
            [1 if rng.random() > 0.2 * place else -1 for place in range(5)],
            [1 - 0.2 * place for place in range(5)],
        )
        for _ in range(200)
    ]
    assert auc_at_same_place(table(*solutions)) == 0.5


def test_places_count_by_their_rarer_label() -> None:
    found = auc_at_same_place(
        table(
            ("a", [1, 1], [0.9, 0.4]),
            ("a", [-1, -1], [0.1, 0.5]),
            ("a", [-1, 1], [0.2, 0.3]),
            ("a", [1, 0], [0.8, 0.9]),  # the neutral step does not count
            ("b", [-1], [0.99]),  # the only one of its source
        )
    )
    # place 0: all told apart, two of each; place 1: one incorrect above both correct ones
    assert found == pytest.approx((2 * 1.0 + 1 * 0.0) / 3)


def test_a_score_that_reads_nothing_is_the_share_of_positive_steps_at_the_place() -> None:
    corpus = [("a", [1.0, 0.5, 0.0]), ("a", [0.25, 0.0]), ("b", [0.0])]
    found = scored_by_place(
        table(("a", [1, 1, -1, 1], [0.0] * 4), ("b", [1, 1], [0.0] * 2), ("c", [1], [0.0])), corpus
    )
    # a: 2 of 2, 1 of 2, 0 of 1, then 3 of its 5; b: 0 of 1, then 0 of its 1; c: 3 of all 6
    assert found.scores.tolist() == [1.0, 0.5, 0.0, 0.6, 0.0, 0.0, 0.5]


def test_without_a_place_that_has_both_there_is_none() -> None:
    assert auc_at_same_place(table(("a", [1, -1], [0.9, 0.1]))) is None

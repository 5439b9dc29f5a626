"""The grid that scores lie on."""

from __future__ import annotations

import numpy as np
import pytest

from mprm.errors import DataError
from mprm.theory.fit_corpus import grid, infer_continuations


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


def test_hard_labels_are_refused() -> None:
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

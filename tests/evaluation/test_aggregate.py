import math

import pytest

from mprm.errors import ConfigError
from mprm.evaluation.best_of_n import AGGREGATES, aggregate

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

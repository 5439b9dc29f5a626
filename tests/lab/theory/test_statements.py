"""Whether statements hold, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mprm_lab.theory.statements import FAMILY_ERROR, Comparison, Relation, check_all, compare

NAMES: dict[Relation, str] = {
    "=": "teacher",
    "≤": "Jensen",
    "≥": "norms, below",
    "<": "effective noise falls with k",
    ">": "pseudo-positives harm",
}
"""A statement of each relation."""


def compared(relation: Relation, simulated: float, error: float, tolerance: float = 0.0) -> Comparison:
    """A prediction of 1."""
    return compare(NAMES[relation], 1.0, simulated=simulated, error=error, tolerance=tolerance)


# one comparison at 1%: the two-sided normal limit is 2.576 standard errors
@pytest.mark.parametrize(
    ("relation", "simulated", "holds"),
    [
        ("=", 1.25, True),  # 2.5 errors of 0.1
        ("=", 1.27, False),
        ("=", 0.73, False),
        ("≤", 1.25, True),
        ("≤", 1.27, False),
        ("≤", 0.0, True),
        ("≥", 0.73, False),
        ("≥", 5.0, True),
        ("<", 0.73, True),  # shown
        ("<", 0.75, False),  # on the right side, but not beyond chance
        (">", 1.27, True),
        (">", 1.25, False),
        (">", 0.0, False),
    ],
)
def test_chance_is_granted_to_agreement_and_withheld_from_strict_claims(
    relation: Relation, simulated: float, holds: bool
) -> None:
    (result,) = check_all([compared(relation, simulated, 0.1)])
    assert result.limit == pytest.approx(2.576, abs=1e-3)
    assert result.holds is holds


def test_many_comparisons_share_the_chance() -> None:
    wide = compare("teacher", np.ones(100), simulated=np.ones(100), error=np.full(100, 0.1))
    (alone,), (together, _) = check_all([compared("=", 1.3, 0.1)]), check_all([compared("=", 1.3, 0.1), wide])
    assert not alone.holds  # 3 errors at a limit of 2.576
    assert together.holds  # at 1% / 101, the limit is 3.89
    assert together.limit == pytest.approx(3.893, abs=1e-3)


def test_values_without_error_take_no_part_in_chance() -> None:
    exact = compare("teacher", np.ones(100), simulated=np.ones(100))
    first, second = check_all([compared("=", 1.0, 0.1), exact])
    assert first.limit == pytest.approx(2.576, abs=1e-3)
    assert second.holds
    (wrong,) = check_all([compare("teacher", 1.0, simulated=1.0001)])
    assert not wrong.holds
    assert wrong.worst == np.inf
    assert wrong.as_dict()["worst"] is None


def test_one_bad_setting_makes_the_statement_fail() -> None:
    good = np.ones(50)
    bad = good.copy()
    bad[17] = 2.0
    (result,) = check_all([compare("teacher", good, simulated=bad, error=0.1)])
    assert not result.holds
    assert result.worst == pytest.approx(10)


def test_tolerance_is_added_to_chance() -> None:
    assert check_all([compared("=", 1.3, 0.1, tolerance=0.05)])[0].holds  # 3 errors less half a one
    assert not check_all([compared("=", 1.35, 0.1, tolerance=0.05)])[0].holds


def test_few_groups_are_granted_more_by_students_t() -> None:
    samples = np.array([0.9, 1.0, 1.1, 1.2, 1.3])
    (result,) = check_all([compare("teacher", 1.0, samples)])
    assert result.limit == pytest.approx(4.604, abs=1e-3)  # t with 4 degrees of freedom at 0.5%
    # mean 1.1, standard error 0.1581 / sqrt 5 = 0.0707, t at 2.5% is 2.776
    assert result.interval() == pytest.approx((1.1 - 0.1963, 1.1 + 0.1963), abs=1e-4)


def test_true_statements_are_rejected_as_seldom_as_promised() -> None:
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(500):
        comparisons = [compare("teacher", 0.0, rng.normal(size=(40, 5))) for _ in range(4)]
        rejected += not all(result.holds for result in check_all(comparisons))
    # at most 1% of 500 runs: 5, and 3 standard deviations of 2.2 more
    assert 0 < rejected <= 500 * FAMILY_ERROR + 3 * 2.2

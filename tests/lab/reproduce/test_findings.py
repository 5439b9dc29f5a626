from __future__ import annotations

import pytest

from mprm_lab.reproduce.findings import FINDINGS, Claim, Finding, counts
from mprm_lab.reproduce.measure import SeedMean
from mprm_lab.reproduce.plan import ReproducePlan
from mprm_lab.reproduce.results import Runs
from tests.lab.reproduce.made_runs import made_results

ABOVE = Claim(plus=(("bis-10", "overall"),), minus=(("random-10", "overall"),))
REACHES = Claim(plus=(("bis-10", "overall"),), minus=(("full", "overall"),), bound=-1.0)
NEAR = Claim(plus=(("bis-25", "overall"),), minus=(("bis-10", "overall"),), bound=1.0, is_near=True)


@pytest.mark.parametrize(
    ("claim", "low", "high", "verdict"),
    [
        (ABOVE, 0.1, 2.0, "reproduced"),
        (ABOVE, -0.1, 2.0, "open"),
        (ABOVE, -2.0, -0.1, "not reproduced"),
        (ABOVE, None, None, "open"),
        (REACHES, -0.9, 0.5, "reproduced"),
        (REACHES, -1.5, 0.5, "open"),
        (REACHES, -3.0, -1.1, "not reproduced"),
        (NEAR, -0.9, 0.9, "reproduced"),
        (NEAR, -0.9, 1.1, "open"),
        (NEAR, 1.1, 2.0, "not reproduced"),
        (NEAR, -2.0, -1.1, "not reproduced"),
    ],
)
def test_the_verdict_is_where_the_whole_interval_lies(
    claim: Claim, low: float | None, high: float | None, verdict: str
) -> None:
    assert claim.outcome(SeedMean(mean=0.0, low=low, high=high, n=5)) == verdict


def test_a_claim_without_numbers_is_open() -> None:
    assert ABOVE.difference(Runs([]), "qwen") is None
    assert ABOVE.outcome(None) == "open"


def test_the_papers_own_difference_is_worked_out_where_it_is_known() -> None:
    assert ABOVE.paper("internvl") == pytest.approx(2.60)  # 65.46 - 62.86
    assert ABOVE.paper("llama") is None
    assert Claim(plus=(("full", "curve"),), minus=(("full", "overall"),)).paper("qwen") is None


def test_differences_are_in_points_and_add_up_over_several_terms() -> None:
    runs = Runs(made_results(ReproducePlan(seeds=2))["runs"])
    # 0.60 + 0.05 ρ, and 0.03 for BIS: at 10% they differ by 3 points, at any seed
    difference = ABOVE.difference(runs, "qwen")
    assert difference is not None
    assert (difference.mean, difference.low, difference.high) == (
        pytest.approx(3.0),
        pytest.approx(3.0),
        pytest.approx(3.0),
    )
    both = Claim(
        plus=(("bis-5", "overall"), ("random-50", "overall")), minus=(("random-5", "overall"), ("bis-50", "overall"))
    ).difference(runs, "qwen")
    assert both is not None
    assert both.mean == pytest.approx(0.0)  # 3 - 3


def test_a_finding_is_reproduced_when_all_its_claims_are() -> None:
    runs = Runs(made_results()["runs"])
    worse = Claim(plus=ABOVE.minus, minus=ABOVE.plus)
    unknown = Claim(plus=(("bis-99", "overall"),), minus=(("full", "overall"),))
    for claims, verdict in (
        ((ABOVE, ABOVE), "reproduced"),
        ((ABOVE, unknown), "open"),
        ((ABOVE, unknown, worse), "not reproduced"),
    ):
        assert Finding(words="?", claims=claims).outcome(runs, "qwen") == verdict


def test_every_finding_is_about_runs_of_the_plan() -> None:
    plan = ReproducePlan(seeds=1)
    conditions = {run.condition for run in plan.runs()}
    needs = {"curve": set(plan.curves), "best-of-16": set(plan.best_of_n), "best-of-1": set(plan.best_of_n)}
    for finding in FINDINGS:
        for claim in finding.claims:
            for condition, value in (*claim.plus, *claim.minus):
                assert condition in needs.get(value, conditions)


def test_verdicts_are_counted() -> None:
    n_of_verdict = counts(Runs(made_results()["runs"]))["qwen"]
    assert sum(n_of_verdict.values()) == len(FINDINGS)
    # made up so that BIS gains alike at every share, which the paper does not find, and soft labels lose nothing
    assert n_of_verdict["reproduced"] > 5

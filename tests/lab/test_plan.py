"""The lab's plan holds together."""

from __future__ import annotations

from mprm.lab.plan import LabPlan
from mprm.lab.policy.architecture import new_policy
from mprm.lab.world import SOURCES


def test_who_makes_the_benchmark_is_made_and_has_no_part_in_the_corpus() -> None:
    plan = LabPlan()
    made = [*plan.policies, *(name for policy in plan.policies.values() for name in policy.snapshots)]
    assert len(made) == len(set(made))
    assert {plan.corpus_policy, *plan.benchmark_policies} <= set(made)
    assert plan.corpus_policy not in plan.benchmark_policies
    assert len(plan.benchmark_policies) == 4
    seeds = [policy.training.seed for policy in plan.policies.values()]
    assert len(set(seeds)) == len(seeds), "policies see problems of their own"


def test_the_lab_has_the_sizes_that_it_promises() -> None:
    plan = LabPlan()
    assert plan.corpus_questions * plan.rollouts >= 40_000
    assert plan.continuations == 16
    assert plan.benchmark_questions * len(plan.benchmark_policies) >= 2_000
    assert (plan.best_of_n_questions >= 500, plan.candidates) == (True, 16)
    assert set(plan.sources) <= set(SOURCES)
    assert len(plan.sources) >= 8
    for policy in plan.policies.values():
        model = new_policy(policy.kind, size=policy.size).model
        assert 1e6 < sum(weight.numel() for weight in model.parameters()) < 1e7

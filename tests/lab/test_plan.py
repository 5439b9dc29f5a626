"""The lab's plan holds together."""

from __future__ import annotations

from pathlib import Path

import pytest

from mprm.errors import ConfigError
from mprm.lab.make import _questions
from mprm.lab.plan import LabPlan, PolicyPlan
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


@pytest.mark.parametrize("snapshots", [{"a": 0.0}, {"a": 1.0}, {"a": 0.5, "b": 0.5}, {"a": -0.1}])
def test_snapshots_that_would_never_be_taken_are_refused(snapshots: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="snapshots must be taken at different updates before the last"):
        PolicyPlan(kind="internvl", snapshots=snapshots)


@pytest.mark.parametrize("sources", [(), ("grid-sum", "grid-sum"), ("maze",)])
def test_sources_that_are_none_or_come_twice_are_refused(sources: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="sources must be different ones of grid-sum"):
        LabPlan(sources=sources)


def test_a_folder_with_other_questions_is_not_taken_for_this_plan(tmp_path: Path) -> None:
    plan = LabPlan(sources=("grid-sum", "bars-total"))
    path = _questions(tmp_path, plan, "corpus", 6)
    assert _questions(tmp_path, plan, "corpus", 6) == path
    with pytest.raises(ConfigError, match="holds other questions than this plan asks for"):
        _questions(tmp_path, LabPlan(sources=("grid-sum",)), "corpus", 6)

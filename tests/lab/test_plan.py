"""The lab's plan holds together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.models.checkpoint import load_backbone
from mprm_lab.make import _questions, _train, make_lab
from mprm_lab.plan import LabPlan, PolicyPlan
from mprm_lab.policy.architecture import Size, new_policy
from mprm_lab.policy.train_policy import PolicyTraining, train_policy
from mprm_lab.reproduce.inputs import FILES, find_inputs
from mprm_lab.world import SOURCES


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
    assert set(plan.corpus_sources) == set(plan.sources)
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


@pytest.mark.parametrize("sources", [(), ("maze",)])
def test_sources_of_the_corpus_that_are_not_there_are_refused(sources: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="corpus_sources must be some of grid-sum"):
        LabPlan(corpus_sources=sources)


def test_a_folder_with_other_questions_is_not_taken_for_this_plan(tmp_path: Path) -> None:
    sources = ("grid-sum", "bars-total")
    path = _questions(tmp_path, sources, "corpus", 6)
    assert _questions(tmp_path, sources, "corpus", 6) == path
    with pytest.raises(ConfigError, match="holds other questions than this plan asks for"):
        _questions(tmp_path, ("grid-sum",), "corpus", 6)


@pytest.mark.parametrize("part", ["corpus", "benchmark", "validation", "candidates"])
def test_parts_that_need_a_policy_say_so_before_anything_is_drawn(part: str, tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="--only policies makes it"):
        make_lab(tmp_path, only=(part,))
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / f"{name}.jsonl").touch()
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"corpus\.jsonl: no rollouts; remove it"):
        find_inputs(tmp_path, ())


def test_a_part_that_was_begun_with_another_plan_is_not_gone_on_with(tmp_path: Path) -> None:
    plan = LabPlan()
    with pytest.raises(InputNotFoundError, match="no policy there"):
        make_lab(tmp_path, plan, only=("corpus",))
    (tmp_path / "corpus.jsonl").touch()
    make_lab(tmp_path, plan, only=("corpus",))  # it is there
    with pytest.raises(ConfigError, match="begun with another plan"):
        make_lab(tmp_path, replace(plan, sampling=replace(plan.sampling, temperature=0.3)), only=("corpus",))


@pytest.mark.parametrize("part", ["corpus", "benchmark", "validation", "candidates", "scores"])
def test_what_an_opened_lab_has_is_not_taken_for_made(tmp_path: Path, part: str) -> None:
    path = tmp_path / ("scores/full.jsonl" if part == "scores" else f"{part}.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(ConfigError, match="is there without its plan, as in an opened lab"):
        make_lab(tmp_path, LabPlan(), only=(part,))
    assert not (tmp_path / "plans" / f"{part}.json").exists()


def test_policies_of_one_name_or_that_nobody_makes_are_refused() -> None:
    plan = LabPlan()
    twice = {**plan.policies, "qwen-40": plan.policies["small"]}
    for policies in (twice, {**plan.policies, "a/b": plan.policies["small"]}):
        with pytest.raises(ConfigError, match="different names without a slash"):
            replace(plan, policies=policies)
    with pytest.raises(ConfigError, match="no policy nobody is made"):
        replace(plan, corpus_policy="nobody")


def test_a_snapshot_holds_the_weights_after_its_share_of_the_updates(tmp_path: Path) -> None:
    size = Size(
        hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, vision_hidden=16, vision_layers=1, vision_heads=2
    )
    how = PolicyTraining(n_updates=4, n_pools=1, batch_size=2, workers=0, device="cpu")
    _train(tmp_path / "a", PolicyPlan(kind="internvl", size=size, training=how, snapshots={"b": 0.5}), lambda _: None)
    policy, heads = new_policy("internvl", size=size), []
    train_policy(policy, how, on_update=lambda *_: heads.append(policy.model.lm_head.weight.detach().bfloat16()))
    for name, n_updates in (("b", 2), ("a", 4)):
        kept = load_backbone(tmp_path / name, device="cpu").model.lm_head.weight
        assert torch.equal(kept.bfloat16(), heads[n_updates - 1])
    assert not torch.equal(heads[0], heads[1])


def test_a_policy_that_was_made_otherwise_or_stands_without_its_snapshots_is_refused(tmp_path: Path) -> None:
    policy = LabPlan().policies["internvl"]
    plan = replace(
        LabPlan(),
        policies={"one": replace(policy, snapshots={"early": 0.5})},
        corpus_policy="one",
        demo_policy="one",
        benchmark_policies=("early",),
    )
    (tmp_path / "policies" / "one").mkdir(parents=True)
    (tmp_path / "policies" / "one" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="one is there without its snapshots, as in an opened lab"):
        make_lab(tmp_path, plan, only=("policies",))
    (tmp_path / "policies" / "early").mkdir()
    (tmp_path / "policies" / "early" / "config.json").write_text("{}")
    make_lab(tmp_path, plan, only=("policies",))  # all is there
    elsewhere = replace(policy, snapshots={"early": 0.5}, training=replace(policy.training, device="cpu", workers=1))
    make_lab(tmp_path, replace(plan, policies={"one": elsewhere}), only=("policies",))
    longer = replace(elsewhere, training=replace(policy.training, n_updates=9000))
    with pytest.raises(ConfigError, match=r"policy-one\.json: this part of the lab was begun with another plan"):
        make_lab(tmp_path, replace(plan, policies={"one": longer}), only=("policies",))

"""The lab from nothing, in miniature, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import mprm
from mprm.annotation.samplers.sampler import SamplingParams
from mprm.errors import ConfigError
from mprm.evaluation import read_scores
from mprm_lab.make import make_lab
from mprm_lab.plan import LabPlan, PolicyPlan
from mprm_lab.policy.architecture import Size
from mprm_lab.policy.train_policy import PolicyTraining

pytestmark = pytest.mark.slow

SMALL = Size(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vision_hidden=32, vision_layers=1, vision_heads=2
)


def small(kind: str, seed: int) -> PolicyPlan:
    how = PolicyTraining(n_updates=40, batch_size=16, learning_rate=5e-3, workers=0, seed=seed)
    return PolicyPlan(kind=kind, size=SMALL, training=how)


def with_snapshot(policy: PolicyPlan, name: str) -> PolicyPlan:
    return replace(policy, snapshots={name: 0.9})


PLAN = LabPlan(
    policies={"qwen": with_snapshot(small("qwen2_5_vl", 0), "b"), "a": small("internvl", 1)},
    benchmark_policies=("a", "b"),
    demo_policy="a",
    at_once=2,
    corpus_policy="qwen",
    corpus_questions=6,
    rollouts=4,
    continuations=4,
    benchmark_questions=5,
    validation_questions=3,
    best_of_n_questions=4,
    candidates=3,
    sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=40),
    shards=2,
    rows=None,
    device="cpu",
)


def test_the_lab_is_made_from_nothing_and_what_is_there_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    make_lab(tmp_path, PLAN, only=("policies",), say=said.append)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(made) == 3
    make_lab(tmp_path, PLAN, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert mprm.check(str(tmp_path / "corpus.jsonl"), image_root=str(tmp_path / "images")).counts.keys() <= {
        "special_token"
    }
    assert 20 <= len((tmp_path / "corpus.jsonl").read_text().splitlines()) <= 24  # some may be empty
    records = [json.loads(line) for line in (tmp_path / "benchmark.jsonl").read_text().splitlines()]
    assert {record["policy_model"] for record in records} == {"a", "b"}
    assert len(records) <= 10
    held_apart = [json.loads(line) for line in (tmp_path / "validation.jsonl").read_text().splitlines()]
    assert {record["policy_model"] for record in held_apart} == {"a", "b"}
    assert not {record["image"][0] for record in held_apart} & {record["image"][0] for record in records}
    candidates = [json.loads(line) for line in (tmp_path / "candidates.jsonl").read_text().splitlines()]
    assert [len(entry["candidates"]) for entry in candidates] == [3] * 4
    scores = read_scores(tmp_path / "scores" / "full.jsonl")
    assert (scores.model, len(scores.solutions)) == ("full", len(records))
    n_said = len(said)
    make_lab(tmp_path, PLAN, say=said.append)
    assert len(said) == n_said  # nothing was left to do


def test_parts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no part report of the lab"):
        make_lab(tmp_path, only=("report",))

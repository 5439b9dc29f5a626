"""The paper's experiments from nothing, in miniature, on the CPU: policies, data, trainings, page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from mprm import PRM
from mprm.annotation import SamplingParams
from mprm.cli import run
from mprm_lab.cli import MPRM_LAB
from mprm_lab.make import LabPlan, PolicyPlan
from mprm_lab.reproduce.page import write_page
from mprm_lab.reproduce.plan import ReproducePlan
from mprm_lab.reproduce.reproduce import reproduce
from tests.lab.reproduce.made_runs import make_with_both_labels
from tests.lab.test_make import PLAN, small

pytestmark = pytest.mark.slow


def hasty(kind: str, seed: int) -> PolicyPlan:
    """A policy that knows next to nothing: it has to end its answers, no more."""
    policy = small(kind, seed)
    return replace(policy, solving=replace(policy.solving, n_optimizer_steps=20))


LAB = LabPlan(
    policies={"internvl": hasty("internvl", 0), "qwen": hasty("qwen2_5_vl", 1)},
    checking_policies=("qwen-solver",),
    checking_questions=3,
    benchmark_policies=("internvl-solver", "qwen-solver"),
    corpus_policy="qwen-solver",
    candidates_policy="qwen-solver",
    demo_policy="internvl",
    corpus_questions=8,
    rollouts=4,
    continuations=2,
    benchmark_questions=4,
    validation_questions=3,
    best_of_n_questions=3,
    candidates=2,
    sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=30),
    policies_at_once=PLAN.policies_at_once,
    shards=1,
    rows=None,
    device="cpu",
)
EXPERIMENTS = ReproducePlan(
    seeds=2,
    rhos=(0.5,),
    ablated=("mixed",),
    ablation_rho=0.5,
    alphas=(),
    matched=(0.5,),
    tau_counts=(1,),
    n_continuations=2,
    rates=((1.0, 1e-3),),
    tried_rates=(1e-3,),
    training={"batch_size": 8, "per_device": 8, "max_length": 256},
    curves=("bis-50",),
    curve_seeds=1,
    curve_points=1,
    best_of_n=("base", "logp-min", "bis-50"),
    keep=("bis-50.seed0",),
    device="cpu",
)


def test_the_experiments_run_from_nothing_to_the_page(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    lab, out, said = tmp_path / "lab", tmp_path / "results", list[str]()
    make_with_both_labels(lab, LAB)
    outcome = reproduce(lab, EXPERIMENTS, jobs=2, log=said.append)
    # the references, and of two seeds: full, tau, soft, random, bis, mixed, matched
    assert (outcome.n_runs, outcome.failed) == (2 * (4 + 2 * 7), {})
    done = json.loads((lab / "results" / "qwen.bis-50.seed0.json").read_text())
    matched, single = (
        json.loads((lab / "results" / f"qwen.{name}.seed0.json").read_text())
        for name in ("random-50-matched", "random-50")
    )
    full = json.loads((lab / "results" / "qwen.full.seed0.json").read_text())
    assert full["n_rollouts"] > done["n_rollouts"] > 0
    assert (matched["n_rollouts"], matched["n_optimizer_steps"]) == (
        single["n_rollouts"],
        2 * single["n_optimizer_steps"],
    )
    assert done["curve"][0]["optimizer_step"] == 0
    assert set(done["best_of_n"]["accuracy"]["prm"]) == {"1", "2"}
    # what was measured during training, at its end, is what the loaded model is worth
    assert done["curve"][-1]["overall"] == pytest.approx(done["metrics"]["held_out"]["overall"], abs=1e-4)
    assert {path.name for path in (lab / "runs").iterdir()} == {f"{b}.bis-50.seed0" for b in ("internvl", "qwen")}
    assert PRM.from_pretrained(lab / "runs" / "qwen.bis-50.seed0", device="cpu").score("q", steps=["a", "b"])
    assert not (lab / ".reproduce").exists()
    written = write_page(lab, out, EXPERIMENTS)
    text = (out / "lab.md").read_text()
    assert {path.name for path in written} >= {"lab.json", "lab.md", "lab_scaling_qwen.svg"}
    assert "Random-50%, matched" not in text.split("### Labels and fractions")[1].split("###")[0]
    assert "| 50% |" in text
    results = json.loads((out / "lab.json").read_text())
    assert results["bis_minus_random_over_problems"]["qwen"]["50"]["n_seeds"] == 2
    again = reproduce(lab, EXPERIMENTS, jobs=1, log=said.append)
    assert again.n_kept == again.n_runs
    assert run(["reproduce", str(lab), "--dry-run", "--only", "qwen.base.*"], MPRM_LAB) == 0

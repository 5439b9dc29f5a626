from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mprm.errors import DataError
from mprm_lab.reproduce.measure import seed_mean
from mprm_lab.reproduce.page import page
from mprm_lab.reproduce.plan import REFERENCES, Run
from mprm_lab.reproduce.results import METRICS, Runs, results_of, summary_of
from mprm_lab.reproduce.run import RunStore
from tests.conftest import raw_record, write_jsonl
from tests.lab.reproduce.made_runs import TINY, record_of

T3 = 3.182446
"""Student's t at 97.5% with three degrees of freedom, from a table."""


def runs(**values: list[float]) -> list[dict]:
    conditions = {"bis": ("bis", 0.1), "random": ("random", 0.1), "full": ("full", None)}
    return [
        record_of(Run(backbone="qwen", subset=conditions[name][0], rho=conditions[name][1], seed=seed), value)  # type: ignore[arg-type]
        for name, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]


def test_the_interval_is_students() -> None:
    # mean 5; deviations -3, -1, 1, 3, squares 20, s² = 20/3, s/√4 = 1.290994
    estimate = seed_mean([2.0, 4.0, 6.0, 8.0])
    assert estimate.mean == 5
    assert estimate.low == pytest.approx(5 - T3 * 1.290994, abs=1e-5)
    assert estimate.high == pytest.approx(5 + T3 * 1.290994, abs=1e-5)


def test_one_seed_has_no_interval() -> None:
    assert (seed_mean([0.5]).low, seed_mean([0.5]).high, seed_mean([0.5]).n) == (None, None, 1)


def test_differences_are_taken_seed_by_seed_over_the_seeds_that_both_have() -> None:
    difference = Runs(runs(bis=[0.70, 0.80, 0.90], random=[0.60, 0.75])).difference("qwen", "bis-10", "random-10")
    assert difference is not None
    assert difference.n == 2
    assert difference.mean == pytest.approx(0.075)  # (0.10 + 0.05) / 2
    # s = 0.05/√2, s/√2 = 0.025, t(1) = 12.7062
    assert difference.low == pytest.approx(0.075 - 12.7062 * 0.025, abs=1e-5)
    assert Runs(runs(bis=[0.7])).difference("qwen", "bis-10", "random-10") is None


def test_a_number_that_is_undefined_in_a_run_has_no_part_in_the_mean() -> None:
    records = runs(full=[0.6, 0.8])
    records[0]["metrics"]["held_out"]["auc"] = None
    estimate = Runs(records).mean("qwen", "full", METRICS["auc"])
    assert estimate is not None
    assert (estimate.mean, estimate.n) == (0.8, 1)


def test_the_summary_has_means_and_paired_differences() -> None:
    summary = summary_of(runs(bis=[0.70, 0.72], random=[0.60, 0.64], full=[0.7, 0.7]))["qwen"]
    assert list(summary["conditions"]) == ["bis-10", "random-10", "full"]
    assert summary["conditions"]["bis-10"]["overall"]["mean"] == 0.71
    assert summary["conditions"]["bis-10"]["sources"]["grid-sum"]["n"] == 2
    assert (summary["conditions"]["full"]["n_rollouts"], summary["conditions"]["full"]["n_seeds"]) == (100, 2)
    assert list(summary["bis_minus_random"]) == ["10"]
    assert summary["bis_minus_random"]["10"]["mean"] == 0.09  # (0.10 + 0.08) / 2


def test_curves_are_averaged_where_all_seeds_were_measured() -> None:
    records = runs(full=[0.5, 0.6])
    records[0]["curve"] = [{"optimizer_step": 0, "overall": 0.2}, {"optimizer_step": 4, "overall": 0.5}]
    records[1]["curve"] = [{"optimizer_step": 0, "overall": 0.4}, {"optimizer_step": 5, "overall": 0.6}]
    curve = summary_of(records)["qwen"]["conditions"]["full"]["curve"]
    assert [(point["optimizer_step"], point["overall"]["mean"]) for point in curve] == [(0, 0.3)]


LABELS = [1, 1, -1, -1]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Ten problems with two correct and two incorrect steps each; four rollouts, one of them mixed."""
    write_jsonl(
        tmp_path / "benchmark.jsonl",
        [
            {
                "image": [f"{number}.png"],
                "question": f"How many in {number}?",
                "answer": "1",
                "response": {"steps": [f"step {j} of {number}" for j in range(4)], "process_correctness": LABELS},
                "policy_model": "a",
                "data_source": "grid-sum",
            }
            for number in range(10)
        ],
    )
    scores = [[1.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    write_jsonl(
        tmp_path / "corpus.jsonl",
        [raw_record(rollout, number=n, image=f"grid-sum/{n}.png") for n, rollout in enumerate(scores)],
    )
    store = RunStore(tmp_path)
    for run in TINY.rate_trials():
        store.write(run, record_of(run, 0.5 + (run.learning_rate or 0)))
    for run in TINY.runs():
        # BIS tells every step rightly; random choice gives all steps one score, so that all of them count as correct
        step_scores = np.tile([0.9, 0.8, 0.2, 0.1], 10) if run.subset == "bis" else np.full(40, 0.5)
        store.write(run, record_of(run, 0.6), step_scores if TINY.keeps_scores(run) else None)
    return tmp_path


def test_the_results_hold_what_was_measured_and_on_what(lab: Path) -> None:
    results = results_of(lab, TINY)
    assert results["corpus"] == {
        "rollouts": 4,
        "steps": 8,
        "error_share": 0.125,  # one step of eight
        "mixed_share": 0.25,
        "mean_mc": 0.75,  # (2 + 1 + 1 + 2) / 8
    }
    # "Step 0 of 1." is no sentence of the world, and so wrong; 16 of 16 five times, 8 of 16 twice, 0 once
    n_of_k = {row["k"]: (row["n_steps"], row["n_wrong"]) for row in results["truth"]["rows"] if row["n_steps"]}
    assert n_of_k == {0: (1, 1), 8: (2, 2), 16: (5, 5)}
    assert (results["benchmark"]["n_correct"], results["benchmark"]["n_error"]) == (20, 20)
    first = {"backbone": "internvl", "rho": None, "learning_rate": 0.1, "seed": 1000, "overall": 0.6, "auc": 0.6}
    assert (len(results["rate_trials"]), results["rate_trials"][0]) == (4, first)
    assert len(results["runs"]) == results["n_planned"] == 12
    assert "settings" not in results["runs"][0]
    own = results["own_thresholds"]["internvl"]
    assert own["bis-10"]["0"] == {"overall": 1.0, "auc": 1.0}
    assert own["full"].keys() == own["random-10"].keys() == {"0", "1"}
    assert own["random-10"]["0"]["auc"] == 0.5
    assert "# The paper's experiments in the lab" in page(results)


def test_bis_minus_random_over_problems_is_drawn_from_the_kept_scores(lab: Path) -> None:
    difference = results_of(lab, TINY)["bis_minus_random_over_problems"]["internvl"]["10"]
    # BIS: F1 of both classes is 1. Random: correct steps 2·20/(2·20 + 20) = 2/3, incorrect 0, so that it has 1/3.
    # Every problem is alike, and so is every draw of them
    assert difference["value"] == pytest.approx(2 / 3)
    assert difference["low"] == difference["high"] == pytest.approx(2 / 3)
    assert (difference["n_draws"], difference["n_seeds"]) == (1000, 2)


def test_steps_are_told_apart_at_the_same_position_or_not(lab: Path) -> None:
    # the second position is always correct, and the third never: no position of these has both
    assert results_of(lab, TINY)["auc_at_same_position"] == {"internvl": {}}
    lines = (lab / "benchmark.jsonl").read_text().splitlines()
    turned = [json.loads(line) for line in lines]
    for record in turned[5:]:
        record["response"]["process_correctness"] = [1, -1, -1, 1]
    write_jsonl(lab / "benchmark.jsonl", turned)
    # at positions 1 and 3 five are correct and five are not; every model scores a position alike
    auc = results_of(lab, TINY)["auc_at_same_position"]["internvl"]
    means = {arm: (estimate["mean"], estimate["n"]) for arm, estimate in auc.items()}
    assert means == dict.fromkeys(REFERENCES, (0.5, 1)) | dict.fromkeys(("full", "random-10", "bis-10"), (0.5, 2))


def test_seeds_without_both_scores_have_no_part_in_it(lab: Path) -> None:
    (lab / "results" / "internvl.random-10.seed1.npz").unlink()
    assert results_of(lab, TINY)["bis_minus_random_over_problems"]["internvl"]["10"]["n_seeds"] == 1
    (lab / "results" / "internvl.bis-10.seed0.npz").unlink()
    assert results_of(lab, TINY)["bis_minus_random_over_problems"]["internvl"] == {}


def test_runs_that_are_missing_are_counted(lab: Path) -> None:
    (lab / "results" / "internvl.full.seed1.json").unlink()
    results = results_of(lab, TINY)
    assert (len(results["runs"]), results["n_planned"]) == (11, 12)
    assert results["summary"]["internvl"]["conditions"]["full"]["n_seeds"] == 1


def test_damaged_and_missing_records_are_named(lab: Path) -> None:
    (lab / "results" / "internvl.full.seed1.json").write_text("{")
    with pytest.raises(DataError, match=r"internvl\.full\.seed1\.json is damaged"):
        results_of(lab, TINY)
    for path in (lab / "results").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no run is finished; mprm-lab reproduce"):
        results_of(lab, TINY)


def test_a_learning_rate_that_was_not_tried_is_left_out(lab: Path) -> None:
    (lab / "results" / "internvl.choose-lr-0.1-full.seed1000.json").unlink()
    results = results_of(lab, TINY)
    assert len(results["rate_trials"]) == 3
    assert "| internvl | 100% |  | 70.00 |" in page(results)

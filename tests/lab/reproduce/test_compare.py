"""``mprm-lab compare``: its statistics, its page, and all of it in miniature."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("torch")
stats = pytest.importorskip("scipy.stats")

from mprm.cli import run
from mprm.errors import DataError
from mprm.training import TrainConfig
from mprm_lab.cli import MPRM_LAB
from mprm_lab.reproduce.compare import (
    METHODS,
    VARIANTS,
    ComparePlan,
    compare_page,
    difference,
    holm,
    write_compare,
)
from mprm_lab.reproduce.plan import Run
from mprm_lab.reproduce.reproduce import reproduce
from mprm_lab.reproduce.run import RunStore
from tests.lab.reproduce.made_runs import make_folder, make_with_both_labels
from tests.lab.reproduce.test_end_to_end import EXPERIMENTS, LAB


def test_every_method_and_variant_can_be_trained() -> None:
    plan = ComparePlan()
    runs = [*plan.runs(), *plan.rate_trials()]
    assert len({each.name for each in runs}) == len(runs)
    assert len(METHODS) >= 10
    assert {each.rho for each in plan.runs()} == {0.05, 0.1, 0.25}
    for each in runs:
        options = plan.train_options(each)
        config = TrainConfig(model="m", out="o", **options)
        given_options = (METHODS | VARIANTS)[each.subset]
        assert {name: getattr(config, name) for name in given_options} == given_options
        assert (config.rho, config.select_seed, config.learning_rate) == (each.rho, each.seed, plan.rate_of(each))
    assert [plan.chooses(each) for each in runs].count(True) == len(plan.runs())  # trials see the validation split


pairs = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8)


@given(pairs=pairs, n_rivals=st.integers(1, 20))
def test_a_difference_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]], n_rivals: int) -> None:
    gain = difference(pairs, n_rivals)
    values = np.array([a - b for a, b in pairs])
    assert gain.mean == pytest.approx(values.mean(), abs=1e-9)
    if gain.low is None or gain.high is None or values.std() < 1e-6:
        return
    test = stats.ttest_rel([a for a, _ in pairs], [b for _, b in pairs])
    interval = test.confidence_interval(1 - 0.05 / n_rivals)
    assert (gain.low, gain.high, gain.p) == pytest.approx((interval.low, interval.high, test.pvalue), abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_rejects_what_its_steps_reject(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for level in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        for rank, index in enumerate(order):
            if p_values[index] * (len(p_values) - rank) > level:
                break
            rejected.add(index)
        assert {index for index, p in enumerate(adjusted) if p <= level - 1e-9} <= rejected
        assert rejected <= {index for index, p in enumerate(adjusted) if p <= level + 1e-9}


def made_cells(values: dict[str, list[float]]) -> list[dict[str, Any]]:
    cells = []
    for method, of_seeds in values.items():
        for seed, value in enumerate(of_seeds):
            cell = {"backbone": "qwen", "rho": 0.1, "method": method, "seed": seed, "overall": value, "auc": value}
            cell |= {"own_overall": None, "auc_same": value, "best_of_16": 0.8, "one_answer": 0.6}
            cell |= {"n_rollouts": 10, "n_steps": 50, "train_seconds": 20.0, "device": "cpu", "extra_seconds": 5.0}
            cells.append(cell)
    return cells


def test_the_page_is_made_of_the_cells_alone(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    trial = {"method": "random-ranking-2", "backbone": "qwen", "learning_rate": 3e-4, "overall": 0.7}
    values = {"bis": [0.80, 0.81, 0.82], "random": [0.84, 0.85, 0.87], "drop": [0.80, 0.80, 0.83]}
    path.write_text(json.dumps({"methods": METHODS, "n_planned": 9, "trials": [trial], "cells": made_cells(values)}))
    page = compare_page(path)

    def rows_of(title: str) -> list[list[str]]:
        text = page.split(f"## {title}\n")[1].split("\n## ")[0]
        return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| r", "| b", "| d"))]

    rows = rows_of("qwen, 10% of the rollouts")
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[:3]}
    assert [row[0].strip() for row in rows[:3]] == ["random", *sorted(("bis", "drop"), key=lambda n: -sum(values[n]))]
    gain = difference([(0.84, 0.80), (0.85, 0.81), (0.87, 0.82)], 2)
    p = holm([gain.p, difference(list(zip(values["drop"], values["bis"], strict=True)), 2).p])[0]
    assert p < 0.05  # so that it is bold
    assert table["random"][:5] == ["3", "85.3", "", "85.3", "80.0"]
    assert table["random"][5] == f"**+4.3** [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    assert table["random"][7] == "25"
    summary = [[cell.strip() for cell in row] for row in rows_of("step F1, minus BIS: qwen")]
    assert [row[0] for row in summary] == ["random", "drop"]
    assert summary[0][1] == table["random"][5]
    assert rows_of("step F1, minus random selection: qwen")[0][1].strip().startswith("**-4.3**")
    assert table["bis"][5:7] == ["", ""]
    assert "9 of 9 runs" in page
    assert "| random-ranking-2 | 0.0003 | 70.00 |" in page
    assert "`--strategy bis` `--alpha 0.5`" in page


def test_without_a_finished_run_there_is_no_page(tmp_path: Path) -> None:
    from tests.conftest import write_jsonl

    make_folder(tmp_path)
    solution = {"image": "a.png", "question": "q", "response": {"steps": ["a"], "process_correctness": [1]}, "id": 1}
    write_jsonl(tmp_path / "benchmark.jsonl", [solution | {"data_source": "s", "answer": "1"}])
    with pytest.raises(DataError, match="no run is finished; mprm-lab compare"):
        write_compare(tmp_path, tmp_path / "out", ComparePlan())


class KeepingPlan(ComparePlan):
    def keeps_scores(self, run: Run) -> bool:
        return run.learning_rate is None


@pytest.mark.slow
def test_the_comparison_runs_in_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab, out = tmp_path / "lab", tmp_path / "out"
    make_with_both_labels(lab, LAB)
    names = ("bis", "random", "uncertainty", "scan", "random-posterior", "random-beta-binomial", "random-ranking")
    names = (*names, "random-readout")
    plan = KeepingPlan(
        backbones=("internvl",),
        seeds=2,
        rhos=(0.5,),
        # so few continuations fit no prior
        methods={name: METHODS[name] for name in names}
        | {"random-posterior": METHODS["random-posterior"] | {"prior": (1.0, 1.0)}},
        variants={"random-ranking-2": VARIANTS["random-ranking-2"]},
        trial_rho=0.5,
        n_continuations=2,
        rates=EXPERIMENTS.rates,
        tried_rates=EXPERIMENTS.tried_rates,
        training=EXPERIMENTS.training,
        device="cpu",
    )
    done = reproduce(lab, plan, jobs=2, log=lambda _: None)
    assert (done.n_runs, done.failed) == (2 * len(names), {})
    assert sorted(path.name for path in (lab / "compare" / "columns").glob("*.parquet")) == [
        "internvl.seed0.parquet",
        "internvl.seed1.parquet",
    ]
    assert reproduce(lab, plan, trials=True, jobs=2, log=lambda _: None).failed == {}
    assert reproduce(lab, plan, jobs=2, log=lambda _: None).n_kept == 2 * len(names)
    raw, text = write_compare(lab, out, plan)
    cells = json.loads(raw.read_text())["cells"]
    assert {cell["method"] for cell in cells} == {*names}
    assert all((cell["extra_seconds"] > 0) == (cell["method"] in ("uncertainty", "random-readout")) for cell in cells)
    of = {run.subset: RunStore(lab, plan.results).scores(run) for run in plan.runs() if run.seed == 0}
    assert (of["random-readout"] != of["random"]).all()  # the same model, read otherwise
    assert len(list((lab / "compare" / "log-probs").glob("*.msgpack"))) == 2  # of benchmark and candidates
    assert text.read_text() == compare_page(raw)
    assert replace(plan, seeds=1).runs()[0] == plan.runs()[0]
    assert run(["compare", str(lab), "--dry-run", "--seeds", "1", "--only", "internvl.bis-10.*"], MPRM_LAB) == 0
    assert "internvl.bis-10.seed0" in capsys.readouterr().out

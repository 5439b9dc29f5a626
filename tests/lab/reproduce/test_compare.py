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


@given(
    st.lists(st.lists(st.integers(-50, 50).map(lambda n: n / 100), min_size=3, max_size=5), min_size=1, max_size=8)
)
def test_differences_are_those_of_paired_t_tests_that_share_5_percent_by_holm(rivals: list[list[float]]) -> None:
    differences = {str(number): values for number, values in enumerate(rivals)}
    gains = holm(differences)
    varied = {name: np.array(values) for name, values in differences.items() if np.std(values) > 1e-9}
    tests = {name: stats.ttest_1samp(values, 0) for name, values in varied.items()}
    n_left, rejected = len(rivals), set[str]()
    for name in sorted(tests, key=lambda name: float(tests[name].pvalue)):
        if tests[name].pvalue > 0.05 / n_left:
            break
        rejected.add(name)
        interval = tests[name].confidence_interval(1 - 0.05 / n_left)
        assert (gains[name].low, gains[name].high) == pytest.approx((interval.low, interval.high), abs=1e-9)
        n_left -= 1
    for name in tests.keys() - rejected:
        interval = tests[name].confidence_interval(1 - 0.05 / n_left)
        assert (gains[name].low, gains[name].high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert {name for name, gain in gains.items() if gain.is_sure} == rejected
    assert all(gains[name].mean == pytest.approx(np.mean(values)) for name, values in differences.items())


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
    path.write_text(
        json.dumps({"lab": "LAB", "methods": METHODS, "n_planned": 9, "trials": [trial], "cells": made_cells(values)})
    )
    page = compare_page(path)

    def rows_of(title: str) -> list[list[str]]:
        text = page.split(f"## {title}\n")[1].split("\n## ")[0]
        return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| r", "| b", "| d"))]

    rows = rows_of("qwen, 10% of the rollouts")
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[:3]}
    assert [row[0].strip() for row in rows[:3]] == ["random", *sorted(("bis", "drop"), key=lambda n: -sum(values[n]))]
    differences = {n: [a - b for a, b in zip(values[n], values["bis"], strict=True)] for n in ("random", "drop")}
    gain = holm(differences)["random"]
    assert gain.is_sure
    assert gain.low is not None
    assert gain.high is not None
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


def test_a_seed_counts_once_and_a_missing_value_not_at_all(tmp_path: Path) -> None:
    values = {"bis": [0.80, 0.81, 0.82], "drop": [0.84, 0.84, 0.86]}
    cells = [cell | {"backbone": backbone} for backbone in ("qwen", "internvl") for cell in made_cells(values)]
    cells[-1]["overall"] = None
    raw = {"lab": "LAB/fresh", "methods": {name: METHODS[name] for name in values}, "n_planned": 12}
    raw |= {"trials": [], "cells": [cell | {"seed": cell["seed"] + 7} for cell in cells]}
    (tmp_path / "compare.json").write_text(json.dumps(raw))
    page = compare_page(tmp_path / "compare.json")
    gain = holm({"drop": [0.04, 0.03, 0.04]})["drop"]  # not of six differences
    assert f"| drop | **+3.7** [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}] |" in page  # type: ignore[operator]
    assert "minus random" not in page
    options = "--only '*-10.*' --backbones qwen internvl --first-seed 7 --seeds 3 --methods bis drop"
    options += " --out docs/results/fresh --force"
    assert f"$ mprm-lab make LAB --only fresh\n$ mprm-lab compare LAB/fresh {options}\n" in page


def test_wrong_methods_and_seeds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path)
    assert run(["compare", str(tmp_path), "--methods", "bi"], MPRM_LAB) == 2
    assert "no method is called 'bi'; they are bis, random" in capsys.readouterr().err
    assert run(["compare", str(tmp_path), "--first-seed", "998"], MPRM_LAB) == 2
    assert "seed 1000 is that of the trials" in capsys.readouterr().err
    assert run(["compare", str(tmp_path), "--trials", "--methods", "bis"], MPRM_LAB) == 2
    assert "leave out --methods" in capsys.readouterr().err
    assert run(["compare", str(tmp_path), "--first-seed", str(2**32)], MPRM_LAB) == 2
    assert "--first-seed must be at least 0 and below" in capsys.readouterr().err
    (tmp_path / "compare.json").write_text("{}")
    assert run(["compare", str(tmp_path), "--out", str(tmp_path)], MPRM_LAB) == 1
    assert "compare.json exists already" in capsys.readouterr().err


def test_a_method_by_a_model_needs_no_other_method() -> None:
    plan = ComparePlan(methods={"uncertainty": METHODS["uncertainty"]})
    assert plan.train_options(Run(backbone="qwen", subset="random", rho=0.1))["strategy"] == "random"


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
    assert len(list((lab / "compare" / "shared").glob("scores.seed?.internvl.*.parquet"))) == 2
    assert reproduce(lab, plan, trials=True, jobs=2, log=lambda _: None).failed == {}
    assert reproduce(lab, plan, jobs=2, log=lambda _: None).n_kept == 2 * len(names)
    raw, text = write_compare(lab, out, plan)
    cells = json.loads(raw.read_text())["cells"]
    assert {cell["method"] for cell in cells} == {*names}
    assert all((cell["extra_seconds"] > 0) == (cell["method"] in ("uncertainty", "random-readout")) for cell in cells)
    of = {run.subset: RunStore(lab, plan.results).scores(run) for run in plan.runs() if run.seed == 0}
    assert (of["random-readout"] != of["random"]).all()  # the same model, read otherwise
    assert len(list((lab / "compare" / "shared").glob("*.msgpack"))) == 2  # of benchmark and candidates
    assert text.read_text() == compare_page(raw)
    assert replace(plan, seeds=1).runs()[0] == plan.runs()[0]
    assert run(["compare", str(lab), "--dry-run", "--seeds", "1", "--only", "internvl.bis-10.*"], MPRM_LAB) == 0
    assert "internvl.bis-10.seed0" in capsys.readouterr().out

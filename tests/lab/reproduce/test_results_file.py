from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mprm.errors import DataError, MprmError
from mprm_lab.reproduce.cell_files import CellFiles
from mprm_lab.reproduce.page import page
from mprm_lab.reproduce.results import results_of
from tests.conftest import raw_record, write_jsonl
from tests.lab.reproduce.made_cells import TINY, record_of

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
        [raw_record(one, number=n, image=f"grid-sum/{n}.png") for n, one in enumerate(scores)],
    )
    files = CellFiles(tmp_path)
    for cell in TINY.choices():
        files.write(cell, record_of(cell, 0.5 + (cell.learning_rate or 0)))
    for cell in TINY.cells():
        # BIS tells every step rightly; random choice gives all steps one score, so that all of them count as correct
        told = np.tile([0.9, 0.8, 0.2, 0.1], 10) if cell.subset == "bis" else np.full(40, 0.5)
        files.write(cell, record_of(cell, 0.6), told if TINY.keeps_scores(cell) else None)
    return tmp_path


def test_the_results_hold_what_was_measured_and_on_what(lab: Path) -> None:
    found = results_of(lab, TINY)
    assert found["corpus"] == {
        "rollouts": 4,
        "steps": 8,
        "error_share": 0.125,  # one step of eight
        "mixed_share": 0.25,
        "mean_mc": 0.75,  # (2 + 1 + 1 + 2) / 8
    }
    # "Step 0 of 1." is no sentence of the world, and so wrong; 16 of 16 five times, 8 of 16 twice, 0 once
    told = {row["k"]: (row["n_steps"], row["n_wrong"]) for row in found["truth"]["rows"] if row["n_steps"]}
    assert told == {0: (1, 1), 8: (2, 2), 16: (5, 5)}
    assert (found["benchmark"]["n_correct"], found["benchmark"]["n_error"]) == (20, 20)
    assert found["choice"]["internvl"]["learning_rate"] == 0.2
    assert len(found["cells"]) == found["n_planned"] == 9
    assert "settings" not in found["cells"][0]
    own = found["own_thresholds"]["internvl"]
    assert own["bis-10"]["0"] == {"overall": 1.0, "auc": 1.0}
    assert own["full"].keys() == own["random-10"].keys() == {"0", "1"}
    assert own["random-10"]["0"]["auc"] == 0.5
    assert "# The paper's experiments in the lab" in page(found)


def test_bis_less_random_over_problems_is_drawn_from_the_kept_scores(lab: Path) -> None:
    found = results_of(lab, TINY)["bis_less_random_over_problems"]["internvl"]["10"]
    # BIS: F1 of both classes is 1. Random: correct steps 2·20/(2·20 + 20) = 2/3, incorrect 0, so that it has 1/3.
    # Every problem is alike, and so is every draw of them
    assert found["value"] == pytest.approx(2 / 3)
    assert found["low"] == found["high"] == pytest.approx(2 / 3)
    assert (found["n_draws"], found["n_seeds"]) == (1000, 2)


def test_steps_are_told_apart_at_the_same_place_or_not(lab: Path) -> None:
    # the second place is always correct, and the third never: no place of these has both
    assert results_of(lab, TINY)["auc_at_same_place"] == {"internvl": {}}
    lines = (lab / "benchmark.jsonl").read_text().splitlines()
    turned = [json.loads(line) for line in lines]
    for record in turned[5:]:
        record["response"]["process_correctness"] = [1, -1, -1, 1]
    write_jsonl(lab / "benchmark.jsonl", turned)
    # at places 1 and 3 five are correct and five are not; every model scores a place alike
    found = results_of(lab, TINY)["auc_at_same_place"]["internvl"]
    told = {arm: (one["mean"], one["n"]) for arm, one in found.items()}
    assert told == dict.fromkeys(("full", "random-10", "bis-10"), (0.5, 2))


def test_seeds_without_both_scores_have_no_part_in_it(lab: Path) -> None:
    (lab / "cells" / "internvl.random-10.seed1.npz").unlink()
    assert results_of(lab, TINY)["bis_less_random_over_problems"]["internvl"]["10"]["n_seeds"] == 1
    (lab / "cells" / "internvl.bis-10.seed0.npz").unlink()
    assert results_of(lab, TINY)["bis_less_random_over_problems"]["internvl"] == {}


def test_cells_that_are_missing_are_counted(lab: Path) -> None:
    (lab / "cells" / "internvl.full.seed1.json").unlink()
    found = results_of(lab, TINY)
    assert (len(found["cells"]), found["n_planned"]) == (8, 9)
    assert found["summary"]["internvl"]["arms"]["full"]["n_seeds"] == 1


def test_damaged_and_missing_records_are_named(lab: Path) -> None:
    (lab / "cells" / "internvl.full.seed1.json").write_text("{")
    with pytest.raises(DataError, match=r"internvl\.full\.seed1\.json is damaged"):
        results_of(lab, TINY)
    for path in (lab / "cells").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no cell is finished; mprm lab reproduce"):
        results_of(lab, TINY)


def test_a_learning_rate_that_was_not_tried_is_missed(lab: Path) -> None:
    (lab / "cells" / "internvl.choose-lr-0.1.seed1000.json").unlink()
    with pytest.raises(MprmError, match=r"choose-lr-0\.1\.seed1000 is not measured"):
        results_of(lab, TINY)

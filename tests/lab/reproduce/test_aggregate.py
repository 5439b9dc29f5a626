from __future__ import annotations

import pytest

from mprm_lab.reproduce.aggregate import METRICS, Cells, summary_of
from mprm_lab.reproduce.cell import Cell
from mprm_lab.reproduce.seed_interval import seed_mean
from tests.lab.reproduce.made_cells import record_of

T3 = 3.182446
"""Student's t at 97.5% with three degrees of freedom, from a table."""


def cells(**values: list[float]) -> list[dict]:
    arms = {"bis": ("bis", 0.1), "random": ("random", 0.1), "full": ("full", None)}
    return [
        record_of(Cell(backbone="qwen", subset=arms[name][0], rho=arms[name][1], seed=seed), value)  # type: ignore[arg-type]
        for name, found in values.items()
        for seed, value in enumerate(found)
    ]


def test_the_interval_is_students() -> None:
    # mean 5; deviations -3, -1, 1, 3, squares 20, s² = 20/3, s/√4 = 1.290994
    found = seed_mean([2.0, 4.0, 6.0, 8.0])
    assert found.mean == 5
    assert found.low == pytest.approx(5 - T3 * 1.290994, abs=1e-5)
    assert found.high == pytest.approx(5 + T3 * 1.290994, abs=1e-5)


def test_one_seed_has_no_interval() -> None:
    assert (seed_mean([0.5]).low, seed_mean([0.5]).high, seed_mean([0.5]).n) == (None, None, 1)


def test_differences_are_taken_seed_by_seed_over_the_seeds_that_both_have() -> None:
    found = Cells(cells(bis=[0.70, 0.80, 0.90], random=[0.60, 0.75])).difference("qwen", "bis-10", "random-10")
    assert found is not None
    assert found.n == 2
    assert found.mean == pytest.approx(0.075)  # (0.10 + 0.05) / 2
    # s = 0.05/√2, s/√2 = 0.025, t(1) = 12.7062
    assert found.low == pytest.approx(0.075 - 12.7062 * 0.025, abs=1e-5)
    assert Cells(cells(bis=[0.7])).difference("qwen", "bis-10", "random-10") is None


def test_a_number_that_is_undefined_in_a_cell_has_no_part_in_the_mean() -> None:
    records = cells(full=[0.6, 0.8])
    records[0]["metrics"]["held_out"]["auc"] = None
    found = Cells(records).mean("qwen", "full", METRICS["auc"])
    assert found is not None
    assert (found.mean, found.n) == (0.8, 1)


def test_the_summary_has_means_and_paired_differences() -> None:
    found = summary_of(cells(bis=[0.70, 0.72], random=[0.60, 0.64], full=[0.7, 0.7]))["qwen"]
    assert list(found["arms"]) == ["bis-10", "random-10", "full"]
    assert found["arms"]["bis-10"]["overall"]["mean"] == 0.71
    assert found["arms"]["bis-10"]["sources"]["grid-sum"]["n"] == 2
    assert (found["arms"]["full"]["n_rollouts"], found["arms"]["full"]["n_seeds"]) == (100, 2)
    assert list(found["bis_less_random"]) == ["10"]
    assert found["bis_less_random"]["10"]["mean"] == 0.09  # (0.10 + 0.08) / 2


def test_curves_are_averaged_where_all_seeds_were_measured() -> None:
    records = cells(full=[0.5, 0.6])
    records[0]["curve"] = [{"update": 0, "overall": 0.2}, {"update": 4, "overall": 0.5}]
    records[1]["curve"] = [{"update": 0, "overall": 0.4}, {"update": 5, "overall": 0.6}]
    curve = summary_of(records)["qwen"]["arms"]["full"]["curve"]
    assert [(point["update"], point["overall"]["mean"]) for point in curve] == [(0, 0.3)]

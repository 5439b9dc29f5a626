"""Runs that must not be taken for one another, or be left out without a word."""

import json
from pathlib import Path
from typing import Any

from mprm.report.run_views import RunsView, view_runs
from mprm.report.runs import read_runs
from tests.conftest import write_jsonl


def train(folder: Path, overall: float | None, *, select: dict[str, Any] | None = None, **options: Any) -> None:
    made = {"seed": 0, "model": "/a/base", "base_fingerprint": "1", "rollouts_xxh3_128": ["1"], **options}
    source = made.pop("source", "bars")
    points = [] if overall is None else [{"update": 1, "overall": overall, "macro_f1": {source: overall}}]
    write_jsonl(folder / "curve.jsonl", points)
    (folder / "train.json").write_text(json.dumps(made))
    (folder / "data").mkdir()
    (folder / "data" / "summary.json").write_text(json.dumps({"select": select, "inputs": []}))


def evaluate(folder: Path, name: str, value: float, source: str = "bars", select: Any = None) -> None:
    folder.mkdir(parents=True)
    metrics = {"all": {"overall": {"value": value}}, "sources": {source: {"macro_f1": {"value": value}}}}
    content = {"threshold": "held out", "models": [{"name": name, "metrics": metrics}]}
    (folder / "metrics.json").write_text(json.dumps(content))
    card = {"config": {"model_info": {"mprm.json": {"data": {"select": select}}}}}
    (folder / "metrics.json.manifest.json").write_text(json.dumps(card))


def view(*folders: Path) -> RunsView:
    return view_runs(read_runs(folders))


def names(found: RunsView, caption: str) -> list[str]:
    table = next(table for table in found.tables if table.caption == caption)
    return [row.cells[0] for group in table.groups for row in group.rows]


def series(found: RunsView, name: str) -> list[list[float]]:
    charts = [chart for chart in found.charts if chart.name == name]
    return [[point.y for point in one.points] for chart in charts for one in chart.series]


def test_a_run_that_is_named_twice_is_one(tmp_path: Path) -> None:
    train(tmp_path / "a", 0.2)
    train(tmp_path / "b", 0.4, seed=1)
    assert names(view(tmp_path, tmp_path / "a"), "After training") == ["all data (2 seeds)"]


def test_other_models_rollouts_and_benchmarks_are_no_seeds(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"base_fingerprint": "2", "model": "/b/base"},
        {"rollouts_xxh3_128": ["2"]},
        {"source": "lines"},
        {"seed": 0},
    ]
    for number, other in enumerate(others):
        train(tmp_path / str(number) / "a", 0.2)
        train(tmp_path / str(number) / "b", 0.4, **{"seed": 1, **other})
        found = view(tmp_path / str(number))
        assert len(names(found, "After training")) == 2, other
        assert sorted(series(found, "curve_overall")) == [[0.2], [0.4]], other


def test_f1_against_rho_does_not_mix_settings(tmp_path: Path) -> None:
    for rate, value in ((0.1, 0.2), (0.2, 0.6)):
        train(tmp_path / f"all{rate}", value, learning_rate=rate)
        train(tmp_path / f"bis{rate}", value + 0.25, learning_rate=rate, select={"strategy": "bis", "rho": 0.5})
    found = view(tmp_path)
    assert series(found, "scaling_curves") + series(found, "scaling_curves_2") == [[0.45, 0.2], [0.85, 0.6]]


def test_f1_against_rho_does_not_mix_benchmarks(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", "all", 0.9)
    evaluate(tmp_path / "b", "bis", 0.3, source="lines", select={"strategy": "bis", "rho": 0.5})
    assert view(tmp_path).charts == ()


def test_a_model_whose_name_begins_another_s_is_shown(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", "run10", 0.5)
    evaluate(tmp_path / "b", "run1", 0.5)
    found = view(tmp_path)
    assert sorted(names(found, "Evaluation")) == ["run1", "run10"]
    assert "count as all data: run10, run1" in found.tables[0].below[1]


def test_a_run_without_a_curve_is_named(tmp_path: Path) -> None:
    train(tmp_path / "bare", None)
    assert str(tmp_path / "bare") in view(tmp_path).tables[0].below[-1]
    train(tmp_path / "measured", 0.5)
    found = view(tmp_path)
    assert names(found, "After training") == ["all data"]
    assert str(tmp_path / "bare") in found.tables[0].below[-1]

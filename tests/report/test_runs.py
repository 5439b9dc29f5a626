"""Runs on the page: what real training, evaluation and reranking folders turn into."""

import json
import shutil
from pathlib import Path

import pytest

from mprm.errors import DataError
from mprm.report.report import report
from mprm.report.run_views import RunsView, Table, view_runs
from mprm.report.runs import TrainedOn, read_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("torch", "transformers", "sklearn", "math_verify"):
        pytest.importorskip(needed)
    from tests.report.made_runs import make_runs

    return make_runs(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def view(runs: Path) -> RunsView:
    return view_runs(read_runs([runs]))


def curve(runs: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (runs / name / "curve.jsonl").read_text().splitlines()]


def metrics(runs: Path, name: str) -> dict:
    return json.loads((runs / name / "metrics.json").read_text())


def table(view: RunsView, caption: str) -> Table:
    return next(found for found in view.tables if found.caption == caption)


def test_every_kind_of_run_is_found_and_told_apart(runs: Path) -> None:
    found = read_runs([runs])
    assert {run.folder.name: (run.trained_on.name, run.seed) for run in found.training} == {
        "bis_0": ("bis 50%", 0),
        "bis_1": ("bis 50%", 1),
        "random_0": ("random 50%", 0),
        "all_0": ("all data", 0),
    }
    assert {run.folder.name: run.is_assumed for run in found.training if run.is_assumed} == {"all_0": True}
    trained = {run.folder.name: run.trained_on for run in found.evaluations}
    assert trained == {
        "eval_bis_0": TrainedOn(strategy="bis", rho=0.5),
        "eval_all_0": TrainedOn(strategy="all", rho=1.0),
        "compared": None,
    }
    assert [run.folder.name for run in found.rerankings] == ["reranked"]


def test_a_subset_that_select_wrote_is_known_by_its_manifest(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "all_0", folder)
    subset = tmp_path / "subset.jsonl"
    manifest = {"command": "select", "config": {"strategy": "mixed", "rho": 0.25}}
    Path(f"{subset}.manifest.json").write_text(json.dumps(manifest))
    summary = json.loads((folder / "data" / "summary.json").read_text())
    (folder / "data" / "summary.json").write_text(json.dumps({**summary, "inputs": [{"path": str(subset)}]}))
    (run,) = read_runs([folder]).training
    assert run.trained_on == TrainedOn(strategy="mixed", rho=0.25)
    assert not run.is_assumed


def test_seeds_are_drawn_as_their_mean_within_their_range(runs: Path, view: RunsView) -> None:
    chart = next(found for found in view.charts if found.name == "curve_overall")
    series = {one.name: one.points for one in chart.series}
    assert set(series) == {"bis 50%", "random 50%", "all data"}
    last = series["bis 50%"][-1]
    both = [curve(runs, name)[-1]["overall"] for name in ("bis_0", "bis_1")]
    assert (last.low, last.high) == (min(both), max(both))
    assert last.y == pytest.approx(sum(both) / 2)
    assert [point.x for point in series["all data"]] == [point["update"] for point in curve(runs, "all_0")]
    assert series["all data"][0].low is None
    assert [found.title for found in view.charts[1:3]] == [
        "Macro-F1 during training: bars",
        "Macro-F1 during training: lines",
    ]


def test_the_table_after_training_groups_by_rho_and_marks_the_best_of_each_group(runs: Path, view: RunsView) -> None:
    found = table(view, "After training")
    assert found.heads == ("model", "overall", "bars", "lines")
    assert [group.head for group in found.groups] == ["Full data", "50% subsets"]
    full, half = found.groups
    assert full.rows[0].cells[1] == f"{100 * curve(runs, 'all_0')[-1]['overall']:.2f}"
    assert full.rows[0].best == frozenset()
    assert [row.cells[0] for row in half.rows] == ["bis 50% (2 seeds)", "random 50%"]
    overall = [float(row.cells[1]) for row in half.rows]
    assert [1 in row.best for row in half.rows] == [value == max(overall) for value in overall]
    assert "all data: all_0" in found.below[1]


def test_the_table_of_evaluations_has_the_paper_s_layout(runs: Path, view: RunsView) -> None:
    found = table(view, "Evaluation")
    rows = {row.cells[0]: row.cells[1:] for group in found.groups for row in group.rows}
    assert [group.head for group in found.groups] == ["Full data", "50% subsets"]
    for name in ("all_0", "bis_0"):
        (model,) = metrics(runs, f"eval_{name}")["models"]
        values = [model["metrics"]["all"]["overall"]["value"]]
        values += [source["macro_f1"]["value"] for source in model["metrics"]["sources"].values()]
        assert rows[model["name"]] == tuple(f"{100 * value:.2f}" for value in values)


def test_f1_against_rho_ends_in_the_full_data(runs: Path, view: RunsView) -> None:
    for name in ("scaling_curves", "scaling_evaluations"):
        chart = next(found for found in view.charts if found.name == name)
        bis = next(one for one in chart.series if one.name == "bis")
        assert [point.x for point in bis.points] == [50.0, 100.0]
    (model,) = metrics(runs, "eval_all_0")["models"]
    assert bis.points[-1].y == model["metrics"]["all"]["overall"]["value"]


def test_best_of_n_has_every_method_with_its_interval(runs: Path, view: RunsView) -> None:
    chart = next(found for found in view.charts if found.name == "best_of_n_1")
    written = metrics(runs, "reranked")["total"]["accuracy"]
    assert len(chart.series) == len(written)
    first = chart.series[list(written).index("prm")].points[-1]
    assert (first.x, first.y, first.low) == (4, written["prm"]["4"]["value"], written["prm"]["4"]["low"])


def test_calibration_is_the_share_of_correct_steps_in_each_bin(runs: Path, view: RunsView) -> None:
    chart = next(found for found in view.charts if found.name == "calibration")
    lines = [json.loads(line) for line in (runs / "eval_bis_0" / "scores.jsonl").read_text().splitlines()]
    steps = [pair for line in lines for pair in zip(line["scores"], line["labels"], strict=True)]
    series = next(one for one in chart.series if one.name.endswith("bis_0"))
    for point in series.points:
        here = [(s, y) for s, y in steps if int(s * 15) == int(point.x * 15)]
        assert point.x == pytest.approx(sum(s for s, _ in here) / len(here))
        assert point.y == pytest.approx(sum(y == 1 for _, y in here) / len(here))


def test_paired_comparisons_are_those_of_the_evaluation(runs: Path, view: RunsView) -> None:
    (pair,) = metrics(runs, "compared")["comparisons"]
    found = table(view, f"{pair['model']} less {pair['baseline']}")
    overall = pair["differences"]["all"]["overall"]
    assert found.groups[0].rows[0].cells[1] == f"{100 * overall['estimate']['value']:+.2f}"
    assert found.groups[0].rows[0].cells[3] == f"{overall['p_value']:.4f}"
    assert f"p = {pair['permutation_p']:.4f}" in found.below[1]


def test_a_page_can_show_runs_alone(runs: Path, tmp_path: Path) -> None:
    found = report(out=tmp_path / "r.html", runs=runs)
    assert found.n_rollouts == 0
    markup = (tmp_path / "r.html").read_text()
    assert 'id="runs"' in markup
    assert 'id="select"' not in markup


def test_a_damaged_run_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bis_0", tmp_path / "run")
    with (tmp_path / "run" / "curve.jsonl").open("a") as lines:
        lines.write('{"update": 9}\n')
    with pytest.raises(DataError, match=r"curve\.jsonl:5: .*expected a line that mprm train writes"):
        read_runs([tmp_path / "run"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.json").write_text("{}")
    with pytest.raises(DataError, match="neither models nor totals"):
        read_runs([tmp_path / "other"])


def test_runs_that_differ_by_more_than_their_seed_are_told_apart(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bis_0", tmp_path / "a")
    shutil.copytree(runs / "bis_1", tmp_path / "b")
    options = json.loads((tmp_path / "b" / "train.json").read_text())
    (tmp_path / "b" / "train.json").write_text(json.dumps({**options, "learning_rate": 0.5}))
    chart = view_runs(read_runs([tmp_path])).charts[0]
    assert [one.name for one in chart.series] == ["bis 50%, learning_rate 0.001", "bis 50%, learning_rate 0.5"]


def test_two_models_of_one_name_are_both_shown(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "eval_bis_0", tmp_path / "a")
    shutil.copytree(runs / "eval_bis_0", tmp_path / "b")
    path = tmp_path / "b" / "metrics.json"
    content = json.loads(path.read_text())
    content["models"][0]["metrics"]["all"]["overall"]["value"] = 0.125
    path.write_text(json.dumps(content))
    found = table(view_runs(read_runs([tmp_path])), "Evaluation")
    assert [row.cells[0] for row in found.groups[0].rows] == ["bis_0", f"bis_0 ({tmp_path / 'b'})"]
    assert found.groups[0].rows[1].cells[1] == "12.50"

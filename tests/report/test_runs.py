"""Runs on the page: what training, evaluation and reranking folders turn into, and which are refused."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.data.output import Table
from mprm.errors import DataError
from mprm.report import report
from mprm.report.page import Best
from mprm.report.runs import NOT_COMPARED, RunsView, TrainedOn, best_marked, read_runs, view_runs
from tests.conftest import EXCERPTS, write_jsonl
from tests.evaluation.scorers import LengthScorer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("torch", "transformers", "math_verify"):
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


def table(view: RunsView, title: str) -> Table:
    return next(table for table in view.tables if table.title == title or table.title.startswith(f"{title}:"))


def headings(table: Table) -> list[str]:
    return [row[0] for row in table.rows if len(row) == 1]


def test_every_kind_of_run_is_recognised(runs: Path) -> None:
    all_runs = read_runs([runs])
    assert {run.folder.name: (run.trained_on.name, run.seed) for run in all_runs.training} == {
        "bis_0": ("bis 50%", 0),
        "bis_1": ("bis 50%", 1),
        "random_0": ("random 50%", 0),
        "all_0": ("all data", 0),
    }
    assert [run.folder.name for run in all_runs.training if run.trained_on.is_assumed] == ["all_0"]
    trained = {run.folder.name: run.trained_on for run in all_runs.evaluations}
    assert trained == {
        "eval_bis_0": TrainedOn(strategy="bis", rho=0.5),
        "eval_all_0": TrainedOn(strategy="all", rho=1.0, is_assumed=True),
        "compared": None,
    }
    assert [metrics.model for metrics in all_runs.rerankings] == ["short steps"]


def test_a_subset_that_select_wrote_is_known_by_its_manifest(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "all_0", folder)
    subset = tmp_path / "subset.jsonl"
    manifest = {"command": "select", "config": {"strategy": "mixed", "rho": 0.25}}
    Path(f"{subset}.manifest.json").write_text(json.dumps(manifest))
    summary = json.loads((folder / "data" / "summary.json").read_text())
    (folder / "data" / "summary.json").write_text(json.dumps({**summary, "inputs": [{"path": str(subset)}]}))
    (run,) = read_runs([folder]).training
    assert run.trained_on == TrainedOn(strategy="mixed", rho=0.25, is_assumed=False)


def test_seeds_are_shown_as_their_mean_within_their_range(runs: Path, view: RunsView) -> None:
    chart = next(chart for chart in view.charts if chart.name == "curve_overall")
    series = {line.name: line.points for line in chart.series}
    assert set(series) == {"bis 50%", "random 50%", "all data"}
    last = series["bis 50%"][-1]
    both = [curve(runs, name)[-1]["overall"] for name in ("bis_0", "bis_1")]
    assert (last.low, last.high) == (min(both), max(both))
    assert last.y == pytest.approx(sum(both) / 2)
    assert [point.x for point in series["all data"]] == [point["update"] for point in curve(runs, "all_0")]
    assert series["all data"][0].low is None
    assert [chart.title for chart in view.charts[1:3]] == [
        "Macro-F1 during training: bars",
        "Macro-F1 during training: lines",
    ]


def test_the_table_after_training_groups_by_rho_and_marks_the_best_of_each_group(runs: Path, view: RunsView) -> None:
    trained = table(view, "After training")
    assert trained.heads == ["model", "overall", "bars", "lines"]
    full_head, full, half_head, *half = trained.rows
    assert (full_head, half_head) == (("Full data",), ("50% subsets",))
    assert full[1] == f"{100 * curve(runs, 'all_0')[-1]['overall']:.2f}"
    assert not any(isinstance(cell, Best) for cell in full)
    assert [row[0] for row in half] == ["bis 50% (2 seeds)", "random 50%"]
    overall = [float(row[1]) for row in half]
    assert [isinstance(row[1], Best) for row in half] == [value == max(overall) for value in overall]
    assert "all data: all_0" in trained.notes[1]


def test_the_table_of_evaluations_has_the_paper_s_layout(runs: Path, view: RunsView) -> None:
    evaluated = table(view, "Evaluation")
    assert evaluated.title == "Evaluation: overall F1"  # of rollouts, which are no named benchmark
    assert evaluated.heads == ["model", "overall F1", "AUC", "bars", "lines"]
    assert "overall F1, AUC, then macro-F1 by source" in evaluated.notes[0]
    rows = {row[0]: row[1:] for row in evaluated.rows}
    assert headings(evaluated) == ["Full data", "50% subsets"]
    for name in ("all_0", "bis_0"):
        (model,) = metrics(runs, f"eval_{name}")["models"]
        values = [model["metrics"]["all"][metric]["value"] for metric in ("overall", "auc")]
        values += [source["macro_f1"]["value"] for source in model["metrics"]["sources"].values()]
        assert rows[model["name"]] == tuple(f"{100 * value:.2f}" for value in values)


@pytest.mark.parametrize(
    ("name", "metric", "title"),
    [
        ("processbench", "processbench_f1", "Evaluation on ProcessBench: ProcessBench F1"),
        ("prmbench", "prmscore", "Evaluation on PRMBench: PRMScore"),
    ],
)
def test_an_evaluation_names_its_benchmark_and_leads_with_its_metric(
    name: str, metric: str, title: str, tmp_path: Path
) -> None:
    files = [
        str(path) for path in (EXCERPTS / name).iterdir() if path.suffix != ".txt" and path.stem != "debug.jsonl"
    ]
    for model in ("a", "b"):
        scorer = LengthScorer()
        scorer.name = model
        out = tmp_path / "runs" / model
        mprm.evaluate(files, scorer, out=out, config=mprm.EvaluateConfig(threshold=0.9, draws=0))
    scores = [tmp_path / "runs" / model / "scores.jsonl" for model in ("a", "b")]
    mprm.evaluate(scores=scores, out=tmp_path / "runs" / "ab", threshold=0.9, draws=0)
    evaluated, compared = view_runs(read_runs([tmp_path / "runs"])).tables
    model = metrics(tmp_path / "runs", "a")["models"][0]["metrics"]
    sources = list(model["sources"])
    assert evaluated.title == title
    assert evaluated.heads == ["model", title.partition(": ")[2], "AUC", *sources]
    values = [model["all"][metric]["value"], model["all"]["auc"]["value"]]
    values += [model["sources"][source][metric]["value"] for source in sources]
    assert evaluated.rows[0] == ("a", *("–" if value is None else f"{100 * value:.2f}" for value in values))
    assert compared.title == f"b less a on {title.split()[2][:-1]}"
    assert [row[0].split(",")[0].split(":")[0] for row in compared.rows[:2]] == [title.partition(": ")[2], "AUC"]


def test_f1_against_rho_ends_in_the_full_data(runs: Path, view: RunsView) -> None:
    for name in ("scaling_curves", "scaling_evaluations"):
        chart = next(chart for chart in view.charts if chart.name == name)
        bis = next(line for line in chart.series if line.name == "bis")
        assert [point.x for point in bis.points] == [50.0, 100.0]
    (model,) = metrics(runs, "eval_all_0")["models"]
    assert bis.points[-1].y == model["metrics"]["all"]["overall"]["value"]


def test_best_of_n_has_every_method_with_its_interval(runs: Path, view: RunsView) -> None:
    chart = next(chart for chart in view.charts if chart.name == "best_of_n_1")
    written = metrics(runs, "reranked")["total"]["accuracy"]
    assert len(chart.series) == len(written)
    first = chart.series[list(written).index("prm")].points[-1]
    assert (first.x, first.y, first.low) == (4, written["prm"]["4"]["value"], written["prm"]["4"]["low"])


def test_calibration_is_the_share_of_correct_steps_in_each_bin(runs: Path, view: RunsView) -> None:
    chart = next(chart for chart in view.charts if chart.name == "calibration")
    lines = [json.loads(line) for line in (runs / "eval_bis_0" / "scores.jsonl").read_text().splitlines()]
    steps = [pair for line in lines for pair in zip(line["scores"], line["labels"], strict=True)]
    series = next(line for line in chart.series if line.name.endswith("bis_0"))
    for point in series.points:
        here = [(s, y) for s, y in steps if int(s * 15) == int(point.x * 15)]
        assert point.x == pytest.approx(sum(s for s, _ in here) / len(here))
        assert point.y == pytest.approx(sum(y == 1 for _, y in here) / len(here))


def test_paired_comparisons_are_those_of_the_evaluation(runs: Path, view: RunsView) -> None:
    (pair,) = metrics(runs, "compared")["comparisons"]
    compared = table(view, f"{pair['model']} less {pair['baseline']}")
    overall = pair["differences"]["all"]["overall"]
    assert compared.rows[0][1] == f"{100 * overall['estimate']['value']:+.2f}"
    assert compared.rows[0][3] == f"{overall['p_value']:.4f}"
    assert f"p = {pair['permutation_p']:.4f}" in compared.notes[1]


def test_a_page_can_show_runs_alone(runs: Path, tmp_path: Path) -> None:
    result = report(out=tmp_path / "r.html", runs=runs)
    assert result.n_rollouts == 0
    markup = (tmp_path / "r.html").read_text()
    assert 'id="runs"' in markup
    assert 'id="select"' not in markup


def test_a_damaged_run_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bis_0", tmp_path / "run")
    with (tmp_path / "run" / "curve.jsonl").open("a") as lines:
        lines.write('{"update": 9}\n')
    with pytest.raises(DataError, match=r"curve\.jsonl:5: .*expected what mprm wrote there"):
        read_runs([tmp_path / "run"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.json").write_text("{}")
    with pytest.raises(DataError, match="neither models nor totals"):
        read_runs([tmp_path / "other"])


def test_runs_that_differ_by_more_than_their_seed_are_lines_of_their_own(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bis_0", tmp_path / "a")
    shutil.copytree(runs / "bis_1", tmp_path / "b")
    options = json.loads((tmp_path / "b" / "train.json").read_text())
    (tmp_path / "b" / "train.json").write_text(json.dumps({**options, "learning_rate": 0.5}))
    chart = view_runs(read_runs([tmp_path])).charts[0]
    assert [line.name for line in chart.series] == ["bis 50%, learning_rate 0.001", "bis 50%, learning_rate 0.5"]


def test_two_models_of_one_name_are_both_shown(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "eval_bis_0", tmp_path / "a")
    shutil.copytree(runs / "eval_bis_0", tmp_path / "b")
    path = tmp_path / "b" / "metrics.json"
    content = json.loads(path.read_text())
    content["models"][0]["metrics"]["all"]["overall"]["value"] = 0.125
    path.write_text(json.dumps(content))
    _, first, second = table(view_runs(read_runs([tmp_path])), "Evaluation").rows
    assert (first[0], second[0]) == ("bis_0", f"bis_0 ({tmp_path / 'b'})")
    assert second[1] == "12.50"


def train(folder: Path, overall: float | None, *, select: dict[str, Any] | None = None, **options: Any) -> None:
    made = {"seed": 0, "model": "/a/base", "base_fingerprint": "1", "rollouts_xxh3_128": ["1"], **options}
    source = made.pop("source", "bars")
    points = [] if overall is None else [{"update": 1, "overall": overall, "macro_f1": {source: overall}}]
    write_jsonl(folder / "curve.jsonl", points)
    (folder / "train.json").write_text(json.dumps(made))
    (folder / "data").mkdir()
    (folder / "data" / "summary.json").write_text(json.dumps({"select": select, "inputs": []}))


def evaluation_metrics(name: str = "m", value: float = 0.5, source: str = "bars") -> dict[str, Any]:
    values = {metric: {"value": value} for metric in ("macro_f1", "auc", "processbench_f1", "prmscore")}
    metrics = {"all": {"overall": {"value": value}, **values}, "sources": {source: values}}
    headline = {"benchmark": "", "metric": "overall"}
    models = [{"name": name, "metrics": metrics}]
    return {"threshold": "held out", "headline": headline, "models": models, "comparisons": []}


def evaluate(folder: Path, name: str, value: float, source: str = "bars", select: Any = None) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(evaluation_metrics(name, value, source)))
    card = {"config": {"model_info": {"mprm.json": {"data": {"select": select}}}}}
    (folder / "metrics.json.manifest.json").write_text(json.dumps(card))


def viewed(*folders: Path) -> RunsView:
    return view_runs(read_runs(folders))


def names(view: RunsView, title: str) -> list[str]:
    return [row[0] for row in table(view, title).rows if len(row) > 1]


def lines(view: RunsView, name: str) -> list[list[float]]:
    charts = [chart for chart in view.charts if chart.name == name]
    return [[point.y for point in series.points] for chart in charts for series in chart.series]


def test_a_run_that_is_named_twice_is_one(tmp_path: Path) -> None:
    train(tmp_path / "a", 0.2)
    train(tmp_path / "b", 0.4, seed=1)
    assert names(viewed(tmp_path, tmp_path / "a"), "After training") == ["all data (2 seeds)"]


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
        view = viewed(tmp_path / str(number))
        assert len(names(view, "After training")) == 2, other
        assert sorted(lines(view, "curve_overall")) == [[0.2], [0.4]], other


def test_f1_against_rho_does_not_mix_settings(tmp_path: Path) -> None:
    for rate, value in ((0.1, 0.2), (0.2, 0.6)):
        train(tmp_path / f"all{rate}", value, learning_rate=rate)
        train(tmp_path / f"bis{rate}", value + 0.25, learning_rate=rate, select={"strategy": "bis", "rho": 0.5})
    view = viewed(tmp_path)
    assert lines(view, "scaling_curves") + lines(view, "scaling_curves_2") == [[0.45, 0.2], [0.85, 0.6]]


def test_f1_against_rho_does_not_mix_benchmarks(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", "all", 0.9)
    evaluate(tmp_path / "b", "bis", 0.3, source="lines", select={"strategy": "bis", "rho": 0.5})
    assert viewed(tmp_path).charts == []


def test_a_model_whose_name_begins_another_s_is_shown(tmp_path: Path) -> None:
    evaluate(tmp_path / "a", "run10", 0.5)
    evaluate(tmp_path / "b", "run1", 0.5)
    view = viewed(tmp_path)
    assert sorted(names(view, "Evaluation")) == ["run1", "run10"]
    assert "count as all data: run10, run1" in view.tables[0].notes[1]


def test_a_run_without_a_curve_is_named(tmp_path: Path) -> None:
    train(tmp_path / "bare", None)
    assert str(tmp_path / "bare") in viewed(tmp_path).tables[0].notes[-1]
    train(tmp_path / "measured", 0.5)
    view = viewed(tmp_path)
    assert names(view, "After training") == ["all data"]
    assert str(tmp_path / "bare") in view.tables[0].notes[-1]


def write_loss(path: Path, losses: list[float]) -> None:
    log = [{"step": step, "epoch": 0.1, "loss": loss, "grad_norm": math.nan} for step, loss in enumerate(losses, 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": len(log), "log_history": [*log, {"train_runtime": 1.0, "step": 3}]}))


def test_the_loss_of_a_run_without_a_benchmark_is_drawn(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(tmp_path / str(seed), None, seed=seed)
        write_loss(tmp_path / str(seed) / "trainer_state.json", [0.75, 0.5 + 0.25 * seed])
    (chart,) = viewed(tmp_path).charts
    assert (chart.name, chart.y, chart.is_percent) == ("loss", "loss", False)
    (series,) = chart.series
    assert [(p.x, p.y, p.low, p.high) for p in series.points] == [(1, 0.75, 0.75, 0.75), (2, 0.625, 0.5, 0.75)]


def test_an_unfinished_run_has_the_loss_of_its_last_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, None)
    for step in (2, 10):
        write_loss(tmp_path / "checkpoints" / f"checkpoint-{step}" / "trainer_state.json", [1.0] * step)
    assert lines(viewed(tmp_path), "loss") == [[1.0] * 10]


def test_a_long_loss_is_averaged(tmp_path: Path) -> None:
    train(tmp_path, None)
    write_loss(tmp_path / "trainer_state.json", [float(step % 2) for step in range(250)])
    (chart,) = viewed(tmp_path).charts
    # 250 steps at 100 points: windows of 3, the last of one; 0 + 1 + 0 is 1/3, 1 + 0 + 1 is 2/3
    assert len(chart.series[0].points) == 84
    assert [(p.x, p.y) for p in chart.series[0].points[:2]] == [(3, 1 / 3), (6, 2 / 3)]


def test_a_real_run_has_its_loss(runs: Path, view: RunsView) -> None:
    state = json.loads((runs / "all_0" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    chart = next(chart for chart in view.charts if chart.name == "loss")
    (line,) = [series for series in chart.series if series.name == "all data"]
    assert [point.y for point in line.points] == losses
    assert len(losses) == state["max_steps"]


def test_options_that_are_not_compared_are_options_of_training() -> None:
    options = {field.name for field in fields(pytest.importorskip("mprm.training").TrainConfig)}
    written_by_training = {"rollouts_xxh3_128", "base_fingerprint"}
    assert NOT_COMPARED - written_by_training <= options


def reranking_metrics(n: str) -> dict[str, Any]:
    accuracy = {"prm": {n: {"value": 0.5, "low": 0.4, "high": 0.6, "if_failed_correct": 0.5}}}
    total = {"n_questions": 1, "accuracy": accuracy, "lead": {}, "by_aggregate": {}}
    return {"model": "m", "aggregate": "min", "total": total}


def test_metrics_of_a_reranking_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(reranking_metrics("4")))
    (chart,) = viewed(tmp_path).charts
    assert [(point.x, point.y) for point in chart.series[0].points] == [(4, 0.5)]


def without(*path: Any) -> bytes:
    made = inner = evaluation_metrics()
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    "content",
    [
        without("models", 0, "metrics", "all", "overall"),
        without("models", 0, "metrics", "sources", "bars", "macro_f1"),
        json.dumps(evaluation_metrics()).encode().replace(b'"m"', b'"\xff"'),
        b'{"models":' + b"[" * 100_000,
        *(json.dumps(reranking_metrics(n)).encode() for n in ("abc", "0", "-1", "9" * 5000)),
    ],
    ids=["no overall", "no macro_f1", "not UTF-8", "deep", "abc", "0", "-1", "long"],
)
def test_metrics_that_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_bytes(content)
    with pytest.raises(DataError, match=r"metrics\.json: .*expected what mprm"):
        read_runs([tmp_path])


@pytest.mark.parametrize("info", [[1], "x", {"mprm.json": "x"}, {"mprm.json": {"data": [1]}}])
def test_a_manifest_whose_card_is_none(info: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(evaluation_metrics()))
    (tmp_path / "metrics.json.manifest.json").write_text(json.dumps({"config": {"model_info": info}}))
    with pytest.raises(DataError, match=r"manifest\.json: .*expected what mprm"):
        read_runs([tmp_path])


def _bad_curve(folder: Path) -> None:
    (folder / "curve.jsonl").write_bytes(b'{"update": 0, "overall": 0.5, "macro_f1": {"\xff": 0.5}}\n')


def _bad_options(folder: Path) -> None:
    (folder / "train.json").write_bytes(b'{"seed": 0, "model": "\xff"}')


@pytest.mark.parametrize(("spoil", "where"), [(_bad_curve, "curve.jsonl:1: "), (_bad_options, "train.json: ")])
def test_training_files_that_are_not_utf_8(spoil: Callable[[Path], None], where: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"seed": 0, "model": "base"}')
    spoil(tmp_path)
    with pytest.raises(DataError) as error:
        read_runs([tmp_path])
    assert where in str(error.value)


def test_the_best_of_each_column_is_marked_as_it_is_shown() -> None:
    # 0.50004 and 0.5 are shown alike, so that both are the best
    rows = best_marked([("bis", [0.50004, None]), ("random", [0.5, 0.25]), ("mixed", [0.4, None])])
    assert rows == [("bis", "50.00", "–"), ("random", "50.00", "25.00"), ("mixed", "40.00", "–")]
    assert [[isinstance(cell, Best) for cell in row[1:]] for row in rows] == [
        [True, False],
        [True, True],
        [False, False],
    ]


def test_a_single_row_has_no_best() -> None:
    assert not isinstance(best_marked([("a", [1.0])])[0][1], Best)

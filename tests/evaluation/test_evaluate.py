import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from mprm.cli.evaluate import run_evaluate as run
from mprm.data.benchmarks import read_benchmark
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm.evaluation.bootstrap import model_result
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.evaluation.metrics import step_counts
from mprm.evaluation.scores import ScoredSolutions, check_same_steps, read_scores
from mprm.progress import Advance
from tests.conftest import write_jsonl
from tests.evaluation.scorers import LengthScorer, scored

QUICK = EvaluateConfig(draws=50, folds=3)


def records(n: int = 12) -> list[dict[str, object]]:
    """ProcessBench records in which the wrong step is longest, mostly."""
    made = []
    for number in range(n):
        steps = ["short", "a little longer" + "!" * number, "x" * 200 if number % 4 else "x" * 8]
        made.append(
            {
                "id": f"r{number}",
                "problem": f"Question {number}?",
                "steps": steps,
                "label": 2 if number % 3 else -1,
                "generator": "g",
            }
        )
    return made


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "bench" / "gsm8k.jsonl", records(12))
    write_jsonl(tmp_path / "bench" / "math.jsonl", [{**r, "problem": f"M{r['problem']}"} for r in records(9)])
    return tmp_path / "bench"


def test_saved_scores_give_the_same_metrics_bit_for_bit(benchmark: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scored = evaluate(benchmark, model=LengthScorer(longest=2), config=QUICK, out=out)
    again = evaluate(scores=[out / "scores.jsonl"], config=QUICK)
    assert again.to_json()["models"] == scored.to_json()["models"]
    with_benchmark = evaluate(benchmark, scores=[out / "scores.jsonl"], config=QUICK)
    assert with_benchmark.to_json() == scored.to_json()
    assert json.loads((out / "metrics.json").read_text()) == json.loads(msgspec.json.encode(scored.to_json()))


def test_the_scores_file_has_one_line_a_solution_and_a_manifest(benchmark: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    evaluate(benchmark, model=LengthScorer(longest=2), config=QUICK, out=out)
    line = json.loads((out / "scores.jsonl").read_text().splitlines()[1])
    assert (line["id"], line["source"], line["labels"], line["first_error"]) == ("r1", "gsm8k", [1, 1, -1], 2)
    # "short" has 5 characters, "a little longer!" 16; the third step was cut off
    assert line["scores"] == [1 / 1.05, 1 / 1.16, None]
    manifest = json.loads((out / "scores.jsonl.manifest.json").read_text())
    assert manifest["config"]["model"] == "by length"
    assert manifest["config"]["model_info"] is None  # not of a folder
    assert [entry["format"] for entry in manifest["inputs"]] == ["processbench"] * 2
    assert all(entry["xxh3_128"] for entry in manifest["inputs"])
    assert manifest["output"]["n_unscored"] == 21
    assert (out / "metrics.json.manifest.json").exists()


def test_steps_cut_off_are_counted_and_told(benchmark: Path) -> None:
    evaluation = evaluate(benchmark, model=LengthScorer(longest=2), config=EvaluateConfig(threshold=0.5, draws=0))
    (model,) = evaluation.models
    # every third step is labelled, and gone; so every solution is without its first error
    counts = step_counts(model.table)
    assert (counts.n_unscored, counts.n_unscored_solutions, counts.n_counted) == (21, 21, 42)
    assert model.value("first_error_accuracy") is None
    warnings = evaluation.to_json()["models"][0]["warnings"]
    assert any("21 labelled steps have no score, cut off by truncation or not a number (nan)" in w for w in warnings)
    assert any("gsm8k*: every step is labelled correct" in warning for warning in warnings)
    assert any(row[0] == "gsm8k*" for row in evaluation.tables()[1].rows)


def test_every_output_says_when_the_threshold_was_chosen_on_the_reported_data(
    benchmark: Path, tmp_path: Path
) -> None:
    config = EvaluateConfig(threshold="test", draws=10)
    evaluate(benchmark, model=LengthScorer(), config=config, out=tmp_path / "first")
    evaluation = evaluate(
        benchmark,
        model=LengthScorer(factor=0.5),
        scores=[tmp_path / "first" / "scores.jsonl"],
        config=config,
        out=tmp_path / "out",
    )
    words = "CHOSEN ON THE REPORTED DATA ITSELF"
    assert words in evaluation.to_json()["threshold"]
    assert words in (tmp_path / "out" / "metrics.json").read_text()
    parts = (tmp_path / "out" / "metrics.md").read_text().split("## ")[1:]
    assert len(parts) == 4  # metrics, two models, one comparison
    assert all(words in part for part in parts)


def test_solutions_that_are_alike_are_scored_once(tmp_path: Path) -> None:
    again = [{**record, "id": f"again-{record['id']}"} for record in records(12)]
    path = write_jsonl(tmp_path / "a.jsonl", records(12) + again)
    scorer, calls = LengthScorer(), []

    @contextmanager
    def progress(title: str, total: int | None, unit: str = "items") -> Iterator[Advance]:
        assert (title, total) == ("scoring", 12)
        yield lambda n, _note="": calls.append(n)

    evaluation = evaluate(path, model=scorer, config=QUICK, progress=progress)
    assert len(scorer.chains) == sum(calls) == 12
    counts = step_counts(evaluation.models[0].table)
    assert (counts.n_solutions, counts.n_problems) == (24, 12)


def test_several_models_are_compared_with_the_first(benchmark: Path, tmp_path: Path) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    saved = tmp_path / "a" / "scores.jsonl"
    evaluation = evaluate(benchmark, model=LengthScorer(factor=0.5), scores=[saved, saved], config=QUICK)
    assert [model.name for model in evaluation.models] == ["by length", "by length (2)", "by length (3)"]
    assert [(c.model, c.baseline) for c in evaluation.comparisons] == [
        ("by length (2)", "by length"),
        ("by length (3)", "by length"),
    ]
    # half the scores: the order is the same, so the AUC is too
    assert evaluation.comparisons[1].differences[None, "auc"].estimate.value == 0
    assert evaluation.comparisons[1].differences[None, "ece"].estimate.value != 0
    assert "by length (2) less by length" in [table.title for table in evaluation.tables()]


def test_scores_of_another_benchmark_are_refused(benchmark: Path, tmp_path: Path) -> None:
    evaluate(benchmark / "math.jsonl", model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    with pytest.raises(DataError, match="solution 1 has source 'gsm8k' in the benchmark and 'math' in by length"):
        evaluate(benchmark, scores=[tmp_path / "a" / "scores.jsonl"], config=QUICK)


class Wrong(LengthScorer):
    """Answers with what it is told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def score_many(self, chains, **_options):
        return [self.answer for _ in chains]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.5, 0.5], "2 scores for 3 steps"),
        ([0.5, 0.5, 1.5], "step 2 has score 1.5; expected a probability"),
        ([0.5, -0.1, 0.5], "step 1 has score -0.1"),
        ([0.5, float("inf"), 0.5], "step 1 has score inf"),
    ],
)
def test_scores_that_are_no_probabilities_are_refused(benchmark: Path, answer: list[float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        evaluate(benchmark, model=Wrong(answer), config=QUICK)


def test_a_model_that_loses_every_step_is_refused(benchmark: Path) -> None:
    words = r"no labelled step could be scored: the model gives no number \(nan\), or every question is longer than"
    with pytest.raises(DataError, match=words):
        evaluate(benchmark, model=Wrong([float("nan")] * 3), config=QUICK)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": [0.5]}, "1 scores for 3 steps"),
        ({"scores": [0.5, 2, None]}, "step 1 has score 2.0"),
        ({"labels": [1, 1, 3]}, "step 2 has label 3"),
        ({"labels": [], "scores": []}, "no labels"),
        ({"first_error": 3}, "first error is step 3; by the labels"),
        # the first line's labels are 1 1 1
        ({"first_error": 0}, r"first error is step 0; by the labels \[1, 1, 1\] it is null, for none"),
        ({"labels": [1, -1, 1]}, r"first error is null, for none; by the labels \[1, -1, 1\] it is step 1"),
        ({"scores": ["x", 0.5, 0.5]}, "no line of a scores file"),
        ({"extra": 1}, "no line of a scores file"),
    ],
)
def test_a_bad_line_of_a_scores_file_is_named(benchmark: Path, tmp_path: Path, change: dict, words: str) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    good = json.loads((tmp_path / "a" / "scores.jsonl").read_text().splitlines()[0])
    path = write_jsonl(tmp_path / "bad.jsonl", [good, {**good, **change}])
    with pytest.raises(DataError, match=words) as error:
        read_scores(path)
    assert str(error.value).startswith(f"{path}:2: ")


def test_a_scores_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="no such file"):
        read_scores(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="holds no scores"):
        read_scores(write_jsonl(tmp_path / "empty.jsonl", []))


def test_scores_that_name_no_model_are_named_by_their_file(benchmark: Path, tmp_path: Path) -> None:
    evaluated = evaluate(benchmark, model=LengthScorer(longest=2), config=QUICK, out=tmp_path / "a")
    lines = [json.loads(line) for line in (tmp_path / "a" / "scores.jsonl").read_text().splitlines()]
    # null for a solution without error is as good as no field
    unnamed = [{"first_error": None, **line, "model": ""} for line in lines]
    path = write_jsonl(tmp_path / "unnamed.jsonl", unnamed)
    again = evaluate(benchmark, scores=path, config=QUICK)
    assert again.models[0].name == str(path)
    assert again.models[0].metrics == evaluated.models[0].metrics


def test_scores_of_other_steps_are_refused(benchmark: Path, tmp_path: Path) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    changed = [{**record, "steps": ["another", *record["steps"][1:]]} for record in records(12)]
    write_jsonl(benchmark / "gsm8k.jsonl", changed)
    with pytest.raises(DataError, match=r"solution 1 has chain_xxh3 .* in the benchmark and .* in by length"):
        evaluate(benchmark, scores=tmp_path / "a" / "scores.jsonl", config=QUICK)


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", "other"), ("labels", (1, 1)), ("problem", "z"), ("source", "z"), ("first_error", None)],
)
def test_other_solutions_are_refused_with_the_first_mismatch(field: str, value: object) -> None:
    same = [scored([1, -1], [0.9, 0.1], id="0"), scored([1, -1], [0.9, 0.1], id="1")]
    other = [same[0], msgspec.structs.replace(same[1], **{field: value})]
    first = ScoredSolutions(model="A", solutions=tuple(same))
    with pytest.raises(DataError, match=rf"solution 2 has {field} .* in A and .* in B"):
        check_same_steps(first, ScoredSolutions(model="B", solutions=tuple(other)))
    with pytest.raises(DataError, match="A has 2 solutions and B 1"):
        check_same_steps(first, ScoredSolutions(model="B", solutions=tuple(same[:1])))
    check_same_steps(first, first)


def test_the_metrics_of_scored_solutions_are_those_of_the_evaluation(benchmark: Path, tmp_path: Path) -> None:
    evaluation = evaluate(benchmark, model=LengthScorer(longest=2), draws=0, out=tmp_path / "a")
    # as training computes them for its learning curve
    result = model_result(read_scores(tmp_path / "a" / "scores.jsonl").solutions)
    assert result.metrics == evaluation.models[0].metrics


def test_wrong_use_is_refused_before_anything_is_scored(benchmark: Path, tmp_path: Path) -> None:
    scorer = LengthScorer()
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        evaluate(benchmark)
    with pytest.raises(ConfigError, match="needs a benchmark"):
        evaluate(model=scorer)
    with pytest.raises(ConfigError, match="21 problems cannot be split into 30 folds"):
        evaluate(benchmark, model=scorer, config=EvaluateConfig(folds=30))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.md").touch()
    with pytest.raises(OutputExistsError, match="--force"):
        evaluate(benchmark, model=scorer, out=tmp_path / "out")
    assert scorer.chains == []
    evaluate(benchmark, model=scorer, config=QUICK, out=tmp_path / "out", force=True)


def test_saved_scores_are_not_replaced_while_they_are_measured(benchmark: Path, tmp_path: Path) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    saved = tmp_path / "a" / "scores.jsonl"
    before = saved.read_bytes()
    with pytest.raises(ConfigError, match="is one of the inputs"):
        evaluate(
            benchmark, model=LengthScorer(factor=0.5), scores=saved, config=QUICK, out=tmp_path / "a", force=True
        )
    evaluate(scores=saved, config=QUICK, out=tmp_path / "a", force=True)  # writes metrics only
    assert saved.read_bytes() == before


@pytest.mark.parametrize("name", ["scores.jsonl", "metrics.json", "metrics.json.manifest.json"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_benchmark_is_never_replaced_by_its_own_evaluation(tmp_path: Path, name: str, is_link: bool) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if is_link:
        path = write_jsonl(tmp_path / "bench.jsonl", records())
        (out / name).symlink_to(path)
    else:
        path = write_jsonl(out / name, records())
    before, scorer = path.read_bytes(), LengthScorer()
    for benchmark in (path, out / "." / name, read_benchmark(path)):
        with pytest.raises(ConfigError, match=f"{name} would be replaced, and is one of the inputs"):
            evaluate(benchmark, model=scorer, config=QUICK, out=f"{out}/../out/", force=True)
        with pytest.raises(ConfigError, match="is one of the inputs"):
            evaluate(benchmark, model=scorer, config=QUICK, out=f"file://{out}", force=True)
    assert (path.read_bytes(), scorer.chains) == (before, [])
    evaluate(path, model=scorer, config=QUICK, out=tmp_path / "other", force=True)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_scored(
    benchmark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = LengthScorer()
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"/file is a file; .* cannot be a folder for outputs"):
            evaluate(benchmark, model=scorer, config=QUICK, out=out)

    def read_only(**_options: object) -> None:
        raise OSError(30, "Read-only file system", str(tmp_path))

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(ConfigError, match=r"nothing can be written into .* \(Read-only file system\)"):
        evaluate(benchmark, model=scorer, config=QUICK, out=tmp_path / "new" / "out")
    assert scorer.chains == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("limit", "family", "name"),
    # scores.jsonl and the work that is kept have less than 40 KB, the metrics of 30 sources more than 80
    [
        (100, "", "scores.jsonl.partial"),
        (40_000, "", "metrics.json"),
        (40_000, "x" * 40_000, "scores.jsonl.manifest.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    model: Path, tmp_path: Path, limit: int, family: str, name: str
) -> None:
    resource = pytest.importorskip("resource")
    for number in range(30):
        write_jsonl(tmp_path / "bench" / f"source-{number}.jsonl", records(2))
    (model / "prm_config.json").write_text(json.dumps({"family": family}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # stands for a full device
    try:
        with pytest.raises(OSError, match=r"File too large|disk I/O error") as error:
            evaluate(tmp_path / "bench", model=model, draws=0, threshold=0.5, out=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(tmp_path / "out" / name)
    # once there is room, the same command goes on
    evaluate(tmp_path / "bench", model=model, draws=0, threshold=0.5, out=tmp_path / "out")
    assert not (tmp_path / "out" / "scores.jsonl.partial").exists()


def test_lines_of_a_scores_file_that_occur_twice_are_told(benchmark: Path, tmp_path: Path) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    once = tmp_path / "a" / "scores.jsonl"
    assert evaluate(scores=once, config=QUICK).notes == ()
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(once.read_bytes() * 2)
    evaluation = evaluate(scores=twice, config=QUICK, out=tmp_path / "b")
    # there are 21 solutions
    (note,) = evaluation.notes
    assert note.startswith("21 records: the line is the same in every field as an earlier one")
    assert f"{twice}:22" in note
    assert note in (tmp_path / "b" / "metrics.md").read_text()


def test_names_from_data_cannot_command_the_terminal(tmp_path: Path, capsys) -> None:
    evil = "a\x1b[31mred\x9b|\n[bold]b[/bold]"
    visual = {"question": "q", "data_source": evil, "response": {"steps": ["a", "b"], "process_correctness": [1, -1]}}
    path = write_jsonl(tmp_path / "x.jsonl", [visual, {**visual, "question": "other"}])
    scorer = LengthScorer()
    scorer.name = "model\x1b]0;title\x07[bold]"
    config = EvaluateConfig(draws=0, threshold=0.5, text_only=True)
    evaluate(path, model=scorer, config=config, out=tmp_path / "out")
    saved = str(tmp_path / "out" / "scores.jsonl")
    assert run(["--scores", saved, "--threshold", "0.5", "--draws", "0", "--verbose"]) == 0
    printed, written = capsys.readouterr().out, (tmp_path / "out" / "metrics.md").read_text()
    for text in (printed, written):
        assert not set(text.replace("\n", "")) & {"\x1b", "\x9b", "\x07", "\r"}
    assert r"model\x1b]0;title\x07[bold] by source" in printed
    assert r"model\\x1b]0;title\\x07[bold] by source" in written  # which Markdown shows alike
    assert r"a\x1b[31mred\x9b|\n[bold]b[/bold]" in printed
    assert r"| a\\x1b[31mred\\x9b\|\\n[bold]b[/bold] |" in written
    # numbers for programs keep the name as it is
    assert evil in json.loads((tmp_path / "out" / "metrics.json").read_text())["models"][0]["source_counts"]


def test_scores_are_kept_when_the_metrics_fail(tmp_path: Path) -> None:
    # the labels are all of one problem: no threshold can be held out, which only the labels and scores show
    neutral = {"prompt": "q1", "completions": ["a"], "labels": [True]}
    visual = {"question": "q", "response": {"steps": ["a"], "process_correctness": [0]}}
    path = tmp_path / "bench"
    write_jsonl(path / "a.jsonl", [neutral])
    write_jsonl(path / "b.jsonl", [visual])
    config = EvaluateConfig(folds=2, draws=0, text_only=True)
    with pytest.raises(ConfigError, match="some fold holds every labelled step"):
        evaluate(path, model=LengthScorer(), config=config, out=tmp_path / "out")
    assert len((tmp_path / "out" / "scores.jsonl").read_text().splitlines()) == 2
    evaluation = evaluate(scores=[tmp_path / "out" / "scores.jsonl"], config=EvaluateConfig(threshold=0.5, draws=0))
    assert step_counts(evaluation.models[0].table).n_counted == 1


def test_a_benchmark_with_only_neutral_steps_is_refused(tmp_path: Path) -> None:
    visual = {"question": "q", "response": {"steps": ["a"], "process_correctness": [0]}}
    path = write_jsonl(tmp_path / "a.jsonl", [visual])
    with pytest.raises(DataError, match="no step is labelled correct or incorrect"):
        evaluate(path, model=LengthScorer(), config=EvaluateConfig(threshold=0.5, text_only=True))


@pytest.mark.parametrize(
    "options",
    [{"threshold": 1.5}, {"threshold": "best"}, {"threshold": float("nan")}, {"folds": 1}, {"draws": -1}, {"seed": -1},
     {"tau": 1.0}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        EvaluateConfig(**options)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, and a PRM that only notes how it was loaded."""
    folder = tmp_path / "runs" / "bis10"
    folder.mkdir(parents=True)
    (folder / "mprm.json").write_text('{"family": "tiny"}')  # as earlier versions call it

    class PRM(LengthScorer):
        @classmethod
        def from_pretrained(cls, path: str, **options: object) -> "PRM":
            scorer = cls()
            scorer.name = Path(path).name
            loaded.update(options)
            return scorer

    loaded: dict[str, object] = {}
    module = ModuleType("mprm.models.prm")
    module.PRM, module.loaded = PRM, loaded
    monkeypatch.setitem(sys.modules, "mprm.models.prm", module)
    return folder


def test_the_command_scores_saves_and_prints(benchmark: Path, model: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    options = ["--model", str(model), "--out", str(out), "--draws", "20", "--device", "cpu", "--batch-tokens", "99"]
    assert run([str(benchmark), *options, "--verbose"]) == 0
    text = capsys.readouterr().out
    assert "bis10 by source" in text
    assert "Threshold held out: chosen on the other 4 of 5 folds of problems" in text
    loaded = sys.modules["mprm.models.prm"].loaded
    options_of_model = {"image_root": None, "tokens_per_batch": 99, "prompt_layout": None, "prm_layout": None}
    options_of_model["lower_bound"] = None
    assert loaded == {"device": "cpu", "dtype": "auto", **options_of_model}
    manifest = json.loads((out / "metrics.json.manifest.json").read_text())
    assert manifest["config"]["model_info"] == {"path": str(model), "prm_config.json": {"family": "tiny"}}
    with pytest.raises(OutputExistsError):
        run([str(benchmark), *options])
    assert run([str(benchmark), *options, "--force", "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert evaluation["models"][0]["name"] == "bis10"
    assert evaluation["models"][0]["metrics"]["all"]["overall"]["n_draws"] == 20


def test_the_command_measures_saved_scores_without_benchmark_or_model(
    benchmark: Path, tmp_path: Path, capsys
) -> None:
    evaluate(benchmark, model=LengthScorer(), config=QUICK, out=tmp_path / "a")
    saved = str(tmp_path / "a" / "scores.jsonl")
    assert run(["--scores", saved, saved, "--threshold", "0.5", "--draws", "0", "--out", str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out
    assert "Threshold fixed at 0.5" in text
    assert "by length (2) less by length" in text
    assert not (tmp_path / "b" / "scores.jsonl").exists()
    assert (
        (tmp_path / "b" / "metrics.md")
        .read_text()
        .startswith("# Evaluation\n\n## Metrics on ProcessBench\n\n| metric |")
    )


def test_the_command_refuses_what_makes_no_sense(benchmark: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="expected held-out, test or a number"):
        run([str(benchmark), "--model", str(model), "--threshold", "best"])
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        run([str(benchmark)])


def test_images_are_looked_for_before_the_model_is_loaded(tmp_path: Path, model: Path) -> None:
    visual = {"image": "1.png", "question": "q", "response": {"steps": ["a"], "process_correctness": [1]}}
    path = write_jsonl(tmp_path / "test.jsonl", [visual])
    with pytest.raises(InputNotFoundError, match="1 of 1 images are not under"):
        run([str(path), "--model", str(model), "--image-root", str(tmp_path)])
    assert sys.modules["mprm.models.prm"].loaded == {}


def test_images_are_decoded_before_the_model_is_loaded(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("PIL")
    visual = {"image": "1.png", "question": "q", "response": {"steps": ["a"], "process_correctness": [1]}}
    path = write_jsonl(tmp_path / "test.jsonl", [visual])
    (tmp_path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match=rf"1 of 1 images cannot be used.*\n{path}:1: image {tmp_path}/1.png"):
        run([str(path), "--model", str(model), "--image-root", str(tmp_path)])
    assert sys.modules["mprm.models.prm"].loaded == {}


def test_the_home_folder_is_meant_the_same_everywhere(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "images").mkdir()
    image.new("RGB", (4, 4)).save(tmp_path / "images" / "1.png")
    visual = {"image": "1.png", "question": "q", "response": {"steps": ["a", "b"], "process_correctness": [1, -1]}}
    path = write_jsonl(tmp_path / "test.jsonl", [visual])
    options = ["--model", str(model), "--image-root", "~/images", "--threshold", "0.5", "--draws", "0"]
    assert run([str(path), *options, "--out", "~/out"]) == 0
    assert sys.modules["mprm.models.prm"].loaded["image_root"] == str(tmp_path / "images")
    manifest = json.loads((tmp_path / "out" / "metrics.json.manifest.json").read_text())
    assert manifest["config"]["image_root"] == str(tmp_path / "images")


def test_evaluating_loads_no_torch() -> None:
    import subprocess

    code = "import mprm.evaluation.evaluate, mprm.cli.evaluate, sys; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]

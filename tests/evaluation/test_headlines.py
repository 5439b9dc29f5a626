"""The metric that each benchmark's authors report, the summary of one screen, and evaluations that were stopped."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mprm.cli.evaluate import run_evaluate as run
from mprm.data.output import Table
from mprm.data.types import Chain
from mprm.errors import ConfigError
from mprm.evaluation.evaluate import EvaluateConfig, evaluate
from mprm.progress import Progress, silent
from tests.conftest import PUBLIC, write_jsonl
from tests.evaluation.scorers import LengthScorer

QUICK = EvaluateConfig(threshold=0.5, draws=0)


def pseudo_score(step: str) -> float:
    return hashlib.sha256(step.encode()).digest()[0] / 255


class HashScorer:
    """Scores that depend on the text of a step alone; counts what it scored, and stops where it is told to."""

    def __init__(self, name: str = "by hash", *, stops_after: int | None = None) -> None:
        self.name, self.stops_after, self.n_scored = name, stops_after, 0

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        if self.stops_after is not None and self.n_scored + len(chains) > self.stops_after:
            raise KeyboardInterrupt
        self.n_scored += len(chains)
        return [[pseudo_score(step) for step in chain.steps] for chain in chains]


@pytest.mark.parametrize("size", PUBLIC)
def test_prmscore_is_that_of_prmbench_s_own_evaluation(size: str) -> None:
    """Steps of the modified solutions, pooled: half the F1 of correct and half that of incorrect steps."""
    folder = PUBLIC[size] / "prmbench"
    hits: dict[str | None, dict[tuple[bool, bool], int]] = {}
    seen = set()
    for path in sorted(folder.glob("prm*.gz")):
        for text in gzip.open(path, "rt", encoding="utf-8"):
            record = json.loads(text)
            key, n = (record["classification"], record["idx"]), len(record["modified_process"])
            errors = set(record["error_steps"])
            if key in seen or (errors and min(errors) > n):  # the first of each id; errors are unknown in a few
                continue
            seen.add(key)
            for number, step in enumerate(record["modified_process"], 1):
                cell = (number not in errors, pseudo_score(step) >= 0.5)
                for source in (None, record["classification"]):
                    counts = hits.setdefault(
                        source, dict.fromkeys([(a, b) for a in (True, False) for b in (True, False)], 0)
                    )
                    counts[cell] += 1
    evaluation = evaluate(sorted(folder.glob("prm*.gz")), HashScorer(), threshold=0.5, draws=0)
    (model,) = evaluation.models
    assert (evaluation.benchmark, evaluation.headline) == ("PRMBench", "prmscore")
    for source, counts in hits.items():
        tp, fn, fp, tn = (counts[a, b] for a in (True, False) for b in (True, False))
        f1, negative_f1 = 2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fp + fn)
        expected = f1 if source == "multi_solutions" else 0.5 * f1 + 0.5 * negative_f1
        assert model.value("prmscore", source) == pytest.approx(expected, abs=1e-12), source
    assert model.value("prmscore") != pytest.approx(model.value("macro_f1"), abs=1e-3)  # originals do not count


def test_prmscore_counts_the_first_of_an_id_and_no_original(tmp_path: Path) -> None:
    common = {
        "original_question": "q",
        "modified_question": "q",
        "question": "q",
        "modified_steps": [2],
        "reason": "",
    }
    steps = {"original_process": ["a", "b"], "modified_process": ["a", "x" * 300]}
    record = {"idx": "1", **common, **steps, "error_steps": [2], "classification": "confidence"}
    again = {**record, "modified_process": ["y" * 300, "c"]}  # scored the wrong way round
    path = write_jsonl(tmp_path / "p.jsonl", [record, again])
    (model,) = evaluate(path, LengthScorer(), threshold=0.5, draws=0).models
    assert model.value("prmscore") == model.value("prmscore", "confidence") == 1
    # of all: correct a b | a | a b | c and y, of which y is below the threshold; incorrect x, and c that is not found
    assert model.value("macro_f1") < 1


@pytest.mark.parametrize(
    ("name", "record", "title", "metric"),
    [
        ("p", {"problem": "q", "steps": ["a", "b"], "label": 1}, "ProcessBench", "processbench_f1"),
        ("v", {"question": "q", "response": {"steps": ["a", "b"], "process_correctness": [1, -1]}, "data_source": "MMMU"}, "VisualProcessBench", "overall"),
        ("own", {"question": "q", "response": {"steps": ["a", "b"], "process_correctness": [1, -1]}}, "", "overall"),
        ("r", {"prompt": "q", "completions": ["a", "b"], "labels": [True, False]}, "", "overall"),
    ],
)  # fmt: skip
def test_each_benchmark_leads_with_its_own_metric(
    name: str, record: dict[str, Any], title: str, metric: str, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / f"{name}.jsonl", [record])
    config = EvaluateConfig(threshold=0.5, draws=0, text_only=True)
    evaluation = evaluate(path, LengthScorer(), config=config, out=tmp_path / "out")
    assert evaluation.to_json()["headline"] == {"benchmark": title, "metric": metric}
    assert evaluation.metrics[:2] == [metric, "auc"]
    assert "prmscore" not in evaluation.metrics
    again = evaluate(scores=tmp_path / "out" / "scores.jsonl", config=config)  # the scores file says what it is of
    assert (again.benchmark, again.headline) == (title, metric)


def test_the_summary_of_two_models_fits_on_a_screen_and_shows_what_decides(tmp_path: Path, capsys: Any) -> None:
    for name in ("random10-qwen2.5-vl-7b", "bis10-qwen2.5-vl-7b"):
        config = EvaluateConfig(threshold=0.5, draws=0)
        evaluate(f"{PUBLIC['excerpt']}/processbench/*.json", HashScorer(name), config=config, out=tmp_path / name)
    scores = [str(tmp_path / name / "scores.jsonl") for name in ("random10-qwen2.5-vl-7b", "bis10-qwen2.5-vl-7b")]
    options = ["--scores", *scores, "--draws", "50"]
    assert run(options) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert len(lines) <= 36
    value = r"0\.\d{4} \(0\.\d{3}–0\.\d{3}\)"
    assert re.search(rf"ProcessBench\s*\n\s*model\s+F1\s+AUC[\s─]+\n\s*random10-\S+\s+{value}\s+{value}", text)
    assert re.search(r"bis10-qwen2\.5-vl-7b less random10-qwen2\.5-vl-7b\s*\n\s*metric\s+difference\s+p", text)
    assert re.search(r"ProcessBench F1\s+\+0\.0000 \(\+0\.000 to \+0\.000\)\s+1\.0000", text)
    assert "ProcessBench F1 by source" in text
    assert run([*options, "--verbose"]) == 0
    verbose = capsys.readouterr().out
    assert verbose.startswith(text[: text.index("Every metric and source")])
    assert "average precision of error steps" in verbose
    assert "average precision of error steps" not in text


def test_a_summary_of_many_sources_is_short_too(tmp_path: Path) -> None:
    for number in range(30):  # of each, all steps are correct
        write_jsonl(tmp_path / "bench" / f"s{number}.jsonl", [{"problem": "q", "steps": ["a"], "label": -1}])
    write_jsonl(tmp_path / "bench" / "t.jsonl", [{"problem": "q", "steps": ["a"], "label": 0}])
    (table,) = evaluate(tmp_path / "bench", LengthScorer(), config=QUICK).summary()
    assert table.notes[-2:] == [
        "s10: every step is labelled correct; the F1 of the other class counts as 0, and AUC and average precision are"
        " undefined.",
        "28 more warnings: --verbose.",
    ]


def many(folder: Path, n: int = 700) -> Path:
    return write_jsonl(
        folder / "p.jsonl",
        [{"id": f"{i}", "problem": f"{i}?", "steps": [f"a{i}", f"b{i}"], "label": i % 3 - 1} for i in range(n)],
    )


def test_an_evaluation_that_was_stopped_continues(tmp_path: Path) -> None:
    path, out = many(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        evaluate(path, HashScorer(stops_after=600), config=QUICK, out=out)
    assert [file.name for file in out.iterdir()] == ["scores.jsonl.partial"]
    other = HashScorer("another")
    with pytest.raises(ConfigError, match="begun with other settings: model was 'by hash', now 'another'"):
        evaluate(path, other, config=QUICK, out=out)
    scorer = HashScorer()
    resumed = evaluate(path, scorer, config=QUICK, out=out)
    assert (scorer.n_scored, other.n_scored) == (700 - 512, 0)
    whole = evaluate(path, HashScorer(), config=QUICK, out=tmp_path / "whole")
    assert resumed.to_json() == whole.to_json()
    assert (out / "scores.jsonl").read_bytes() == (tmp_path / "whole" / "scores.jsonl").read_bytes()
    assert not (out / "scores.jsonl.partial").exists()


@pytest.mark.parametrize("name", ["scores.jsonl", "metrics.md", "metrics.json"])
def test_an_evaluation_that_was_killed_while_it_wrote_results_continues(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, replace = many(tmp_path, 20), tmp_path / "out", Path.replace

    def killed(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if Path(target).name == name:
            raise KeyboardInterrupt  # right after the file has its name
        return done

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(path, HashScorer(), config=QUICK, out=out)
    monkeypatch.undo()
    scorer = HashScorer()
    evaluate(path, scorer, config=QUICK, out=out)
    assert scorer.n_scored == 0
    whole = evaluate(path, HashScorer(), config=QUICK, out=tmp_path / "whole")
    for file in (tmp_path / "whole").glob("*[!t].json*"):
        assert (out / file.name).read_text() == file.read_text().replace(str(tmp_path / "whole"), str(out))
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in (tmp_path / "whole").iterdir())
    assert whole.models


def test_names_from_data_are_only_text_in_markdown(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> [c](http://x.y) ![p](http://x.y) `a` *b* _c_ a_b \\[d](e) &lt; ~~f~~ | [[g]](h) [i]"
    escaped = r"\<img src=x onerror=alert(1)> \[c](http://x.y) !\[p](http://x.y) \`a\` \*b\* \_c\_ a_b \\\[d](e) \&lt; \~\~f\~\~ \| \[\[g]](h) [i]"
    made = Table(title="t", heads=["source"], rows=[[evil]]).markdown()
    assert made.splitlines()[-1] == f"| {escaped} |"
    visual = {"question": "q", "data_source": evil, "response": {"steps": ["a", "b"], "process_correctness": [1, 1]}}
    path = write_jsonl(tmp_path / "x.jsonl", [visual])
    scorer = HashScorer(evil)
    evaluate(path, scorer, threshold=0.5, draws=0, text_only=True, out=tmp_path / "out")
    written = (tmp_path / "out" / "metrics.md").read_text()
    outside = escaped.replace(r"\|", "|")  # of a table
    assert f"## {outside} by source" in written  # the model's name
    assert rf"{outside}\*: every step is labelled correct" in written  # a warning
    assert "<img" not in written.replace(r"\<img", "")

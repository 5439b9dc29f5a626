import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.answers.grade import GradedAnswer
from mprm.cli.rerank import run_rerank as run
from mprm.data.candidates import read_candidates
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm.evaluation.rerank import FIGURES, RerankConfig, Reranking, candidate_verdicts, rerank
from mprm.evaluation.scores import RESULTS, SCORES
from mprm.progress import Progress, silent
from tests.annotation.full_disk import files_of_at_most
from tests.conftest import write_jsonl

WRITTEN = ("chosen.jsonl", *FIGURES, *RESULTS)
"""Beside the scores of a model."""


class Scorer:
    """Likes steps that say so: "good" 0.9, "cut" nan, anything else 0.2."""

    name = "likes-good"

    def __init__(self, *, stops_after: int | None = None) -> None:
        self.chains: list[Chain] = []
        self.stops_after = stops_after

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        if self.stops_after is not None and len(self.chains) >= self.stops_after:
            raise KeyboardInterrupt
        self.chains += chains
        with progress("scoring", len(chains)) as advance:
            advance(len(chains))
        words = {"good": 0.9, "cut": math.nan}
        return [[words.get(step.split()[0], 0.2) for step in chain.steps] for chain in chains]


def candidate(*steps: str) -> dict[str, Any]:
    return {"text": "\n\n".join(steps), "steps": list(steps), "finish_reason": "stop"}


def question(number: int, candidates: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    record = {"id": str(number), "source": "sums", "question": f"{number}+0?", "answer": str(number)}
    return {**record, "images": [], "options": [], "candidates": candidates, **fields}


RIGHT, WRONG = r"good \boxed{7}", r"good \boxed{8}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Question 7 twice, under two sources: once the PRM is right, once it is wrong; two candidates vote in each."""
    bad = [candidate("bad", r"bad \boxed{9}")] * 2
    records = [
        question(7, [*bad, candidate("good", RIGHT), candidate("cut")]),
        question(
            7,
            [candidate("good", WRONG), *[candidate(r"bad \boxed{7}")] * 2, {"text": "", "steps": []}],
            source="more",
        ),
    ]
    return write_jsonl(tmp_path / "candidates.jsonl", records)


def accuracy(reranking: Reranking, n: int) -> dict[str, float]:
    return {name: row[n].value for name, row in reranking.best_of_n.total.accuracy.items()}


def test_the_best_candidate_of_each_question_is_chosen_and_measured(files: Path) -> None:
    scorer = Scorer()
    reranking = rerank(files, scorer)
    assert [(chosen.source, chosen.candidate, chosen.verdict, chosen.answer) for chosen in reranking.chosen] == [
        ("sums", 2, "correct", "7"),
        ("more", 0, "wrong", "8"),
    ]
    assert reranking.chosen[0].score == pytest.approx(0.9)
    assert reranking.ns == (1, 2, 4)
    assert accuracy(reranking, 4) == {
        "prm": 0.5,  # right, wrong
        "weighted_vote": 0.5,  # 0.4 against 0.9; 0.9 against 0.4
        "majority_vote": 0.5,  # wrong, right
        "random": (1 / 4 + 2 / 4) / 2,
        "first": 0.0,
        "oracle": 1.0,
    }
    # the candidate without text has no steps, and two candidates of each question are alike
    assert len(scorer.chains) == 8 - 1 - 2
    counts = (
        reranking.n_candidates,
        reranking.n_unscored_candidates,
        reranking.n_unscored_steps,
        reranking.n_answerless,
    )
    assert counts == (8, 2, 1, 1)
    assert reranking.model == "likes-good"


def test_everything_is_written_and_can_be_computed_again_without_the_model(files: Path, tmp_path: Path) -> None:
    first = rerank(files, Scorer(), out=tmp_path / "a")
    again = rerank(files, scores=tmp_path / "a" / "scores.jsonl", out=tmp_path / "b")
    assert (again.to_json(), again.chosen) == (first.to_json(), first.chosen)
    for name in ("chosen.jsonl", "metrics.json", "metrics.md", "best_of_n.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert not (tmp_path / "b" / "scores.jsonl").exists()
    lines = [json.loads(line) for line in (tmp_path / "a" / "scores.jsonl").read_text().splitlines()]
    assert [line["scores"] for line in lines[:4]] == [[0.2, 0.2], [0.2, 0.2], [0.9, 0.9], [None]]
    assert [line["scores"] for line in lines[4:]] == [[0.9, 0.9], [0.2], [0.2], []]
    assert [line["id"] for line in lines] == ["7#0", "7#1", "7#2", "7#3"] * 2
    assert {line["model"] for line in lines} == {"likes-good"}
    scores_manifest = json.loads((tmp_path / "a" / "scores.jsonl.manifest.json").read_text())
    assert scores_manifest["inputs"][0]["path"] == str(files)
    chosen = [json.loads(line) for line in (tmp_path / "a" / "chosen.jsonl").read_text().splitlines()]
    assert chosen[0]["candidate"] == 2
    assert set(chosen[0]["by_aggregate"]) == {"mean", "min", "last", "product", "max"}
    assert chosen[0]["text"] == "good\n\n" + RIGHT
    manifest = json.loads((tmp_path / "a" / "metrics.json.manifest.json").read_text())
    assert manifest["sources"] == {
        "sums": {"questions": 1, "candidates": 4},
        "more": {"questions": 1, "candidates": 4},
    }
    assert len(manifest["inputs"]) == 2
    saved = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert saved["total"]["accuracy"]["prm"]["4"]["value"] == 0.5
    assert saved["sources"]["sums"]["accuracy"]["prm"]["4"]["value"] == 1.0


def test_the_figure_shows_every_method(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    rerank(files, Scorer(), out=tmp_path / "a")
    svg = (tmp_path / "a" / "best_of_n.svg").read_text()
    for words in (
        "highest PRM score",
        "majority vote",
        "oracle (pass@N)",
        "accuracy (%)",
        "candidates a question (N)",
    ):
        assert words in svg
    assert (tmp_path / "a" / "best_of_n.png").read_bytes()[:4] == b"\x89PNG"


def test_the_tables_are_readable(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    text = (tmp_path / "a" / "metrics.md").read_text()
    assert "| method | N = 1 | N = 2 | N = 4 |" in text
    assert "| oracle (pass@N) | 37.5 (" in text  # (1/4 + 2/4) / 2
    assert "2 of 8 candidates have no scored step" in text
    assert "| sums | 1 | 100.0 |" in text


def test_ties_are_drawn_by_the_seed_and_not_by_order(tmp_path: Path) -> None:
    records = [question(i, [candidate(rf"good \boxed{{{i}}}")] * 4) for i in range(40)]
    path = write_jsonl(tmp_path / "c.jsonl", records)
    reranking = rerank(path, Scorer())
    picks = [chosen.candidate for chosen in reranking.chosen]
    assert set(picks) == {0, 1, 2, 3}
    assert {chosen.n_tied for chosen in reranking.chosen} == {4}
    assert picks == [chosen.candidate for chosen in rerank(path, Scorer()).chosen]
    assert picks != [chosen.candidate for chosen in rerank(path, Scorer(), config=RerankConfig(seed=1)).chosen]


def test_the_aggregate_decides_about_the_choice(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "c.jsonl", [question(7, [candidate("bad", RIGHT), candidate("good", r"bad \boxed{8}")])]
    )
    last = rerank(path, Scorer(), config=RerankConfig(aggregate="last"))
    assert last.chosen[0].candidate == 0
    assert last.chosen[0].by_aggregate["mean"].n_tied == 2


def test_labels_of_the_file_need_no_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("the checker was called")

    monkeypatch.setattr("mprm.annotation.checker.AnswerChecker.__init__", refuse)
    record = {
        "question": "q",
        "solutions_splits": [["a", r"\boxed{3}"], [r"\boxed{3.0}"], [r"\boxed{5}"]],
        "labels": [1, 1, 0],
        "prm_scores": [[0.2, 0.4], [0.1], [0.9]],
    }
    path = write_jsonl(tmp_path / "c.jsonl", [record])
    reranking = rerank(path, config=RerankConfig(n=(3,)))
    assert reranking.model == "scores of the candidate files"
    # 3 and 3.0 vote together, against the label-0 answer that the PRM likes best
    assert accuracy(reranking, 3) == {
        "prm": 0.0, "weighted_vote": 0.0, "majority_vote": 1.0, "random": pytest.approx(2 / 3), "first": 1.0, "oracle": 1.0,
    }  # fmt: skip


SOLUTIONS = Path(__file__).parents[1] / "data" / "public" / "gsm8k" / "example_model_solutions.jsonl"
"""Of four models, with labels."""


def test_checked_answers_of_real_models_agree_with_the_labels_they_were_published_with(tmp_path: Path) -> None:
    own, labelled, labels = [], [], []
    for number, line in enumerate(SOLUTIONS.read_text().splitlines()):
        record = json.loads(line)
        solved = [entry for entry in record.values() if isinstance(entry, dict)]
        texts = [entry["solution"].replace("A: ", "The answer is ").replace("\n", "\n\n") for entry in solved]
        gold = record["ground_truth"].rsplit("A:", 1)[1].strip()
        labels.append([bool(entry["is_correct"]) for entry in solved])
        labelled.append({"prompt": record["question"], "answers": texts, "labels": labels[-1]})
        own.append(question(number, [{"text": text} for text in texts], question=record["question"], answer=gold))
    checked = rerank(write_jsonl(tmp_path / "own.jsonl", own), Scorer())
    given = rerank(write_jsonl(tmp_path / "labelled.jsonl", labelled), Scorer())
    assert checked.best_of_n.total == given.best_of_n.total
    assert accuracy(given, 4)["random"] == pytest.approx(sum(map(sum, labels)) / (4 * len(labels)))
    assert accuracy(given, 4)["oracle"] == pytest.approx(sum(map(any, labels)) / len(labels))
    # four models of different strength: their vote beats one of them drawn at random
    assert accuracy(given, 4)["majority_vote"] > accuracy(given, 4)["random"] + 0.05


def test_golds_that_are_rationales_are_read_and_their_share_is_reported(tmp_path: Path) -> None:
    golds = [json.loads(line) for line in (SOLUTIONS.parent / "test.jsonl").read_text().splitlines()]
    records = [
        {
            "question": gold["question"],
            "answer": gold["answer"],
            "candidates": [{"text": "So \\boxed{" + answer + "}."}],
        }
        for gold in golds
        for answer in [gold["answer"].rsplit("#### ", 1)[1]]
    ]
    records.append(question(7, [{"text": r"\boxed{7}"}], source="gsm8k"))
    reranking = rerank(write_jsonl(tmp_path / "c.jsonl", records), Scorer(), out=tmp_path / "out")
    assert accuracy(reranking, 1)["prm"] == 1.0  # of 100 raw golds all were wrong before
    assert reranking.n_extracted_golds == 100
    assert any("of 100 of 101 questions (99.0%) were read out of longer text" in note for note in reranking.notes())
    manifest = json.loads((tmp_path / "out" / "metrics.json.manifest.json").read_text())
    assert manifest["config"]["n_extracted_golds"] == 100


def test_a_gold_that_cannot_be_read_is_refused_unless_labels_decide(tmp_path: Path) -> None:
    record = question(7, [{"text": r"\boxed{7}"}], answer="Three and four.\nThey make seven.")
    with pytest.raises(DataError, match=r"c.jsonl:1: the gold answer 'Three and four.*states no final answer"):
        rerank(write_jsonl(tmp_path / "c.jsonl", [record]), Scorer())
    labelled = {"prompt": "?", "answer": record["answer"], "answers": ["7"], "labels": [1]}
    assert accuracy(rerank(write_jsonl(tmp_path / "l.jsonl", [labelled]), Scorer()), 1)["prm"] == 1.0


def test_verdicts_that_failed_are_reported_with_their_bound(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(sets: Any, **options: Any) -> list[list[GradedAnswer]]:
        verdicts = candidate_verdicts(sets, **options)
        verdicts[1][0] = GradedAnswer("failed", "8", "math-verify took longer than 5 s")
        return verdicts

    monkeypatch.setattr("mprm.evaluation.rerank.candidate_verdicts", judged)
    reranking = rerank(files, Scorer(), out=tmp_path / "a")
    assert (reranking.n_failed, reranking.failed_share) == (1, 1 / 8)
    best = reranking.best_of_n.total.accuracy["prm"][4]
    assert (best.value, best.if_failed_correct) == (0.5, 1.0)
    text = (tmp_path / "a" / "metrics.md").read_text()
    assert "could not decide on 1 candidate (12.50%)" in text
    assert "highest PRM score 100.0" in text
    assert json.loads((tmp_path / "a" / "metrics.json").read_text())["failed_share"] == 1 / 8


def hundred_questions(folder: Path) -> Path:
    """Two different candidates each."""
    answers = [[candidate(rf"good \boxed{{{i}}}"), candidate("so", rf"good \boxed{{{i}}}")] for i in range(100)]
    return write_jsonl(folder / "c.jsonl", [question(i, both) for i, both in enumerate(answers)])


def test_scoring_that_was_stopped_continues(tmp_path: Path) -> None:
    path = hundred_questions(tmp_path)
    out = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        rerank(path, Scorer(stops_after=1), out=out)
    assert not (out / "scores.jsonl").exists()
    scorer = Scorer()
    reranking = rerank(path, scorer, out=out)
    assert len(scorer.chains) == 2 * (100 - 64)  # 64 questions were scored and saved before
    assert reranking.to_json() == rerank(path, Scorer()).to_json()
    assert not (out / "scores.jsonl.partial").exists()


def test_scoring_is_not_continued_by_another_model_of_the_same_name(tmp_path: Path) -> None:
    class Trained(Scorer):
        def __init__(self, fingerprint: str, **settings: Any) -> None:
            super().__init__(**settings)
            self.fingerprint = fingerprint

    path = hundred_questions(tmp_path)
    out = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        rerank(path, Trained("1f2e", stops_after=1), out=out)
    with pytest.raises(ConfigError, match=r"begun with other settings: model_fingerprint was '1f2e', now '3d4c'"):
        rerank(path, Trained("3d4c"), out=out)
    scorer = Trained("1f2e")
    assert rerank(path, scorer, out=out).model == "likes-good"
    assert len(scorer.chains) == 2 * (100 - 64)


@pytest.mark.parametrize("change", [{"images": ["b.png"]}, {"images": []}, {"question": "8+0?"}])
def test_scores_of_another_question_or_other_images_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    record = question(7, [candidate("good", RIGHT)], images=["a.png"])
    rerank(write_jsonl(tmp_path / "c.jsonl", [record]), Scorer(), out=tmp_path / "a")
    changed = write_jsonl(tmp_path / "changed.jsonl", [{**record, **change}])
    words = r"scores\.jsonl: holds no scores for 1 of 1 questions, the first at .*changed\.jsonl:1: .*its images"
    with pytest.raises(DataError, match=words):
        rerank(changed, scores=tmp_path / "a" / SCORES)


@pytest.mark.parametrize("score", ["1.5", "-0.1", "1e308", "1e400", "1" + "0" * 400])
def test_saved_scores_out_of_range_are_refused_with_their_line(files: Path, tmp_path: Path, score: str) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    scores = tmp_path / "a" / SCORES
    first, second, *others = scores.read_text().splitlines()
    scores.write_text("\n".join([first, second.replace("0.2", score, 1), *others]))
    with pytest.raises(DataError, match=r"scores\.jsonl:2: .*(from 0 to 1|out of range)"):
        rerank(files, scores=scores)


def test_scores_of_candidates_and_of_benchmarks_are_not_mixed_up(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    with pytest.raises(DataError, match=r"scores\.jsonl:1: there are no labels; expected scores of a benchmark"):
        mprm.evaluate(scores=tmp_path / "a" / SCORES)


def test_a_question_with_two_different_lines_of_scores_is_refused(files: Path, tmp_path: Path) -> None:
    expected = rerank(files, Scorer(), out=tmp_path / "a")
    scores = tmp_path / "a" / SCORES
    text = scores.read_text()
    scores.write_text(text + text)
    assert rerank(files, scores=scores).to_json() == expected.to_json()  # the same twice does no harm
    scores.write_text(text + text.replace("0.2", "0.3"))
    words = r"scores\.jsonl:9: candidate '7#0' of 'sums' has other scores on a line before"
    with pytest.raises(DataError, match=words):
        rerank(files, scores=scores)


def test_scores_of_two_models_in_one_file_are_refused(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    scores = tmp_path / "a" / SCORES
    first, second, *others = scores.read_text().splitlines()
    scores.write_text("\n".join([first, second.replace("likes-good", "another"), *others]))
    with pytest.raises(DataError, match=r"scores\.jsonl:2: .*model 'another', those before of 'likes-good'"):
        rerank(files, scores=scores)


def test_a_model_that_scores_no_step_at_all_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [question(7, [candidate("cut", "cut"), {"text": "", "steps": []}])])
    with pytest.raises(DataError, match=r"likes-good: no step of the 2 candidates has a score.*gives nan"):
        rerank(path, Scorer())


def test_control_characters_of_the_data_reach_neither_terminal_nor_tables(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x9b3J\nmore"
    records = [json.loads(line) for line in files.read_text().splitlines()]
    records[0] |= {"source": evil, "id": evil, "answer": evil.replace("\n", " ")}
    path = write_jsonl(tmp_path / "evil.jsonl", records)
    scorer = Scorer()
    scorer.name = evil
    rerank(path, scorer, out=tmp_path / "a")
    assert run([str(path), "--scores", str(tmp_path / "a" / SCORES), "--out", str(tmp_path / "b")]) == 0
    shown, in_markdown = r"\x1b[2J\x9b3J\nmore", r"\\x1b[2J\\x9b3J\\nmore"
    written = (tmp_path / "b" / "metrics.md").read_text()
    for text, name in ((capsys.readouterr().out, shown), (written, in_markdown)):
        assert not {"\x1b", "\x9b"} & set(text)
        assert f"Model: {name}." in text
        assert text.count(name) == 2  # the model and the source
    with pytest.raises(DataError) as raised:
        rerank(write_jsonl(tmp_path / "twice.jsonl", [records[0], records[0]]), scorer)
    assert not {"\x1b", "\x9b"} & set(str(raised.value))


def test_scores_of_other_candidates_are_refused(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    scores = tmp_path / "a" / "scores.jsonl"
    other = write_jsonl(tmp_path / "other.jsonl", [question(7, [candidate("good", "changed")] * 4)])
    with pytest.raises(
        DataError, match=r"holds no scores for 1 of 1 questions.* these are scores of other candidates"
    ):
        rerank(other, scores=scores)
    more = write_jsonl(tmp_path / "more.jsonl", [question(8, [candidate("good")])])
    with pytest.raises(DataError, match="holds no scores for 1 of 1 questions"):
        rerank(more, scores=scores)
    scores.write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"scores\.jsonl:1: is no line of a scores file"):
        rerank(files, scores=scores)
    with pytest.raises(InputNotFoundError, match="no such file"):
        rerank(files, scores=tmp_path / "gone.jsonl")


def test_scores_of_more_questions_serve_for_some_of_them(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    first = json.loads(files.read_text().splitlines()[0])
    reranking = rerank(write_jsonl(tmp_path / "first.jsonl", [first]), scores=tmp_path / "a" / "scores.jsonl")
    assert [chosen.candidate for chosen in reranking.chosen] == [2]


def test_existing_results_are_kept_without_force(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    with pytest.raises(OutputExistsError):
        rerank(files, Scorer(), out=tmp_path / "a")
    rerank(files, Scorer(), out=tmp_path / "a", force=True)


@pytest.mark.parametrize("name", WRITTEN)
def test_each_output_is_looked_for_before_the_model_is_loaded(files: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "a" / name
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(OutputExistsError, match=name):
        rerank(files, tmp_path / "no-model", out=tmp_path / "a")
    assert mine.read_text() == "mine"


def test_the_outputs_that_are_looked_for_are_all_that_is_written(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    written = {path.name for path in (tmp_path / "a").iterdir()}
    assert written | {*FIGURES} == {*WRITTEN, SCORES, SCORES + ".manifest.json"}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", [*WRITTEN, SCORES, SCORES + ".partial"])
def test_the_candidates_are_never_replaced(files: Path, tmp_path: Path, name: str, force: bool) -> None:
    (tmp_path / "a").mkdir()
    candidates = files.rename(tmp_path / "a" / name)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    before = candidates.read_bytes()
    # a name like .png packs nothing: any file of lines is read
    with pytest.raises(ConfigError, match="is one of the inputs; choose another output"):
        rerank(candidates, Scorer(), out=tmp_path / "b", force=force)
    assert candidates.read_bytes() == before
    assert list((tmp_path / "a").iterdir()) == [candidates]


def test_the_saved_scores_are_never_replaced(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    scores = (tmp_path / "a" / SCORES).rename(tmp_path / "a" / "chosen.jsonl")
    before = scores.read_bytes()
    with pytest.raises(ConfigError, match=r"chosen\.jsonl would be replaced, and is one of the inputs"):
        rerank(files, scores=scores, out=tmp_path / "a", force=True)
    assert scores.read_bytes() == before
    rerank(files, scores=scores, out=tmp_path / "b")


@pytest.mark.parametrize("out", ["file", "file/below", "s3://bucket/folder"])
def test_a_folder_that_cannot_be_written_to_is_told_before_the_model_is_loaded(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot be a folder for outputs|name a local folder"):
        rerank(files, tmp_path / "no-model", out=out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidates.jsonl", "file"]


def test_a_full_disk_is_told_with_the_file_that_was_written(files: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"(disk I/O error|database or disk is full): .*scores\.jsonl\.partial'"),
        files_of_at_most(20),
    ):
        rerank(files, Scorer(), out=tmp_path / "a")
    rerank(files, Scorer(), out=tmp_path / "b")
    with pytest.raises(OSError, match=r"File too large: .*chosen\.jsonl'"), files_of_at_most(20):
        rerank(files, scores=tmp_path / "b" / SCORES, out=tmp_path / "c")


def test_scores_that_were_saved_before_a_run_broke_are_not_made_again_in_silence(files: Path, tmp_path: Path) -> None:
    rerank(files, Scorer(), out=tmp_path / "a")
    for name in WRITTEN:
        (tmp_path / "a" / name).unlink(missing_ok=True)
    with pytest.raises(OutputExistsError, match=r"holds scores already; use them with --scores .*scores\.jsonl"):
        rerank(files, Scorer(), out=tmp_path / "a")
    rerank(files, scores=tmp_path / "a" / "scores.jsonl", out=tmp_path / "a")


def test_an_image_that_is_not_there_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [question(1, [candidate("good", "1")], images=["a.png"])])
    with pytest.raises(DataError, match=r"question '1' of 'sums': image .*a\.png does not exist"):
        rerank(path, tmp_path / "no-model", image_root=tmp_path)


def test_n_beyond_the_candidates_names_the_question(files: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"N = 8 needs as many candidates of every question; .*candidates\.jsonl:1 has 4"
    ):
        rerank(files, Scorer(), config=RerankConfig(n=(8,)))


@pytest.mark.parametrize(
    ("n", "expected"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16))]
)
def test_powers_of_two_go_up_to_the_number_of_candidates(tmp_path: Path, n: int, expected: tuple[int, ...]) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [question(1, [candidate(rf"good \boxed{{{n}}}")] * n)])
    assert rerank(path, Scorer(), draws=1).ns == expected


def test_a_question_with_one_candidate_limits_n(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "c.jsonl", [question(1, [candidate("good 1")]), question(2, [candidate("good 2")] * 8)]
    )
    assert rerank(path, Scorer()).ns == (1,)


@pytest.mark.parametrize(
    "settings",
    [{"aggregate": "median"}, {"n": (0,)}, {"draws": 0}, {"check_timeout_s": 0}, {"subsets": "some"}, {"seed": -1}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RerankConfig(**settings)


def test_a_model_or_scores_must_be_named_but_not_both(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model DIR, or saved scores with --scores FILE"):
        rerank(files)
    with pytest.raises(ConfigError, match="not both"):
        rerank(files, Scorer(), scores=tmp_path / "scores.jsonl")


def test_the_images_and_the_bare_question_are_what_is_scored(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [question(1, [candidate("good", "1")], images=["a.png"])])
    scorer = Scorer()
    rerank(path, scorer)
    assert scorer.chains == [Chain("1+0?", ("good", "1"), ("a.png",))]


def test_the_command_prints_tables_or_json(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = rerank(files, Scorer(), out=tmp_path / "a")
    arguments = [str(files), "--scores", str(tmp_path / "a" / "scores.jsonl"), "--n", "1", "4"]
    assert run([*arguments, "--out", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "Accuracy, 2 questions (mean of step scores)" in shown
    assert "majority vote" in shown
    assert f"in {tmp_path / 'b'}" in shown
    assert run([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["n"] == [1, 4]
    assert printed["total"]["accuracy"]["prm"]["4"] == json.loads(
        json.dumps(expected.to_json()["total"]["accuracy"]["prm"]["4"])
    )
    with pytest.raises(SystemExit, match="2"):
        run([str(files), "--n", "1;2"])
    assert "argument --n: '1;2' is no whole number" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["text", "internvl"])
def test_a_real_reward_model_scores_what_a_real_policy_sampled(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from PIL import Image

    from mprm.cli.annotate import run_sample
    from mprm.models import PRM, PRMConfig
    from tests.tiny_models import save_tiny

    policy = str(save_tiny(kind, tmp_path / "policy"))
    Image.new("RGB", (120, 60), "red").save(tmp_path / "a.png")
    image = {"image": "a.png"} if kind == "internvl" else {}
    questions = write_jsonl(
        tmp_path / "q.jsonl", [{"id": str(i), "question": f"{i}+1?", "answer": "3", **image} for i in range(2)]
    )
    out = tmp_path / "c.jsonl"
    sampling = ["--policy", policy, "--out", str(out), "--n", "4", "--max-new-tokens", "30", "--temperature", "1.5"]
    images = ["--image-root", str(tmp_path)] if image else []
    assert run_sample([str(questions), *sampling, *images, "--device", "cpu"]) == 0
    sets = read_candidates(out)
    assert [len(entry.candidates) for entry in sets] == [4, 4]
    prm = str(tmp_path / "prm")  # random weights serve as a reward model, too
    PRM.from_pretrained(policy, PRMConfig(), device="cpu").save_pretrained(prm)
    ranked = tmp_path / "ranked"
    assert (
        run([str(out), "--model", prm, "--image-root", str(tmp_path), "--out", str(ranked), "--device", "cpu"]) == 0
    )
    lines = [json.loads(line) for line in (ranked / "scores.jsonl").read_text().splitlines()]
    assert [len(line["scores"]) for line in lines] == [len(c.steps) for entry in sets for c in entry.candidates]
    assert all(0 < score < 1 for line in lines for score in line["scores"])
    saved = json.loads((ranked / "metrics.json").read_text())
    assert (saved["model"], saved["n"], saved["n_candidates"]) == ("prm", [1, 2, 4], 8)


def test_one_candidate_a_question_is_measured_and_drawn(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "c.jsonl", [question(1, [candidate("good 1")]), question(2, [candidate(r"bad \boxed{3}")])]
    )
    reranking = rerank(path, Scorer(), out=tmp_path / "a")
    assert set(accuracy(reranking, 1).values()) == {0.0}  # "good 1" states no answer 1
    assert "N = 1" in (tmp_path / "a" / "metrics.md").read_text()

"""To and from pandas, polars, pyarrow and Hugging Face datasets."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import mprm
from mprm.errors import ConfigError, DataError
from tests.conftest import raw_record, write_jsonl

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")


@pytest.fixture
def corpus_(random_corpus: Path) -> mprm.Corpus:
    return mprm.open_corpus(random_corpus)


@pytest.mark.parametrize("kind", ["pandas", "polars", "dataset", "arrow"])
def test_there_and_back_again(corpus_: mprm.Corpus, kind: str) -> None:
    frame = getattr(corpus_, f"to_{kind}")()
    assert len(frame) == 138
    before = mprm.select(corpus_, rho=0.25)
    after = mprm.select(frame, rho=0.25)
    assert after.by_source(after.subsets[0]) == before.by_source(before.subsets[0])
    assert [r.scores for r in mprm.open_corpus(frame)] == [r.scores for r in corpus_]


def test_the_subset_of_a_frame_can_be_written_and_read(corpus_: mprm.Corpus, tmp_path: Path) -> None:
    mprm.select(corpus_.to_pandas(), rho=0.1).write(str(tmp_path / "o.parquet"))
    assert len(pd.read_parquet(tmp_path / "o.parquet")) == 14


def test_a_dataset_with_images_gives_their_paths(tmp_path: Path) -> None:
    rows = [raw_record([1.0, 0.0], number=i, image=str(i) + ".png") for i in range(3)]
    dataset = datasets.Dataset.from_list([{**row, "image": {"path": row["image"], "bytes": None}} for row in rows])
    dataset = dataset.cast_column("image", datasets.Image())
    assert [r.images for r in mprm.open_corpus(dataset)] == [("0.png",), ("1.png",), ("2.png",)]


def test_an_image_without_a_path_is_said() -> None:
    with pytest.raises(DataError, match="row 0: the image has bytes but no path"):
        mprm.open_corpus([raw_record([1.0], image={"bytes": "x", "path": None})])


def test_the_manifest_of_a_frame_names_no_temporary_path(tmp_path: Path) -> None:
    written = mprm.select([raw_record([1.0])], rho=1.0).write(str(tmp_path / "o.jsonl"))
    assert '"path": "(in memory)"' in Path(written.manifest).read_text()


TRL = [{"prompt": f"{n}?", "completions": ["a", "b"], "labels": [True, n > 0]} for n in range(3)]


def test_a_dataset_dict_is_its_one_split_or_the_error_names_the_splits() -> None:
    dataset = datasets.Dataset.from_list(TRL)
    assert mprm.select(datasets.DatasetDict(train=dataset), rho=1.0).n_read == 3
    with pytest.raises(ConfigError, match=r'has the splits train, test; expected one .* such as dataset\["train"\]'):
        mprm.select(datasets.DatasetDict(train=dataset, test=dataset))


@pytest.mark.parametrize(
    "call",
    [
        mprm.select,
        mprm.stats,
        mprm.score,
        lambda rows: mprm.convert(rows, "never_written.jsonl", to="trl"),
        lambda rows: mprm.report(rows, out="never_written.html"),
        lambda rows: list(mprm.open_corpus(rows)),
    ],
)
def test_errors_about_a_frame_name_the_row_and_no_file(call) -> None:
    with pytest.raises(
        DataError, match=r"^row 3: step 0 has score 7; expected 0 to 1\. List all bad .* mprm\.check\."
    ):
        call([*TRL, {"prompt": "?", "completions": ["a"], "labels": [7]}])
    with pytest.raises(DataError, match=r"^row 0: the record has the fields a"):
        call([{"a": 1}])


def test_what_is_wrong_with_a_frame_names_rows_everywhere(tmp_path: Path) -> None:
    rows = [*TRL, {"prompt": "?", "completions": ["a"], "labels": [7]}, TRL[0]]
    assert [str(issue)[:7] for issue in mprm.check(rows).issues] == ["row 3: ", "row 4: "]
    assert "same as row 0" in str(mprm.check(rows).issues[1])
    with pytest.raises(ConfigError, match=r"^\(in memory\): trl has binary labels"):
        mprm.convert(TRL, tmp_path / "o.jsonl", to="mm-prm-soft")
    mprm.select(rows, rho=1.0, skip_bad=True).write(tmp_path / "o.jsonl")
    dropped = json.loads((tmp_path / "o.dropped.jsonl").read_text())
    assert (dropped["file"], dropped["line"]) == ("(in memory)", 4)
    assert set(mprm.score(TRL).to_pandas()["file"]) == {"(in memory)"}


def test_scores_of_a_frame_are_those_of_its_file(tmp_path: Path) -> None:
    in_memory, written = mprm.score(TRL), mprm.score(TRL, tmp_path / "scores.parquet")
    assert in_memory.n_rollouts == written.n_rollouts == 3
    assert in_memory.to_arrow().equals(pq.read_table(tmp_path / "scores.parquet"))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"id": "1", "problem": "p", "steps": ["a"], "label": -1, "generator": "g", "final_answer_correct": True},
            "a solution of the step benchmark processbench; mprm evaluate reads it",
        ),
        (
            {"question": "q", "answer": "1 + 1 = 2\n#### 2"},
            "a question, format gsm8k; mprm annotate and mprm sample read it",
        ),
        (
            {"question": "q", "answer": "2", "candidates": [{"steps": ["2"]}]},
            "a question with candidates, format mprm; mprm rerank reads it",
        ),
    ],
)
def test_what_is_no_rollout_is_named_with_the_command_that_reads_it(
    record: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record])
    with pytest.raises(DataError, match=rf"x\.jsonl:1: the record is no rollout but {words}\."):
        mprm.stats(path)


def test_rows_that_are_no_records_are_bad_records() -> None:
    row = {"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}
    selection = mprm.select([row, None, 5], rho=1.0, skip_bad=True)
    assert (len(selection), len(selection.dropped)) == (1, 2)
    with pytest.raises(DataError, match="row 1: "):
        mprm.stats([row, None])
    with pytest.raises(DataError, match="row 1: text that is not Unicode"):
        mprm.stats([row, {**row, "prompt": "\ud800"}])

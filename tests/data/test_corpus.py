"""To and from pandas, polars, pyarrow and Hugging Face datasets."""

from pathlib import Path

import pytest

import mprm
from mprm.errors import DataError
from tests.conftest import raw_record

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

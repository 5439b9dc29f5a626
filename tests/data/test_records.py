import gzip
import json
from pathlib import Path

import pytest

import mprm
from mprm.data.questions import read_questions
from mprm.data.records import find_files, source_name
from mprm.errors import DataError, InputNotFoundError
from tests.conftest import raw_record, write_jsonl


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a/ai2d.jsonl", "ai2d"),
        ("ai2d.jsonl.gz", "ai2d"),
        ("s3://b/x.parquet", "x"),
        ("x-00001-of-00010.jsonl.zst", "x"),
        ("a.b.jsonl", "a.b"),
        ("noending", "noending"),
    ],
)
def test_the_source_is_the_files_name(path: str, source: str) -> None:
    assert source_name(path) == source


def test_a_file_named_twice_is_read_once(tmp_path: Path, monkeypatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    monkeypatch.chdir(tmp_path)
    assert len(find_files(["a.jsonl", "*.jsonl", str(tmp_path / "a.jsonl"), tmp_path])) == 1


def test_a_name_with_glob_letters_is_a_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a[1].jsonl", [raw_record([1.0])])
    assert [file.path for file in find_files(path)] == [str(path)]


def test_pipes_are_refused_because_input_is_read_twice(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputNotFoundError, match="regular file"):
        find_files(tmp_path / "pipe.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", b"not gzip"),
        ("b.jsonl.gz", gzip.compress(b"x" * 999, mtime=0)[:20]),
        ("c.jsonl.zst", b"not zstd"),
        ("d.parquet", b"not parquet"),
    ],
)
def test_broken_packing_names_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: cannot be read"):
        mprm.stats(tmp_path / name)


def test_an_empty_file_has_no_rollouts(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"")
    write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    assert mprm.stats(tmp_path).total.n_rollouts == 1
    assert mprm.check(tmp_path).counts == {"empty_file": 1}
    with pytest.raises(DataError, match="nothing to select from"):
        mprm.select(tmp_path / "empty.jsonl")


def test_no_way_of_naming_files_changes_the_choice(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("d1", "d2"):
        write_jsonl(tmp_path / folder / "x.jsonl", [raw_record([1.0], number=i) for i in range(20)])
    (tmp_path / "a_link.jsonl").symlink_to(tmp_path / "d1" / "x.jsonl")
    ways = [["d1/x.jsonl", "d2/x.jsonl"], [str(tmp_path / "d2" / "x.jsonl"), "d1/x.jsonl"]]
    assert len({tuple(Path(f.path).resolve() for f in find_files(way)) for way in ways}) == 1
    both = [["a_link.jsonl", "d1/x.jsonl"], ["d1/x.jsonl", "a_link.jsonl"]]
    assert len({tuple(f.source for f in find_files(way)) for way in both}) == 1


def test_hidden_folders_are_left_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    write_jsonl(tmp_path / ".ipynb_checkpoints" / "a-checkpoint.jsonl", [raw_record([1.0])])
    assert [file.source for file in find_files(tmp_path)] == ["a"]


def test_every_reader_takes_a_number_of_5000_digits_and_calls_it_infinite(tmp_path: Path) -> None:
    huge = b"9" * 5000
    raw = json.dumps(raw_record([1.0, 0.5])).encode()
    extra, score = raw[:-1] + b', "extra": ' + huge + b"}", raw.replace(b'"score": 0.5', b'"score": ' + huge)
    trl = b'{"prompt": "q", "completions": ["a"], "labels": [true], "extra": ' + huge + b"}"
    question = b'{"id": "1", "question": "q", "answer": "2", "extra": ' + huge + b"}"
    for name, content in {"raw.jsonl": extra, "trl.jsonl": trl, "a.json": b"[" + extra + b"]"}.items():
        (tmp_path / name).write_bytes(content + b"\n")
        assert mprm.check(tmp_path / name).n_errors == 0, name
        assert mprm.stats(tmp_path / name).total.n_rollouts == 1, name
    for name, content in {"q.jsonl": question, "q.json": b"[" + question + b"]"}.items():
        (tmp_path / name).write_bytes(content)
        assert read_questions(tmp_path / name)[0].answer == "2"
    path = tmp_path / "score.jsonl"
    path.write_bytes(score + b"\n")
    assert mprm.check(path).counts == {"score_out_of_range": 1}
    with pytest.raises(DataError, match="step 1 has score inf; expected 0 to 1"):
        mprm.stats(path)

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.data.questions import read_questions
from mprm.data.records import MAX_DEPTH, container_of, find_files, is_deep, source_name
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
        ("https://me:pw@host/x/ai2d.jsonl.gz?X-Sig=a/b.zst#c", "ai2d"),
        ("zip://a?b.jsonl::https://host/x.zip?key=c", "a?b"),
        ("hf://datasets/org/name@v1/a#1?.jsonl", "a#1?"),
    ],
)
def test_the_source_is_the_files_name(path: str, source: str) -> None:
    assert source_name(path) == source


def test_what_a_url_asks_for_is_no_ending() -> None:
    urls = (
        "https://host/a.jsonl.gz?key=b",
        "HTTP://host/a.parquet#b",
        "https://host/a.jsonl?as=b.gz",
        "s3://b/a.gz?",
    )
    assert [container_of(url) for url in urls] == ["gz", "parquet", "plain", "plain"]


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


# Nesting


def nested(depth: int) -> str:
    """A value that lies so many lists deep, with brackets and quotes that are text."""
    return "[" * depth + r'"]}\"[{"' + "]" * depth


def deep_line(record: dict[str, Any], depth: int) -> bytes:
    """The record with a field more that is nested."""
    return (json.dumps(record)[:-1] + f', "more": {nested(depth)}}}').encode()


def test_the_limit_of_nesting_is_the_same_for_lists_and_objects() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        for depth, expected in ((MAX_DEPTH, False), (MAX_DEPTH + 1, True)):
            assert is_deep(opening * depth + b"1" + closing * depth) is expected
    assert not is_deep(b'"' + b"[{" * 5000 + rb"\"[" + b'"')
    assert not is_deep(b"[" + b"[],{}," * 1000 + b"1]")


@pytest.mark.parametrize("depth", [501, 986, 1000, 20_000])
@pytest.mark.parametrize("is_array", [False, True])
def test_a_deep_rollout_is_a_bad_record(is_array: bool, depth: int, tmp_path: Path) -> None:
    records = {
        "raw": raw_record([1.0, 0.0]),
        "vl": raw_record([1.0, 0.0], source="s"),
        "trl": {"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]},
        "aps": {"question": "q", "reasoning_steps": [{"solution_prefix": "q a", "mc_value": 1}]},
    }
    for name, record in records.items():
        good = json.dumps(record).encode()
        lines = [good, deep_line(record, depth), good]
        path = tmp_path / f"{name}.json"
        path.write_bytes(b"[" + b",\n".join(lines) + b"]" if is_array else b"\n".join(lines))
        options = {"text_only": True, "skip_bad": True}
        [issue] = [issue for issue in mprm.check(path, text_only=True).issues if issue.is_error]
        assert (issue.line, issue.kind) == (2, "not_json")
        out = tmp_path / f"{name}-{depth}.jsonl"
        assert mprm.convert(path, str(out), to="trl", **options).n_rollouts == 2
        if name == "aps":
            continue
        assert mprm.stats(path, **options).total.n_rollouts == 2
        selection = mprm.select(path, rho=1.0, **options)
        selection.write(str(out), force=True)
        assert (len(selection), len(selection.dropped)) == (2, 1)
        with pytest.raises(DataError, match=rf"{name}\.json:2: .*nested"):
            mprm.stats(path, text_only=True)


@pytest.mark.parametrize("depth", [986, 20_000])
def test_a_deep_record_of_any_reader_is_named_by_its_line(depth: int, tmp_path: Path) -> None:
    from mprm.data.benchmarks import read_benchmark
    from mprm.data.candidates import read_candidates
    from mprm.data.questions import read_questions
    from mprm.evaluation.scores import read_scores

    question = {"id": "1", "question": "2+2?", "answer": "4", "image": "a.png"}
    candidates = {"question": "2+2?", "answer": "4", "candidates": [{"text": "4", "steps": ["4"]}]}
    solution = {
        "id": "1",
        "generator": "g",
        "problem": "p",
        "steps": ["a"],
        "label": -1,
        "final_answer_correct": True,
    }
    scores = {"id": "1", "source": "s", "model": "m", "problem": "p", "labels": [1], "scores": [0.5]}
    for read, record in (
        (read_questions, question),
        (read_candidates, {"id": "1", "source": "s", "images": [], "options": [], **candidates}),
        (read_benchmark, solution),
        (read_scores, scores),
    ):
        lines = [json.dumps(record).encode(), deep_line(record | {"id": "2"}, depth)]
        for suffix, text in ((".jsonl", b"\n".join(lines)), (".json", b"[" + b",\n".join(lines) + b"]")):
            path = tmp_path / f"x{suffix}"
            path.write_bytes(text)
            if read is not read_scores or suffix == ".jsonl":
                with pytest.raises(DataError, match=rf"x{suffix}:2: "):
                    read(path)
    path = tmp_path / "x.csv"
    path.write_text(f'id,question,answer,image,options\n1,2+2?,4,a.png,"{nested(depth)}"\n'.replace('\\"', '""'))
    with pytest.raises(DataError, match=r"x\.csv:2: "):
        read_questions(path)


def test_a_deep_row_of_a_list_and_a_deep_manifest_are_no_traceback(tmp_path: Path) -> None:
    row: Any = []
    for _ in range(5000):
        row = [row]
    with pytest.raises(DataError, match=r"row 0: .*nested"):
        mprm.select([raw_record([1.0, 0.0], more=row)])
    path = write_jsonl(tmp_path / "x.jsonl", [raw_record([1.0, 0.0])])
    Path(f"{path}.manifest.json").write_text(nested(5000))
    assert mprm.stats(path).total.n_rollouts == 1

"""What an ill-disposed user tried: each ends in a sentence, and no file of his is harmed."""

import gzip
import json
import os
import tracemalloc
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

import mprm
from mprm.cli.main import run
from mprm.data import records
from mprm.data.records import chunks_of, find_files, lines_of, read_records
from mprm.errors import ConfigError, DataError, MprmError, OutputExistsError
from tests.conftest import raw_record, write_jsonl

HUGE = 10**400
BAD = [
    ("visualprm-raw", raw_record([1.0], steps_with_score=[{"step": "a", "score": HUGE}])),
    (
        "visualprm-raw",
        raw_record(
            [1.0], steps_with_score=[{"step": "a", "score": 1, "num_mc_correct": HUGE, "num_mc_total": 2**33}]
        ),
    ),
    ("trl", {"prompt": "q", "completions": ["a"], "labels": [HUGE]}),
    (
        "visualprm",
        {"image": "a", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": ["+"]}]},
    ),
    ("rated-steps", {"question": "q", "steps": ["a"], "ratings": [[1]]}),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [{"completions": 5}]}}),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [{"completions": ["x"], "chosen_completion": 0}]}}),
    (
        "prm800k",
        {
            "question": {"problem": "q"},
            "label": {"steps": [{"completions": [{"text": ["x"], "rating": {}}], "chosen_completion": 0}]},
        },
    ),
    ("math-aps", {"question": "q", "reasoning_steps": {"text": "q", "mc_value": 1, "children": 7}}),
    ("stepwise-critic", {"instruction": "q", "responses": [5], "next_response": "b", "rating": 1}),
    ("stepwise-critic", {"instruction": "q", "responses": [], "next_response": "b", "rating": [1]}),
]


@pytest.mark.parametrize(("name", "record"), BAD)
def test_odd_values_are_reported_and_never_escape(name: str, record: dict, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record])
    report = mprm.check(path, format=name)
    assert report.issues
    for command in (
        ["check"],
        ["stats", "--skip-bad"],
        ["convert", "--to", "trl", "--skip-bad", "--force", "--out", str(tmp_path / "o.jsonl")],
    ):
        assert run([command[0], str(path), "--format", name, *command[1:]]) in (0, 1, 2, 3)


@pytest.mark.parametrize("cut", [6, 40, -1])
def test_a_file_that_breaks_off_is_not_taken_for_whole(cut: int, tmp_path: Path) -> None:
    lines = b"".join(json.dumps(raw_record([1.0], number=i)).encode() + b"\n" for i in range(200))
    frames = [
        zstandard.ZstdCompressor().compress(part) for part in (lines[: len(lines) // 2], lines[len(lines) // 2 :])
    ]
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(b"".join(frames))
    assert mprm.stats(path).total.n_rollouts == 200
    path.write_bytes(frames[0] + frames[1][:cut])
    with pytest.raises(DataError, match="breaks off"):
        mprm.stats(path, skip_bad=True)


def test_a_home_folder_is_no_way_round_existing_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.jsonl").write_text("precious")
    corpus = write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0])])
    with pytest.raises(OutputExistsError):
        mprm.select(corpus).write("~/x.jsonl")
    assert (tmp_path / "x.jsonl").read_text() == "precious"


def test_inputs_survive_every_disguise(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "y.dropped.jsonl", [raw_record([1.0, 0.0], number=i) for i in range(20)] + [b"{"])
    before = path.read_bytes()
    for make in (
        lambda: mprm.select(path, skip_bad=True).write(str(tmp_path / "y.jsonl"), force=True),
        lambda: mprm.convert(path, str(tmp_path / "y.jsonl"), to="trl", skip_bad=True, force=True),
        lambda: mprm.score(path, str(tmp_path / "y.parquet"), skip_bad=True, force=True),
        lambda: mprm.select(path, skip_bad=True).write(f"file://{path}", force=True),
    ):
        with pytest.raises(ConfigError, match="is one of the inputs"):
            make()
        assert path.read_bytes() == before
    folder = tmp_path / "d" / "bis-0.5"
    write_jsonl(folder / "a.jsonl", [raw_record([1.0, 0.0], number=i) for i in range(20)])
    with pytest.raises(ConfigError, match="is one of the inputs"):
        mprm.select(folder, rho=0.5).write_all(str(tmp_path / "d"), by_source=True, force=True)


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    (tmp_path / "o.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("o.jsonl", "pipe.jsonl"):
        with pytest.raises(ConfigError, match="no regular file"):
            mprm.select(corpus).write(str(tmp_path / name), force=True)


def test_an_input_that_changes_before_it_is_written_stops_the_run(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.0], number=i) for i in range(20)])
    selection = mprm.select(corpus)
    corpus.write_bytes(b'{"x": 1}\n' + corpus.read_bytes())
    with pytest.raises(DataError, match="the file changed while it was read"):
        selection.write(str(tmp_path / "o.jsonl"))
    assert not (tmp_path / "o.jsonl").exists()


def test_sources_that_are_no_file_names_come_back(tmp_path: Path) -> None:
    names = ["a/b", "a_b", ".hid", "..", "dropped", "Größe", "50%"]
    records = [raw_record([1.0, 0.0], number=i, source=name) for i, name in enumerate(names)]
    selection = mprm.select(write_jsonl(tmp_path / "x.jsonl", records), rho=1.0)
    selection.write_all(str(tmp_path / "out"), by_source=True)
    plain = [{k: v for k, v in r.items() if k != "source"} for r in records]
    assert len(list((tmp_path / "out" / "bis-1.0").iterdir())) == len(plain)
    assert {f.source for f in mprm.open_corpus(tmp_path / "out" / "bis-1.0").files} == set(names)


def test_bad_records_are_counted_under_the_source_they_name(tmp_path: Path) -> None:
    records = [raw_record([1.0], number=i, source="ChartQA") for i in range(5)]
    records += [raw_record([5.0], source="ChartQA"), raw_record([1.0], source="ChartQA", steps_with_score=[])]
    selection = mprm.select(write_jsonl(tmp_path / "vl.jsonl", records), skip_bad=True)
    assert {s: c["read"] for s, c in selection.by_source(selection.subsets[0]).items() if c["read"]} == {"ChartQA": 7}


@pytest.mark.parametrize("tau", [0.0, 0.25, 0.75])
def test_soft_scores_are_seen_at_any_tau(tau: float, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "r.jsonl", [raw_record([0.75, 0.25]), raw_record([0.25, 0.75], number=1)])
    soft, hard, out = (tmp_path / f"{name}.jsonl" for name in ("soft", "hard", "o"))
    mprm.convert(path, str(soft), to="mm-prm-soft")
    mprm.select(soft, rho=1.0, tau=tau, to="mm-prm-soft").write(str(out))
    assert [json.loads(line)["conversations"][1]["value"] for line in out.read_text().splitlines()] == [
        [0.75, 0.25],
        [0.25, 0.75],
    ]
    mprm.convert(path, str(hard), to="mm-prm")
    with pytest.raises(ConfigError, match="binary labels and no MC scores"):
        mprm.select(hard, rho=1.0, tau=tau, to="mm-prm-soft").write(str(tmp_path / "h.jsonl"))


@pytest.mark.parametrize("options", [{"ties": "file_order"}, {"seed": "a"}, {"seed": None}, {"processes": 0}])
def test_mistyped_options_are_said(options: dict, tmp_path: Path) -> None:
    with pytest.raises(MprmError):
        mprm.select(write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])]), **options)


def packed(kind: str, start: bytes, piece: bytes, n_bytes: int) -> bytes:
    """A compressed file that holds ``start`` and then so many bytes of the piece, over and over."""
    compress = gzip.compress if kind == "gz" else zstandard.ZstdCompressor().compress
    return compress(start) + compress(piece * (10_000_000 // len(piece))) * (n_bytes // 10_000_000)


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize(
    ("start", "piece", "words"),
    [
        (b'{"a": 1}\n{"question": "', b"x", r"bomb\.jsonl\.\w+:2: the line is over 64 MiB; expected one record"),
        (b'[{"question": "', b"x", "unpacks to over 200 times its size"),
        (b'{"question": "q"}', b" " * 999 + b"\n", "unpacks to over 200 times its size"),
    ],
)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(
    kind: str, start: bytes, piece: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / f"bomb.jsonl.{kind}"
    path.write_bytes(packed(kind, start, piece, 1_200_000_000))
    assert path.stat().st_size < 3_000_000
    [file] = find_files(path)
    tracemalloc.start()
    try:
        [chunk] = chunks_of(file)
        with pytest.raises(DataError, match=words):
            deque(lines_of(replace(chunk, is_array=start[:1] == b"[")), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_a_line_of_a_gigabyte_stops_a_command_with_its_line(tmp_path: Path, capsys) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(packed("gz", json.dumps(raw_record([1.0])).encode() + b"\n", b"x", 1_200_000_000))
    assert run(["stats", str(path)]) == 1
    assert "bomb.jsonl.gz:2: the line is over 64 MiB" in capsys.readouterr().err


def test_a_large_array_on_one_line_of_a_compressed_file_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 100_000)
    path = tmp_path / "x.json.gz"
    text = os.urandom(10_000).hex() * 40  # 800 kB that compress well, but not like a bomb
    path.write_bytes(gzip.compress(json.dumps([{"question": text, "answer": "4"}]).encode()))
    [file] = find_files(path)
    assert [record.data["answer"] for record in read_records(file)] == ["4"]

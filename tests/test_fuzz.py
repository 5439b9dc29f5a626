"""Broken bytes in, never a traceback out, and never a record lost without a word."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mprm
from mprm.cli.main import run
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.errors import MprmError
from tests.conftest import raw_record
from tests.fuzz import fuzz

quiet = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

GOOD = json.dumps(raw_record([1.0, 0.5, 0.0]), ensure_ascii=False).encode()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=6), c, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "image",
        "question",
        "question_orig",
        "steps_with_score",
        "answer",
        "source",
        "conversations",
        "prompt",
        "completions",
        "labels",
        "input",
        "label",
        "task",
        "steps",
        "ratings",
        "instruction",
        "responses",
        "next_response",
        "rating",
        "reasoning_steps",
    ]
)
lines = st.one_of(
    st.just(GOOD),
    st.binary(max_size=40),
    st.dictionaries(fields, json_values, max_size=6).map(lambda d: json.dumps(d).encode("utf-8", "surrogatepass")),
    st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=3)).map(
        lambda t: GOOD[: t[0]] + t[1] + GOOD[t[0] + len(t[1]) :]
    ),
    st.sampled_from(
        [
            b"",
            b" ",
            b"\x00",
            b"\xff\xfe{\x00}\x00",
            b"\xef\xbb\xbf" + GOOD,
            GOOD + GOOD,
            b"[" * 3000,
            b'{"a":' * 3000,
            GOOD.replace(b"0.5", b"1e308"),
            GOOD.replace(b"0.5", b"1e999"),
            GOOD.replace(b"0.5", b"NaN"),
            GOOD.replace(b"0.5", b"-0.0"),
            GOOD.replace(b"16", b"9" * 5000),
        ]
    ),
)


def test_mutated_records_of_every_format_end_in_results_or_errors() -> None:
    counts = fuzz(n_records=10**9, seconds=2.5, seed=20)  # make fuzz reads more of them
    assert min(counts.values()) > 0


def n_records(content: bytes) -> int:
    return sum(bool(line.strip(b" \t\r\n")) for line in content.split(b"\n"))


@quiet
@given(st.lists(lines, max_size=8), st.sampled_from([None, *ROLLOUT_FORMATS]), st.booleans())
def test_nothing_is_lost_and_nothing_escapes(tmp_path: Path, lines, name, ends: bool) -> None:
    content = b"\n".join(lines) + (b"\n" if ends else b"")
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    try:
        report = mprm.check(path, format=name)
        assert report.n_records == n_records(content)
        selection = mprm.select(path, rho=0.5, skip_bad=True, format=name)
        by_source = selection.by_source(selection.subsets[0]).values()
        assert sum(c["read"] for c in by_source) == selection.n_read == n_records(content)
        assert all(c["read"] == c["kept"] + c["left"] + c["dropped"] for c in by_source)
        selection.write(str(tmp_path / "out.jsonl"), force=True)
        kept = (tmp_path / "out.jsonl").read_bytes().split(b"\n")[:-1]
        assert sum(c["kept"] for c in by_source) == len(kept)
        assert mprm.check(
            tmp_path / "out.jsonl", format=name or next(iter(selection.corpus.formats.values())).name
        ).n_bad_records == sum(
            "image" in p.kind
            for p in mprm.check(
                tmp_path / "out.jsonl", format=name or next(iter(selection.corpus.formats.values())).name
            ).issues
            if p.is_error
        )
    except MprmError:
        pass  # said in a sentence


@quiet
@given(st.lists(lines, min_size=1, max_size=6), st.sampled_from(["check", "stats", "score", "select", "convert"]))
def test_every_command_ends_with_a_known_code(tmp_path: Path, lines, command: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    out = {
        "score": ["--out", str(tmp_path / "s.csv"), "--force"],
        "select": ["--out", str(tmp_path / "o.jsonl"), "--force"],
        "convert": ["--to", "trl", "--out", str(tmp_path / "c.jsonl"), "--force"],
    }
    assert run([command, str(path), *out.get(command, [])]) in (0, 1, 2, 3)


def test_a_huge_line_and_a_hundred_thousand_steps_are_read(tmp_path: Path) -> None:
    long = raw_record([1.0, 0.0], number=1)
    long["steps_with_score"][0]["step"] = "word " * 8_000_000  # 40 MB: longer than a chunk
    long["response"] = ""
    many = raw_record([0.0625] * 100_000, number=2)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([GOOD, json.dumps(long).encode(), json.dumps(many).encode(), GOOD]) + b"\n")
    statistics = mprm.stats(path, processes=2).total
    assert (statistics.n_rollouts, statistics.n_steps) == (4, 3 + 2 + 100_000 + 3)
    assert statistics.n_words > 8_000_000
    mprm.select(path, rho=1.0).write(str(tmp_path / "o.jsonl"))
    assert (tmp_path / "o.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "utf-8-sig"])
def test_other_encodings_are_told(tmp_path: Path, encoding: str) -> None:
    record = raw_record([1.0], question_orig="Où est 90°?")
    path = tmp_path / "x.jsonl"
    path.write_bytes((json.dumps(record, ensure_ascii=False) + "\n").encode(encoding))
    done = subprocess.run(
        [sys.executable, "-m", "mprm.cli.main", "select", str(path), "--out", str(tmp_path / "o.jsonl")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "x.jsonl:1:" in done.stderr

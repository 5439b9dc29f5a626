"""The compiled counter and its Python twin: the same rows for every line, however odd."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from struct import iter_unpack

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mprm.data.corpus import open_corpus, parse_line
from mprm.data.engine import InlineEngine
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.types import Issues, ValidationOptions
from mprm.progress import silent
from mprm.selection import scan as twin
from mprm.selection.scan import BAD, BLANK, ROLLOUT, ROW, count_rows_python, problem_number
from mprm.selection.stats import gather_counts
from tests.conftest import raw_record

compiled = pytest.importorskip("mprm.selection._scan", reason="mprm was installed without a C compiler")


def both(
    data: bytes,
    *,
    needs_image: bool = True,
    tau: float = 0.0,
    sources: bool = False,
    mark: bytes = b"",
    details: bool = False,
):
    ours: dict[str, int] | None = {} if sources else None
    theirs: dict[str, int] | None = {} if sources else None
    left = compiled.count_rows(data, 0, len(data), needs_image, tau, ours, mark, details)
    right = count_rows_python(data, 0, len(data), needs_image, tau, theirs, mark, details)
    return left, right, ours, theirs


def kinds(rows: bytearray) -> list[int]:
    return [row[5] for row in iter_unpack(ROW.format, rows)]


def assert_agree(left: bytearray, right: bytearray, ours: dict | None = None, theirs: dict | None = None) -> None:
    """Where neither hands the line back for a closer look, both give the same row, source names included."""
    for row, other in zip(iter_unpack(ROW.format, left), iter_unpack(ROW.format, right), strict=True):
        if BAD in (row[5], other[5]):
            continue
        assert row[:4] + row[5:] == other[:4] + other[5:]
        if ours is not None and row[5] == ROLLOUT:
            assert list(ours)[row[4]] == list(theirs)[other[4]]


def test_the_compiled_counter_is_used_where_it_is() -> None:
    assert twin.IS_COMPILED
    assert twin.count_rows is compiled.count_rows


def test_a_row_holds_what_was_worked_out_by_hand() -> None:
    record = raw_record([1.0, 0.5, 0.0])
    record["steps_with_score"].append({"step": "a\tb\n c", "score": 0.0, "num_mc_correct": 0, "num_mc_total": 0})
    line = json.dumps(record).encode() + b"\n"
    (rows, odd, _), _, _, _ = both(line)
    # "Step 0 of 0." is 4 words, three times, and "a b c" is 3
    assert ROW.unpack(rows) == (4, 2, 15, 1, 0, ROLLOUT, 16, 2, 1.5, 1.5, len(line), 0)
    assert odd == []


ODD_LINES = [
    b"{",
    b"[]",
    b"null",
    b"{}",
    b"\xff\xfe{}",
    b'{"steps_with_score": []}',
    json.dumps(raw_record([1.0]) | {"image": ""}).encode(),
    json.dumps(raw_record([1.0]) | {"image": [""]}).encode(),
    json.dumps(raw_record([1.0]) | {"image": []}).encode(),
    json.dumps(raw_record([1.0]) | {"question": " \u3000"}).encode(),
    json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "\u00a0\n", "score": 1}]}).encode(),
    json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "a", "score": 1.5}]}).encode(),
    json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "a", "score": "1"}]}).encode(),
    json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "a", "score": None}]}).encode(),
    json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "a", "score": float("nan")}]}).encode(),
    json.dumps(
        raw_record([0.5]) | {"steps_with_score": [{"step": "a", "score": 1, "num_mc_correct": 1, "num_mc_total": 2}]}
    ).encode(),
    json.dumps(raw_record([1.0]) | {"source": "x"}).encode(),
    json.dumps(raw_record([1.0])).encode()[:-1],
    json.dumps(raw_record([1.0])).encode() + b" x",
    json.dumps(raw_record([1.0]) | {"response": "\ud800"}).encode(),
    json.dumps(raw_record([1.0]) | {"deep": json.loads("[" * 60 + "]" * 60)}).encode(),
    json.dumps(raw_record([1.0])).encode().replace(b'"answer"', b'"answer\x01"'),
    json.dumps(raw_record([1.0]) | {"n": 1}).encode().replace(b'"n": 1', b'"n": 01'),
]


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: line[:40].decode("latin-1"))
def test_no_odd_line_passes_the_compiled_counter(line: bytes) -> None:
    (rows, odd, _), _, _, _ = both(line)
    assert kinds(rows) == [BAD]
    assert odd == [(0, 0, len(line))]


def test_blank_lines_and_line_ends_are_told_apart() -> None:
    good = json.dumps(raw_record([1.0])).encode()
    data = b"\n" + good + b"\r\n \t\n" + good
    left, right, _, _ = both(data)
    assert left == right
    assert kinds(left[0]) == [BLANK, ROLLOUT, BLANK, ROLLOUT]


def test_the_score_is_the_nearest_double() -> None:
    texts = [
        "0.1",
        "0.3333333333333333",
        "0.33333333333333331",
        "1e-3",
        "1E0",
        "0.5e0",
        "1",
        "0",
        "0.07692307692307693",
        "5e-324",
    ]
    for text in texts:
        line = (
            json.dumps(raw_record([1.0]) | {"steps_with_score": [{"step": "a", "score": 9}]})
            .replace("9", text)
            .encode()
        )
        line = line.replace(b'num_mc_sequences": 16', b'x": 1')
        (rows, odd, scores), right, _, _ = both(line)
        assert odd == []
        assert ROW.unpack(rows)[8] == float(text)
        assert (rows, odd, scores) == right


words = st.text(max_size=30)
steps = st.lists(
    st.fixed_dictionaries(
        {"step": words, "score": st.sampled_from([0, 1, 0.5, 0.0625, 1 / 3, 1.5, -0.5])},
        optional={
            "num_mc_total": st.sampled_from([0, 16, None]),
            "num_mc_correct": st.sampled_from([0, 8, 16, None]),
            "x": words,
        },
    ),
    max_size=5,
)
records = st.fixed_dictionaries(
    {"steps_with_score": steps, "question": words},
    optional={
        "question_orig": st.one_of(st.none(), words),
        "image": st.one_of(st.none(), words, st.lists(words, max_size=2)),
        "source": st.one_of(words, st.integers()),
        "more": st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False) | words,
            lambda c: st.lists(c) | st.dictionaries(words, c),
            max_leaves=5,
        ),
    },
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(records, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.0625, 0.5]),
    st.booleans(),
)
def test_what_the_compiled_counter_lets_pass_is_what_python_reads(
    items, ascii_, needs_image, sources, tau, details
) -> None:
    lines = [json.dumps(item, ensure_ascii=ascii_).encode("utf-8", "surrogatepass") + b"\n" for item in items]
    data = b"".join(lines)
    left, right, ours, theirs = both(data, needs_image=needs_image, tau=tau, sources=sources, details=details)
    assert_agree(left[0], right[0], ours, theirs)
    scores: list[float] = []
    for line, row in zip(lines, iter_unpack(ROW.format, left[0]), strict=True):
        problems = Issues()
        fmt, options = ROLLOUT_FORMATS["visualprm-raw"], ValidationOptions(text_only=not needs_image)
        rollouts = parse_line(line, fmt, options, problems)
        if row[5] == ROLLOUT:
            assert problems.first_error() is None
            scores += rollouts[0].scores
            assert row[-1] == (problem_number(rollouts[0].question, rollouts[0].images) if details else 0)
    assert left[2] == (array("d", scores).tobytes() if details else b"")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_broken_bytes_are_never_counted_differently(data) -> None:
    line = bytearray(json.dumps(raw_record([1.0, 0.0, 0.5]), ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(line) - 1))
        line[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    left, right, _, _ = both(bytes(line))
    assert_agree(left[0], right[0])


def test_a_problem_has_one_number_however_it_is_written() -> None:
    plain = raw_record([1.0, 0.5]) | {"question": "α + 𝟚 = ?", "image": "bild ü.png"}
    del plain["question_orig"]
    same = [
        json.dumps(plain),
        json.dumps(plain, ensure_ascii=False),
        json.dumps(plain | {"question": "  α\n+ 𝟚\t= ?  "}),
        json.dumps(plain | {"question": "Solve: α + 𝟚 = ?", "question_orig": "α + 𝟚 = ?"}),
        json.dumps(plain | {"question_orig": " "}),
        json.dumps(plain | {"image": ["bild ü.png"]}),
        json.dumps(dict(reversed(plain.items()))),
    ]
    others = [
        json.dumps(plain | {"question": "α + 𝟛 = ?"}),
        json.dumps(plain | {"image": "bild.png"}),
        json.dumps(plain | {"image": ["bild ü.png", "bild ü.png"]}),
        json.dumps(plain | {"image": ["bild", "ü.png"]}),
    ]
    data = "\n".join(same + others).encode()
    for rows, _, _ in both(data, details=True)[:2]:
        numbers = [row[-1] for row in iter_unpack(ROW.format, rows)]
        assert len(set(numbers[: len(same)])) == 1
        assert len(set(numbers)) == 1 + len(others)


def test_scores_of_lines_that_need_a_closer_look_stand_where_the_lines_do(tmp_path: Path) -> None:
    """Lines with escaped letters are read by Python where a mark is forbidden, and bad ones have no scores."""
    scores = [[0.5, 1.0], [0.25], [0.0, 0.0, 1.0], [0.125, 0.5], [1.0]]
    lines = [json.dumps(raw_record(values)) for values in scores]
    lines[1] = lines[1].replace("Step", "\\u0053tep")
    lines[3] = lines[3].replace('"image"', '"image_"')
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([lines[0], "", *lines[1:]]))
    bad: list = []
    for options in ({}, {"forbids": "<x>"}):
        corpus = open_corpus(path)
        corpus = replace(corpus, options=replace(corpus.options, **options))
        counting = twin.start_counting(corpus, InlineEngine(), tau=0, stop_at_bad=False, with_details=True)
        counts = gather_counts(corpus, counting, on_bad=bad.append, progress=silent)
        good = [values for index, values in enumerate(scores) if index != 3]
        assert counts.scores.tolist() == [score for values in good for score in values]
        rows = np.flatnonzero(counts.rows["kind"] == ROLLOUT)
        assert counts.of_steps(counts.scores, rows[1:]).tolist() == [score for values in good[1:] for score in values]
        assert counts.of_steps(counts.scores, rows[[0, 2]]).tolist() == good[0] + good[2]
    assert len(bad) == 2

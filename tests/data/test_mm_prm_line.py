"""The compiled MM-PRM writer and the Python one: the same bytes for every line."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mprm.data.rollout_formats import decode_raw, write_mm_prm
from tests.conftest import raw_record

compiled = pytest.importorskip("mprm.data._mm_prm", reason="mprm was installed without a C compiler")

texts = st.text(max_size=40) | st.sampled_from(
    ["\u3000 a\t\u00a0", "\\", '"', "\x00\x1f\x7f", "a\u2028b", "/", "😀", " \n x \r\n"]
)
steps = st.lists(st.tuples(texts, st.sampled_from([0, 1, 0.5, 0.0625, 1 / 3])), min_size=1, max_size=5)


@settings(max_examples=500, deadline=None)
@given(steps, texts, texts | st.none(), st.booleans(), st.sampled_from([0.0, 0.0625]))
def test_both_write_the_same_bytes(found, question, original, ascii_, tau: float) -> None:
    record = raw_record([1.0], image="a é/\\.png", question=question, question_orig=original)
    record["steps_with_score"] = [{"step": text, "score": score, "x": [1, {"y": None}]} for text, score in found]
    try:
        line = json.dumps(record, ensure_ascii=ascii_).encode()
    except UnicodeEncodeError:
        return
    before = b"before\n"
    out = bytearray(before)
    if compiled.append_mm_prm(line + b"\n", 0, len(line) + 1, tau, out):
        rollout = decode_raw(line)
        assert rollout is not None
        assert out == before + msgspec.json.encode(write_mm_prm(rollout, tau)) + b"\n"
    else:
        assert out == before


def test_plain_lines_are_taken_and_others_left() -> None:
    good = json.dumps(raw_record([1.0, 0.0])).encode()
    assert compiled.append_mm_prm(good, 0, len(good), 0.0, bytearray())
    for bad in (
        good[:-1],
        good.replace(b'"score": 1.0', b'"score": 2.0'),
        b"{}",
        good.replace(b"Step 0", b"\xff"),
        b"",
    ):
        out = bytearray()
        assert not compiled.append_mm_prm(bad, 0, len(bad), 0.0, out)
        assert out == b""
    assert not compiled.append_mm_prm(good, 5, len(good) + 9, 0.0, bytearray())

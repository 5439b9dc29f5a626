"""Every format: what is read of it, and that what is written is read back the same."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import mprm
from mprm.config import OUTPUT_FORMATS
from mprm.data.format import PRM_TOKEN
from mprm.data.images import leaves_root
from mprm.data.rollout_formats import ROLLOUT_FORMATS, WRITABLE, decode_raw, parse_raw, write_mm_prm
from mprm.data.types import Issues
from mprm.errors import ConfigError, DataError
from tests.conftest import raw_record, write_jsonl

try:
    from mprm.data import _mm_prm as compiled
except ImportError:  # installed without a C compiler
    compiled = None
needs_compiled = pytest.mark.skipif(compiled is None, reason="mprm was installed without a C compiler")

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda t: t.strip() == t and t
)
mc = st.integers(0, 16).map(lambda k: k / 16)
steps = st.lists(st.tuples(text, mc), min_size=1, max_size=5)


def plain(value: str) -> bool:
    return PRM_TOKEN not in value and "Process:" not in value and "Question" not in value


@pytest.mark.parametrize("name", WRITABLE)
@given(question=text, steps=steps, images=st.lists(text, max_size=2), tau=st.sampled_from([0.0, 0.25]))
def test_what_is_written_is_read_back(name: str, question: str, steps, images, tau: float) -> None:
    if not all(map(plain, [question, *(t for t, _ in steps)])):
        return
    rollout = mprm.Rollout(question=question, images=tuple(images), steps=tuple(mprm.Step(t, s) for t, s in steps))
    fmt = ROLLOUT_FORMATS[name]
    record = json.loads(msgspec.json.encode(fmt.write(rollout, tau)))
    problems = Issues()
    (again,) = fmt.parse(record, problems)
    assert problems == []
    assert again.question == question
    assert again.images == tuple(images)
    assert [s.text for s in again.steps] == [t for t, _ in steps]
    expected = [s for _, s in steps] if fmt.labels == "mc" else [float(s > tau) for _, s in steps]
    assert list(again.scores) == expected


@given(st.lists(mc, min_size=1, max_size=4), st.booleans())
def test_the_quick_way_reads_as_the_thorough_one(scores, with_source: bool) -> None:
    record = raw_record(scores, **({"source": "s"} if with_source else {}))
    assert (decode_raw(json.dumps(record).encode()),) == parse_raw(record, Issues())


def test_prm800k_gives_every_way_of_the_tree() -> None:
    def completion(text: str, rating: int | None) -> dict:
        return {"text": text, "rating": rating, "flagged": False}

    record = {
        "question": {"problem": "1+1?", "ground_truth_answer": "2"},
        "label": {
            "steps": [
                {
                    "completions": [completion("a", 1), completion("b", -1)],
                    "human_completion": None,
                    "chosen_completion": 0,
                },
                {
                    "completions": [completion("c", -1), completion("d", None)],
                    "human_completion": {"text": "h", "rating": None},
                    "chosen_completion": None,
                },
                {"completions": [completion("e", 0)], "human_completion": None, "chosen_completion": 0},
            ],
            "finish_reason": "solution",
        },
    }
    problems = Issues()
    rollouts = ROLLOUT_FORMATS["prm800k"].parse(record, problems)
    scores = {tuple(s.text for s in r.steps): r.scores for r in rollouts}
    # neutral (e) counts as positive, and so does what a labeller wrote (h)
    assert scores == {("b",): (0.0,), ("a", "c"): (1.0, 0.0), ("a", "h", "e"): (1.0, 1.0, 1.0)}
    assert [kind for kind, _ in problems] == ["unrated_step"]


def test_math_aps_gives_every_way_of_the_search() -> None:
    question = "1+1?"
    prefixes = [("", 0.75), ("\nOne.", 0.5), ("\nOne. Two.", 1.0), ("\nOne. Three.", 0.0), ("\nFour.", 1.0)]
    flat = {
        "question": question,
        "reasoning_steps": [{"solution_prefix": question + t, "mc_value": v} for t, v in prefixes],
    }
    node = {
        "text": "One.",
        "mc_value": 0.5,
        "children": [
            {"text": "Two.", "mc_value": 1.0, "children": []},
            {"text": "Three.", "mc_value": 0.0, "children": []},
        ],
    }
    tree = {
        "question": question,
        "reasoning_steps": {
            "text": question,
            "mc_value": 0.75,
            "children": [node, {"text": "Four.", "mc_value": 1.0, "children": []}],
        },
    }
    expected = {("One.", "Two."): (0.5, 1.0), ("One.", "Three."): (0.5, 0.0), ("Four.",): (1.0,)}
    for record in (flat, tree):
        rollouts = ROLLOUT_FORMATS["math-aps"].parse(record, Issues())
        assert {tuple(s.text for s in r.steps): r.scores for r in rollouts} == expected


def test_mm_prm_finds_the_question_even_if_it_speaks_of_a_process() -> None:
    value = f"Question: Name the\nProcess: of decay\nProcess: First.{PRM_TOKEN}\n\nThen.{PRM_TOKEN}"
    record = {"conversations": [{"from": "human", "value": value}, {"from": "gpt", "value": [1.0, 0.5]}]}
    (rollout,) = ROLLOUT_FORMATS["mm-prm"].parse(record, Issues())
    assert rollout.question == "Name the\nProcess: of decay"
    assert [step.text for step in rollout.steps] == ["First.", "Then."]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"prompt": "q", "completions": ["a"], "labels": [True, False]}, "labels_and_steps_differ"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Question: q\nProcess: a<prm> b"},
                    {"from": "gpt", "value": [1.0]},
                ]
            },
            "labels_and_steps_differ",
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "### Question:\nq\n\n### Solution Process:\na"},
                    {"from": "gpt", "value": "?"},
                ]
            },
            "wrong_type",
        ),
        ({"input": "q Step 1: a ки", "label": "q Step 1: b +"}, "labels_and_steps_differ"),
        ({"question": "q", "steps": ["a"], "ratings": [2]}, "wrong_type"),
    ],
)
def test_records_that_do_not_fit_say_why(record, kind: str, tmp_path: Path) -> None:
    report = mprm.check(write_jsonl(tmp_path / "x.jsonl", [record]), text_only=True)
    assert kind in report.counts
    assert report.n_errors


def test_an_unknown_record_lists_the_formats(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"foo": 1}])
    with pytest.raises(DataError, match=r"x\.jsonl:1: .*fields foo.*visualprm-raw"):
        mprm.open_corpus(path)
    with pytest.raises(ConfigError, match="unknown rollout format 'bar'"):
        mprm.open_corpus(path, format="bar")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_read_as_json_lines_are(tmp_path: Path, indent: int | None) -> None:
    records = [raw_record([1.0, 0.5], number=0), raw_record([0.0], number=1), raw_record([0.25], number=2)]
    lines = write_jsonl(tmp_path / "lines.jsonl", records)
    array = tmp_path / "lines.json"
    array.write_text("\n" + json.dumps(records, indent=indent))
    assert list(mprm.open_corpus(array)) == list(mprm.open_corpus(lines))
    chosen = [mprm.select(path, rho=0.7) for path in (array, lines)]
    assert [len(selection) for selection in chosen] == [2, 2]
    for selection, name in zip(chosen, ("a", "b"), strict=True):
        selection.write(str(tmp_path / f"{name}.jsonl"))
    a, b = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in "ab")
    assert [json.loads(line) for line in a] == [json.loads(line) for line in b]


def test_an_issue_in_a_json_array_has_the_line_of_its_record(tmp_path: Path) -> None:
    array = tmp_path / "x.json"
    array.write_text("[\n" + json.dumps(raw_record([1.0])) + ",\n\n" + json.dumps(raw_record([5.0])) + "]\n")
    with pytest.raises(DataError, match=r"x\.json:4: step 0 has score 5\.0"):
        mprm.select(array)
    (issue,) = mprm.check(array).issues
    assert (issue.line, issue.kind) == (4, "score_out_of_range")
    array.write_text("[" + json.dumps(raw_record([1.0])) + ";]")
    with pytest.raises(DataError, match=r"x\.json:1: not JSON"):
        mprm.select(array)


@pytest.mark.parametrize(
    ("path", "leaves"),
    [
        ("a/b.png", False),
        ("a/../b.png", False),
        ("../b.png", True),
        ("a/../../b", True),
        ("/etc/passwd", True),
        ("C:\\x.png", True),
        ("..\\x", True),
        ("a\0b", True),
        ("./a.png", False),
    ],
)
def test_paths_that_leave_the_image_root(path: str, leaves: bool) -> None:
    assert leaves_root(path) is leaves


white_and_letters = st.text(alphabet=" \n\t\x1f\u00a0\u3000\u2028a\u00e9", max_size=8).filter(str.strip)
line_texts = (
    st.text(max_size=40)
    | white_and_letters
    | st.sampled_from(["\u3000 a\t\u00a0", "\\", '"', "\x00\x1f\x7f", "a\u2028b", "/", "😀", " \n x \r\n"])
)
line_steps = st.lists(st.tuples(line_texts, st.sampled_from([0, 1, 0.5, 0.0625, 1 / 3])), min_size=1, max_size=5)


@settings(max_examples=500, deadline=None)
@given(line_steps, line_texts, line_texts | st.none(), st.booleans(), st.sampled_from([0.0, 0.0625]))
@needs_compiled
def test_the_compiled_mm_prm_writer_gives_the_bytes_of_the_python_one(
    steps, question, original, ascii_, tau: float
) -> None:
    record = raw_record([1.0], image="a é/\\.png", question=question, question_orig=original)
    record["steps_with_score"] = [{"step": text, "score": score, "x": [1, {"y": None}]} for text, score in steps]
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


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(white_and_letters, min_size=20, max_size=20), question=white_and_letters, ascii_=st.booleans())
def test_select_to_mm_prm_is_select_and_convert_whatever_the_white_space(steps, question, ascii_: bool) -> None:
    record = raw_record([1.0], question=question, question_orig=None)
    record["steps_with_score"] = [{"step": text, "score": 1.0} for text in steps]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.jsonl").write_bytes(json.dumps(record, ensure_ascii=ascii_).encode() + b"\n")
        mprm.select(folder / "a.jsonl", rho=1.0, to="mm-prm").write(folder / "at_once.jsonl")
        mprm.select(folder / "a.jsonl", rho=1.0).write(folder / "selected.jsonl")
        mprm.convert(folder / "selected.jsonl", folder / "converted.jsonl", to="mm-prm")
        assert (folder / "at_once.jsonl").read_bytes() == (folder / "converted.jsonl").read_bytes()


@needs_compiled
def test_the_compiled_mm_prm_writer_takes_plain_lines_and_leaves_others() -> None:
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


def test_every_format_that_can_be_written_is_offered() -> None:
    assert OUTPUT_FORMATS == (*WRITABLE, "parquet")

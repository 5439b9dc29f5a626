import json
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import run
from mprm.data.types import ERRORS, WARNINGS
from tests.conftest import raw_record, write_jsonl


def changed(**fields) -> dict:
    return raw_record([1.0, 0.0]) | fields


def with_step(**fields) -> dict:
    record = raw_record([1.0, 0.0])
    record["steps_with_score"][1] = {k: v for k, v in (record["steps_with_score"][1] | fields).items() if v != "gone"}
    return record


CASES = {
    "not_json": [b"{", b"nonsense", b"[1]", b"\xef\xbb\xbf{}", b'{"a":' * 5000],
    "not_utf8": [
        b'{"a": "\xff"}',
        json.dumps(changed(response="\ud800")).encode(),
        json.dumps(raw_record([1.0])).encode().replace(b'"4"', b'"\xc3"'),
    ],
    "missing_field": [
        {},
        {"image": "x"},
        {k: v for k, v in raw_record([1.0]).items() if not k.startswith("question")},
        with_step(step="gone"),
    ],
    "wrong_type": [
        changed(steps_with_score={}),
        changed(image=3),
        with_step(step=3),
        changed(steps_with_score=["a"]),
    ],
    "no_steps": [changed(steps_with_score=[])],
    "empty_step": [with_step(step=""), with_step(step=" \n\u3000")],
    "empty_question": [changed(question=" ", question_orig="")],
    "score_not_a_number": [
        with_step(score="0.5"),
        with_step(score=None),
        with_step(score=float("nan")),
        with_step(score=True),
        with_step(score="gone"),
    ],
    "score_out_of_range": [
        with_step(score=1.25),
        with_step(score=-0.1),
        with_step(score=1e308),
        with_step(score=float("inf")),
    ],
    "score_not_count_ratio": [
        with_step(score=0.5),
        with_step(num_mc_correct=17),
        with_step(num_mc_total=0, num_mc_correct=0, score=0.5),
    ],
    "no_image": [changed(image=""), changed(image=None), changed(image=[])],
    "image_outside_root": [changed(image="../x.png"), changed(image=["ok.png", "/etc/passwd"])],
    "never_sampled": [with_step(num_mc_total=0, num_mc_correct=0)],
    "special_token": [
        with_step(step="so <prm> there"),
        changed(question_orig="a <prm>"),
        with_step(step="see <image>"),
        with_step(step="<|image_pad|>"),
        with_step(step="x</img>"),
    ],
    "odd_field": [changed(answer={"a": 1}), with_step(num_mc_total="many")],
}


@pytest.mark.parametrize(("kind", "record"), [(kind, r) for kind, records in CASES.items() for r in records])
def test_every_kind_of_problem_is_found_at_its_place(kind: str, record, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [raw_record([1.0]), record, raw_record([0.5], number=2)])
    report = mprm.check(path)
    assert {(p.kind, p.line) for p in report.issues if p.kind == kind} == {(kind, 2)}
    assert {p.line for p in report.issues} == {2}
    assert report.n_records == 3
    if kind in WARNINGS:
        assert report.n_errors == 0


def test_every_kind_is_tried_here_or_elsewhere() -> None:
    elsewhere = {
        "duplicate",
        "empty_file",
        "error_past_the_end",
        "image_missing",
        "labels_and_steps_differ",
        "separator_in_text",
        "unrated_step",
    }
    assert set(CASES) | elsewhere == set(ERRORS) | set(WARNINGS)


def test_an_image_mark_in_the_question_is_at_home() -> None:
    assert mprm.check([changed(question_orig="Look: <image> and <image2>")]).counts == {}


def test_duplicates_are_found_across_files(tmp_path: Path) -> None:
    same = raw_record([1.0])
    write_jsonl(tmp_path / "a.jsonl", [raw_record([0.5], number=1), same, same])
    write_jsonl(tmp_path / "b.jsonl", [b"", same])
    report = mprm.check(tmp_path)
    assert [(Path(p.file).name, p.line, p.text.rpartition("/")[2]) for p in report.issues] == [
        ("a.jsonl", 3, "a.jsonl:2"),
        ("b.jsonl", 2, "a.jsonl:2"),
    ]


def test_missing_images_are_found(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "x.jsonl", [raw_record([1.0], number=1), raw_record([1.0], number=2, image="a" * 5000)]
    )
    (tmp_path / "root" / "images").mkdir(parents=True)
    (tmp_path / "root" / "images" / "1.png").touch()
    report = mprm.check(path, image_root=tmp_path / "root")
    assert [(p.kind, p.line) for p in report.issues] == [("image_missing", 2)]
    assert run(["check", str(path), "--image-root", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize(
    ("record", "code"),
    [(raw_record([1.0]), 0), (with_step(num_mc_total=0, num_mc_correct=0), 3), (with_step(step=""), 1)],
)
def test_the_exit_code_tells_errors_from_warnings(record, code: int, tmp_path: Path, capsys) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record])
    assert run(["check", str(path), "--json"]) == code
    printed = json.loads(capsys.readouterr().out)
    assert (printed["errors"] > 0, printed["warnings"] > 0) == (code == 1, code == 3)


def test_what_check_calls_an_error_stops_select_too(tmp_path: Path) -> None:
    for kind, records in CASES.items():
        for record in records:
            path = write_jsonl(tmp_path / "x.jsonl", [raw_record([1.0]), record])
            selection = mprm.select(path, rho=1.0, skip_bad=True)
            n_dropped = len(selection.dropped)
            expected = int(kind in ERRORS and kind != "image_outside_root")
            assert n_dropped == expected, (kind, record)
            if expected:
                assert list(selection.dropped.counts["x"]) == [kind]

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mprm.data.candidates import read_candidates
from mprm.errors import ConfigError, DataError
from tests.conftest import write_jsonl

OWN = {
    "id": "q1",
    "source": "geo",
    "question": "2+2?",
    "answer": "4",
    "images": ["a.png"],
    "options": [],
    "candidates": [
        {"text": "Two.\n\nFour.", "steps": ["Two.", "Four."], "finish_reason": "stop"},
        {"text": "", "steps": [], "finish_reason": "length"},
    ],
}
MM_PRM = {
    "image_path": "b.png",
    "question": "3+3?",
    "solutions_splits": [["Three.", "Six."], ["Five."]],
    "labels": [1, 0],
    "prm_scores": [[0.9, None], [0.25]],
}
RLHFLOW = {"prompt": "1+1?", "answers": ["Step 1: one ки\nStep 2: two ки", "a\n\nb"], "labels": [True, False]}


def test_our_own_candidates_are_read(tmp_path: Path) -> None:
    [entry] = read_candidates(write_jsonl(tmp_path / "c.jsonl", [OWN]))
    assert entry.question.id == "q1"
    assert entry.question.answer == "4"
    assert entry.question.images == ("a.png",)
    assert entry.key == ("geo", "q1")
    assert not entry.is_labelled
    assert [c.steps for c in entry.candidates] == [("Two.", "Four."), ()]
    assert [c.finish_reason for c in entry.candidates] == ["stop", "length"]


def test_candidates_without_steps_are_split(tmp_path: Path) -> None:
    record = {**OWN, "candidates": [{"text": "a\n\nb"}]}
    [entry] = read_candidates(write_jsonl(tmp_path / "c.jsonl", [record]))
    assert entry.candidates[0].steps == ("a", "b")


def test_mm_prm_files_are_read_as_lines_and_as_one_array(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "k12.jsonl", [MM_PRM, {**MM_PRM, "id": 7}])
    array = tmp_path / "k12.json"
    array.write_text(json.dumps([MM_PRM, {**MM_PRM, "id": 7}], indent=1))
    from_lines, from_array = read_candidates(lines), read_candidates(array)
    assert [entry.question for entry in from_lines] == [entry.question for entry in from_array]
    first, second = from_lines
    assert (first.key, second.key) == (("k12", "1"), ("k12", "7"))
    assert first.question.images == ("b.png",)
    assert [c.is_correct for c in first.candidates] == [True, False]
    assert first.candidates[0].text == "Three.\n\nSix."
    scores = first.candidates[0].step_scores
    assert scores is not None
    assert scores[0] == 0.9
    assert math.isnan(scores[1])
    assert first.is_labelled


def test_rlhflow_answers_are_split_at_their_marks_or_at_blank_lines(tmp_path: Path) -> None:
    [entry] = read_candidates(write_jsonl(tmp_path / "r.jsonl", [RLHFLOW]))
    assert entry.question.question == "1+1?"
    assert [c.steps for c in entry.candidates] == [("Step 1: one", "Step 2: two"), ("a", "b")]
    assert [c.is_correct for c in entry.candidates] == [True, False]


def test_rlhflow_labels_may_be_called_label(tmp_path: Path) -> None:
    record = {"prompt": "q", "answers": ["a"], "label": [1]}
    [entry] = read_candidates(write_jsonl(tmp_path / "r.jsonl", [record]))
    assert entry.candidates[0].is_correct is True


def test_several_files_and_packed_ones_are_read_together(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [OWN])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(RLHFLOW).encode()))
    assert [entry.key for entry in read_candidates(tmp_path)] == [("geo", "q1"), ("b", "1")]


BAD: list[tuple[Any, str]] = [
    (b"{", r"c\.jsonl:2: not JSON"),
    (
        {"question": "q"},
        r"c\.jsonl:2: the record has the fields .* no known candidate format; .*mprm, mm-prm, rlhflow",
    ),
    ({**OWN, "candidates": []}, "question 'q1' has no candidates"),
    ({**OWN, "candidates": [{"steps": []}]}, 'candidate 0 is .*expected an object with "text"'),
    ({**OWN, "candidates": [{"text": "a", "steps": [1]}]}, 'steps" of candidate 0: found .*expected a list of texts'),
    ({**OWN, "answer": None}, 'neither "answer" nor "labels"'),
    ({**OWN, "question": None}, '"question" is missing'),
    ({**MM_PRM, "labels": [1]}, "expected 2 of them"),
    ({**MM_PRM, "labels": [1, 0.5]}, "label 1 is 0.5; expected true or false"),
    ({**MM_PRM, "prm_scores": [[0.9, 1.5], [0.1]]}, "scores of solution 0.*from 0 to 1"),
    ({**MM_PRM, "prm_scores": [[0.9, 1e308], [0.1]]}, "scores of solution 0.*from 0 to 1"),
    ({**MM_PRM, "prm_scores": [[0.9, 10**400], [0.1]]}, "scores of solution 0.*from 0 to 1"),
    ({**MM_PRM, "prm_scores": [[0.9], [0.1]]}, "scores of solution 0: .*expected 2, one a step"),
    ({**MM_PRM, "solutions_splits": "text"}, '"solutions_splits" holds .*expected a list'),
    ({**MM_PRM, "image_path": [3]}, "the images: found .*expected a list of texts"),
    ({**RLHFLOW, "answers": [3]}, '"answers": found'),
]


@pytest.mark.parametrize(("record", "problem"), BAD)
def test_a_bad_record_is_told_with_its_place_and_a_remedy(tmp_path: Path, record: Any, problem: str) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{**RLHFLOW, "id": "other"}, record])
    with pytest.raises(DataError, match=problem) as raised:
        read_candidates(path)
    assert f"{path}:2: " in str(raised.value)
    assert "docs/reranking.md" in str(raised.value)


def test_a_question_that_comes_twice_is_told_with_both_places(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [OWN, OWN])
    with pytest.raises(DataError, match=r"c\.jsonl:2: question 'q1' of 'geo' is in .*c\.jsonl:1 already"):
        read_candidates(path)


def test_a_broken_array_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"prompt": "q"')
    with pytest.raises(DataError, match="a.json:1: not JSON: Expecting ','"):
        read_candidates(path)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [])
    other = write_jsonl(tmp_path / "d.jsonl", [])
    for paths in (path, (str(path),), [path, other]):
        with pytest.raises(DataError) as raised:
            read_candidates(paths)
        assert f"{path}: holds no record" in str(raised.value)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of mprm, mm-prm, rlhflow"):
        read_candidates(tmp_path, format="csv")

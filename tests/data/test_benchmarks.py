import gzip
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from mprm.data.benchmarks import (
    NONE_LEFT,
    OCCURS_TWICE,
    PAST_THE_END,
    read_benchmark,
)
from mprm.data.images import check_images_exist, check_images_readable
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError
from tests.conftest import PUBLIC, raw_record, write_jsonl

VISUAL = {
    "image": ["images/1.png", "images/2.png"],
    "question": "<image1> What is x?",
    "answer": "4",
    "response": {"steps": ["a", "b", "c", "d"], "process_correctness": [1, 0, -1, 1]},
    "policy_model": "GPT-4o",
    "data_source": "MathVision",
}
PROCESS = {
    "id": "math-0",
    "generator": "g",
    "problem": "What is x?",
    "steps": ["a", "b", "c"],
    "final_answer_correct": False,
    "label": 1,
}
PRM = {
    "original_question": "What is x?",
    "modified_question": "What may x be?",
    "original_process": ["1. a", "2. b"],
    "modified_process": ["1. a", "2. z", "3. b"],
    "modified_steps": [2, 3],
    "error_steps": [2],
    "reason": "",
    "idx": "t_0",
    "question": "What is $x$?",
    "classification": "circular",
}
VLRM = {
    "id": "4d",
    "image": ["dyna/1.jpg"],
    "question": "Which?",
    "step_list": ["STEP1: a\n\n", "STEP2: b"],
    "reasoning_error": "STEP1: a\n\n\nSTEP2: not b\nand more",
    "task_gt": [0, 1],
    "category": "location_error",
}


def test_visualprocessbench_labels_are_taken_as_they_stand(tmp_path: Path) -> None:
    (solution,) = read_benchmark(write_jsonl(tmp_path / "test.jsonl", [VISUAL])).solutions
    assert (solution.labels, solution.first_error, solution.source) == ((1, 0, -1, 1), 2, "MathVision")
    assert (solution.images, solution.id) == (("images/1.png", "images/2.png"), "test:1")
    assert solution.chain.steps == ("a", "b", "c", "d")


def test_processbench_steps_after_the_first_error_are_ignored(tmp_path: Path) -> None:
    # the label counts from 0: step b is the first error, nobody judged c
    path = write_jsonl(tmp_path / "math.jsonl", [PROCESS, {**PROCESS, "id": "math-1", "label": -1}])
    wrong, right = read_benchmark(path).solutions
    assert (wrong.labels, wrong.first_error, wrong.source, wrong.id) == ((1, -1, 0), 1, "math", "math-0")
    assert (right.labels, right.first_error) == ((1, 1, 1), None)


def test_processbench_is_read_from_a_json_array_with_the_lines_of_its_records(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.json"
    path.write_text("\n" + json.dumps([PROCESS, {**PROCESS, "id": "math-1"}], indent=2))
    first, second = read_benchmark(path).solutions
    # line 1 is empty, 2 is [, the first record begins at 3; it has 8 lines besides 2 more for the brackets of steps
    n_lines = json.dumps(PROCESS, indent=2).count("\n") + 1
    assert (first.location, second.location) == (f"{path}:3", f"{path}:{3 + n_lines}")


def test_prmbench_gives_the_original_and_the_modified_solution_of_one_problem(tmp_path: Path) -> None:
    original, modified = read_benchmark(write_jsonl(tmp_path / "x.jsonl", [PRM])).solutions
    assert (original.labels, original.first_error, original.question) == ((1, 1), None, "What is x?")
    # error steps count from 1
    assert (modified.labels, modified.first_error, modified.question) == ((1, -1, 1), 1, "What may x be?")
    assert original.source == modified.source == "circular"
    assert original.problem == modified.problem
    assert (original.id, modified.id) == ("t_0/circular/original", "t_0/circular/modified")


def test_prmbench_error_steps_beyond_the_end_are_told(tmp_path: Path) -> None:
    records = [{**PRM, "error_steps": [2, 9]}, {**PRM, "error_steps": [8, 9]}]
    benchmark = read_benchmark(write_jsonl(tmp_path / "x.jsonl", records))
    assert [s.labels for s in benchmark.solutions] == [(1, 1), (1, -1, 1), (1, 1)]
    assert benchmark.notes == (
        f"1 record: {PAST_THE_END} (the first {tmp_path}/x.jsonl:1)",
        f"1 record: {NONE_LEFT} (the first {tmp_path}/x.jsonl:2)",
        f"1 record: {OCCURS_TWICE} (the first {tmp_path}/x.jsonl:2)",  # the original solution
    )


def test_vlrmbench_steps_are_those_of_the_text_with_errors(tmp_path: Path) -> None:
    (solution,) = read_benchmark(write_jsonl(tmp_path / "x.jsonl", [VLRM])).solutions
    assert solution.steps == ("STEP1: a", "STEP2: not b\nand more")
    assert (solution.labels, solution.source, solution.images) == ((1, -1), "location_error", ("dyna/1.jpg",))


def test_rollouts_are_a_benchmark_with_labels_cut_at_tau(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "ai2d.jsonl", [raw_record([1.0, 0.25, 0.0])])
    (solution,) = read_benchmark(path).solutions
    assert (solution.labels, solution.first_error, solution.source, solution.id) == ((1, 1, -1), 2, "ai2d", "ai2d:1")
    (strict,) = read_benchmark(path, tau=0.25).solutions
    assert strict.labels == (1, -1, -1)


def test_steps_that_were_never_sampled_are_told(tmp_path: Path) -> None:
    record = raw_record([1.0, 0.0])
    record["steps_with_score"][1].update(num_mc_total=0)
    (note,) = read_benchmark(write_jsonl(tmp_path / "a.jsonl", [record])).notes
    assert "never sampled" in note


def test_rollouts_on_one_line_have_ids_of_their_own(tmp_path: Path) -> None:
    steps = [
        {"completions": [{"text": "a", "rating": 1, "flagged": None}, {"text": "z", "rating": -1, "flagged": None}],
         "human_completion": None, "chosen_completion": 0},
    ]  # fmt: skip
    record = {
        "question": {"problem": "q", "ground_truth_answer": "1"},
        "label": {"steps": steps, "finish_reason": "x"},
    }
    solutions = read_benchmark(write_jsonl(tmp_path / "prm.jsonl", [record])).solutions
    assert sorted(s.id for s in solutions) == ["prm:1", "prm:1.2"]


def test_one_problem_has_one_key_across_files_generators_and_formats(tmp_path: Path) -> None:
    other = {**PROCESS, "id": "math-1"}
    write_jsonl(tmp_path / "a.jsonl", [PROCESS, {**other, "generator": "other", "steps": ["z"], "label": -1}])
    write_jsonl(tmp_path / "b.jsonl", [{**PROCESS, "problem": "What  is x?\n"}, {**other, "problem": "What is y?"}])
    write_jsonl(tmp_path / "c.jsonl", [{"prompt": "What is x?", "completions": ["a"], "labels": [True]}])
    keys = [solution.problem for solution in read_benchmark(tmp_path).solutions]
    assert keys[0] == keys[1] == keys[2] == keys[4] != keys[3]


@pytest.mark.parametrize(("record", "name"), [(PROCESS, "math-0"), (VLRM, "4d"), ({**VISUAL, "id": 7}, "7")])
def test_an_id_that_occurs_twice_in_a_file_is_refused_with_both_lines(
    tmp_path: Path, record: dict, name: str
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record, b"", record])
    with pytest.raises(DataError, match=f"{path}:3: the id '{name}' is that of {path}:1 too"):
        read_benchmark(path)
    # in another file it may be another's
    write_jsonl(tmp_path / "x.jsonl", [record])
    write_jsonl(tmp_path / "y.jsonl", [record])
    assert len(read_benchmark(tmp_path).solutions) == 2


def test_solutions_that_occur_twice_without_an_id_are_told(tmp_path: Path) -> None:
    other = {**VISUAL, "data_source": "MathVerse"}
    relabelled = {**VISUAL, "response": {**VISUAL["response"], "process_correctness": [1, 1, 1, 1]}}
    write_jsonl(tmp_path / "a.jsonl", [VISUAL, other, relabelled, VISUAL])
    write_jsonl(tmp_path / "b.jsonl", [VISUAL])
    benchmark = read_benchmark(tmp_path)
    assert benchmark.notes == (f"2 records: {OCCURS_TWICE} (the first {tmp_path}/a.jsonl:4)",)
    assert len(benchmark.solutions) == 5
    rollouts = write_jsonl(tmp_path / "c" / "ai2d.jsonl", [raw_record([1.0, 0.0])] * 3)
    assert read_benchmark(rollouts).notes == (f"2 records: {OCCURS_TWICE} (the first {rollouts}:2)",)


def test_other_images_are_another_problem(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [VISUAL, {**VISUAL, "image": "images/1.png"}])
    first, second = read_benchmark(path).solutions
    assert first.problem != second.problem


@pytest.mark.parametrize(
    ("record", "field", "value", "words"),
    [
        (VISUAL, "response", {"steps": ["a"], "process_correctness": [1, 1]}, "1 steps and 2 labels"),
        (VISUAL, "response", {"steps": ["a"], "process_correctness": [2]}, "label 2; expected 1, 0 or -1"),
        (VISUAL, "response", {"steps": ["a"], "process_correctness": [True]}, "expected whole numbers"),
        (VISUAL, "response", {"steps": [], "process_correctness": []}, "at least one step"),
        (VISUAL, "response", {"process_correctness": [1]}, '"steps" is missing'),
        (VISUAL, "image", [], "names no image"),
        (VISUAL, "image", [3], "expected a path or a list of paths"),
        (VISUAL, "question", " ", '"question" is empty'),
        (VISUAL, "data_source", {"a": 1}, '"data_source" holds'),
        (PROCESS, "label", 3, "expected a step from 0 to 2, or -1"),
        (PROCESS, "label", -2, "expected a step from 0 to 2, or -1"),
        (PROCESS, "label", True, "expected a step from 0 to 2, or -1"),
        (PROCESS, "label", None, "expected a step from 0 to 2, or -1"),
        (PROCESS, "steps", ["a", 1], 'step 1 of "steps" is 1'),
        (PROCESS, "problem", None, '"problem" is missing'),
        (PRM, "error_steps", [0], "the first step is 1"),
        (PRM, "error_steps", ["2"], "expected whole numbers"),
        (PRM, "modified_process", [], "at least one step"),
        (VLRM, "task_gt", [0], "2 steps and 1 labels"),
        (VLRM, "task_gt", [0, 2], "expected 1 for an error"),
        (VLRM, "reasoning_error", " ", '"reasoning_error" is empty'),
    ],
)  # fmt: skip
def test_a_bad_record_is_named_with_file_line_and_remedy(
    tmp_path: Path, record: dict, field: str, value: object, words: str
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record, b"", {**record, field: value}])
    with pytest.raises(DataError) as error:
        read_benchmark(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert words in str(error.value)
    assert "Fix or remove these records" in str(error.value)


def test_a_bad_rollout_is_named_without_advice_that_this_command_does_not_take(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0]), raw_record([1.0], question_orig=" ", question=" ")])
    with pytest.raises(DataError, match=r"a\.jsonl:2: .* are empty(.|\n)*mprm check") as error:
        read_benchmark(path)
    assert "--skip-bad" not in str(error.value)


GOOD = b'[{"problem": "q", "steps": ["a"], "label": 0}]'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no record"),
        (b"\n\n", "holds no record"),
        (b"{]\n", ":1: not JSON"),
        (b"3\n", ":1: found 3; expected a JSON object"),
        (b'[{"problem": "q", "steps": ["a"], "label": 0},\n {"b"]', ":2: not JSON"),
        (b'[\n3]', ":2: found 3"),
        (b'\n{"foo": 1}\n', ":2: the record has the fields foo"),
        (GOOD[:-1] + b"\n] garbage {}", ":2: not JSON: Expecting nothing after the last record"),
        (GOOD + b"\n" + GOOD, ":2: not JSON: Expecting nothing after the last record"),
        (b"[]\n{}", ":2: not JSON: Expecting nothing after the last record"),
        (GOOD[:-1] + b"\n" + GOOD[1:], ":2: not JSON: Expecting ','"),
        (GOOD[:-1] + b"; " + GOOD[1:], ":1: not JSON: Expecting ','"),
        (GOOD[:-1], ":1: not JSON: Expecting ','"),
        (GOOD[:-1] + b",\n]", ":2: not JSON: Expecting value"),
        (GOOD[:-1] + b",, " + GOOD[1:], ":1: not JSON: Expecting value"),
        (b"[" + b", " + GOOD[1:], ":1: not JSON: Expecting value"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_benchmark_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_benchmark(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_an_empty_array_is_refused_even_when_its_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(DataError, match="holds no record"):
        read_benchmark(path, format="processbench")


def test_a_named_format_wins_over_the_first_record(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [PROCESS])
    with pytest.raises(DataError, match="original_question"):
        read_benchmark(path, format="prmbench")
    with pytest.raises(ConfigError, match="unknown benchmark format 'x'; expected one of visualprocessbench"):
        read_benchmark(path, format="x")


def test_text_only_takes_records_without_an_image(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{**VISUAL, "image": None}])
    assert read_benchmark(path, text_only=True).solutions[0].images == ()


def test_missing_images_are_listed(tmp_path: Path) -> None:
    benchmark = read_benchmark(write_jsonl(tmp_path / "x.jsonl", [VISUAL]))
    with pytest.raises(ConfigError, match=r"2 images are named.*--image-root"):
        check_images_exist(benchmark, None)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").touch()
    with pytest.raises(InputNotFoundError, match=r"1 of 2 images are not under .*\n  images/2.png \(.*x.jsonl:1\)"):
        check_images_exist(benchmark, tmp_path)
    (tmp_path / "images" / "2.png").touch()
    check_images_exist(benchmark, tmp_path)


def test_all_images_that_cannot_be_decoded_are_listed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    names = ["1.png", "2.png", "3.png", "4.png"]
    records = [{**VISUAL, "image": ["1.png", "2.png"]}, {**VISUAL, "image": ["2.png", "3.png"]},
               {**VISUAL, "image": "4.png"}]  # fmt: skip
    benchmark = read_benchmark(write_jsonl(tmp_path / "x.jsonl", records))
    for name in names:
        image.effect_noise((64, 64), 90).save(tmp_path / name)  # noise, so that a file has many bytes to cut off
    check_images_readable(benchmark, tmp_path)
    whole = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "4.png").write_bytes(b"")
    check_images_exist(benchmark, tmp_path)
    with pytest.raises(DataError) as error:
        check_images_readable(benchmark, tmp_path)
    head, *lines = str(error.value).splitlines()
    assert head.startswith("2 of 4 images cannot be used")
    # 2.png is named by the records of lines 1 and 2
    assert [line.split(" cannot be read")[0] for line in lines] == [
        f"{tmp_path}/x.jsonl:1: image {tmp_path}/2.png",
        f"{tmp_path}/x.jsonl:3: image {tmp_path}/4.png",
    ]


def test_without_images_pillow_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    check_images_readable(read_benchmark(write_jsonl(tmp_path / "x.jsonl", [PROCESS])), None)
    with pytest.raises(MissingDependencyError, match="Pillow"):
        check_images_readable(read_benchmark(write_jsonl(tmp_path / "x.jsonl", [VISUAL])), tmp_path)


def test_an_image_path_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    benchmark = read_benchmark(write_jsonl(tmp_path / "x.jsonl", [{**VISUAL, "image": "../secret.png"}]))
    with pytest.raises(DataError, match=r"x\.jsonl:1: .*leaves the image root"):
        check_images_exist(benchmark, tmp_path)


@pytest.mark.parametrize("size", PUBLIC)
def test_processbench_as_published_is_read(size: str) -> None:
    paths = sorted((PUBLIC[size] / "processbench").glob("*.json"))
    solutions = read_benchmark(paths).solutions
    records = [record for path in paths for record in json.loads(path.read_text())]
    n_of_source, n_steps, n_errors = {
        "excerpt": ({"gsm8k": 3, "math": 3, "olympiadbench": 3, "omnimath": 3}, 51, 8),
        "whole": ({"gsm8k": 400, "math": 1000, "olympiadbench": 1000, "omnimath": 1000}, 25_697, 2221),
    }[size]
    assert Counter(s.source for s in solutions) == n_of_source
    assert sum(len(s.steps) for s in solutions) == n_steps
    assert [-1 if s.first_error is None else s.first_error for s in solutions] == [r["label"] for r in records]
    # steps before the first error, and all of a correct solution
    n_right = sum(len(r["steps"]) if r["label"] < 0 else r["label"] for r in records)
    labels = Counter(label for s in solutions for label in s.labels)
    assert labels == {1: n_right, -1: n_errors, 0: n_steps - n_right - n_errors}


@pytest.mark.parametrize("size", PUBLIC)
def test_prmbench_as_published_is_read(size: str) -> None:
    folder = PUBLIC[size] / "prmbench"
    benchmark = read_benchmark(sorted(folder.glob("*.gz")))
    n_records = sum(len(gzip.open(path).read().splitlines()) for path in folder.glob("*.gz"))
    # (records, records whose error steps all lie beyond the end), labels, sources, problems, records of each note
    expected = {
        # correct: original solutions 12 + 40 + 33 + 9 steps, modified ones 7 + 3 + 65 + 31
        "excerpt": ((9, 1), {1: 200, -1: 16}, 3, 6, ["1", "1", "3"]),
        "whole": ((6218, 16), {1: 158_335, -1: 13_149}, 9, 708, ["84", "16", "9"]),
    }[size]
    # each record gives two solutions, but for those whose error steps all lie beyond the end
    assert (n_records, 2 * n_records - len(benchmark.solutions)) == expected[0]
    assert Counter(label for s in benchmark.solutions for label in s.labels) == expected[1]
    assert len({s.source for s in benchmark.solutions}) == expected[2]
    assert len({s.problem for s in benchmark.solutions}) == expected[3]
    # the last: the original solutions of ids that a file has twice (1 and 5), and both solutions of records that two
    # files have (1 and 2)
    assert [note.split(" record")[0] for note in benchmark.notes] == expected[4]


@pytest.mark.parametrize("size", PUBLIC)
def test_vlrmbench_as_published_is_read(size: str) -> None:
    solutions = read_benchmark(sorted((PUBLIC[size] / "vlrmbench_part").glob("*.jsonl"))).solutions
    n_of_source, n_of_label = {
        "excerpt": ({"location_error": 3, "image_ref_error": 2}, {1: 34, -1: 11}),
        "whole": ({"location_error": 126, "image_ref_error": 58}, {1: 2111, -1: 371}),
    }[size]
    assert Counter(s.source for s in solutions) == n_of_source
    assert Counter(label for s in solutions for label in s.labels) == n_of_label

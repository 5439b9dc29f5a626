from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mprm.answers.compare import read_answer
from mprm.data.questions import QUESTION_FORMATS, read_questions
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, InputNotFoundError
from tests.conftest import PUBLIC, write_jsonl

PLAIN = {"id": "1", "image": "a.png", "question": "How many?", "answer": "3", "source": "mine"}
MATHVERSE = {
    "sample_index": "1",
    "problem_index": "1",
    "problem_version": "Text Dominant",
    "question": "How large is the angle? ()\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°",
    "image": "images_version_1-4/image_1.png",
    "answer": "D",
    "question_type": "multi-choice",
    "question_for_eval": "How large is the angle? ()\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°",
}
MATHVISTA = {
    "pid": "7",
    "question": "Which is taller?",
    "image": "images/7.jpg",
    "choices": ["the tree", "the house"],
    "unit": None,
    "precision": None,
    "answer": "the house",
    "question_type": "multi_choice",
    "answer_type": "text",
}
OLYMPIAD = {
    "id": 1606,
    "question": "How long is it? <image_1>",
    "context": "A rod leans.",
    "final_answer": ["$\\frac{1}{2}$"],
    "image_1": "images/1606.png",
    "image_2": None,
    "modality": "Multimodal",
    "unit": "m",
    "answer_type": "Numerical",
}


def read(tmp_path: Path, *records: Any, name: str = "questions.jsonl", **options: Any) -> list[Question]:
    return read_questions(write_jsonl(tmp_path / name, list(records)), **options)


def test_plain_questions_are_read(tmp_path: Path) -> None:
    two = {"id": 2, "image": ["b.png", "c.png"], "question": "Which?", "answer": "no", "options": ["yes", "no"]}
    text = {"id": "3", "question": "1+1?", "answer": 2}
    assert read(tmp_path, PLAIN, two, text) == [
        Question(id="1", question="How many?", answer="3", images=("a.png",), source="mine"),
        Question(
            id="2",
            question="Which?\nA. yes\nB. no",
            answer="B",
            images=("b.png", "c.png"),
            source="questions",
            options=("yes", "no"),
        ),
        Question(id="3", question="1+1?", answer="2", source="questions"),
    ]


def test_images_are_read_whatever_their_field_is_called(tmp_path: Path) -> None:
    plain = {name: value for name, value in PLAIN.items() if name != "image"}
    for name in ("image", "images", "image_path"):
        for value in ("a.png", ["a.png"], [{"path": "a.png"}]):
            assert read(tmp_path, {**plain, name: value})[0].images == ("a.png",)
    assert read(tmp_path, {**plain, "image": None, "images": ["a.png"]})[0].images == ("a.png",)
    with pytest.raises(DataError, match="images are named in image and images; expected one of these fields"):
        read(tmp_path, {**plain, "image": "a.png", "images": ["b.png"]})
    assert read(tmp_path, {**plain, "images": [None], "image_path": "a.png"})[0].images == ("a.png",)
    with pytest.raises(
        DataError, match=r'no question names an image in "image" or "images" or "image_path"; add them'
    ):
        read(tmp_path, plain, image_root=tmp_path)
    geometry = {"images": ["1.png"], "problem": "<image>Find x.", "answer": "3"}
    assert read(tmp_path, geometry)[0].images == ("1.png",)
    k12 = {"id": "1", "question": "How many?", "answer": "3", "subject": "s", "image": "1.png", "image_path": "1.png"}
    with pytest.raises(DataError, match="images are named in image and image_path; expected one of these fields"):
        read(tmp_path, k12)
    olympiad = {"id": 1, "question": "?", "final_answer": ["3"], "answer_type": "N", "image_1": "a.png"}
    assert read(tmp_path, olympiad)[0].images == ("a.png",)
    with pytest.raises(DataError, match="images are named in image_1 … and images; expected one of these fields"):
        read(tmp_path, {**olympiad, "images": ["a.png"]})


def test_a_question_without_an_answer_is_told_what_it_misses(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nearest is plain: it misses answer"):
        read(tmp_path, {"id": "1", "question": "2+2?"})


@pytest.mark.parametrize(
    ("answer", "options", "letter"),
    [
        ("B", ["x", "y"], "B"),
        ("(B)", ["x", "y"], "B"),
        ("y", ["x", "y"], "B"),
        (1, ["x", "y"], "B"),  # the number of an option, from 0
        (1, ["1", "2"], "A"),  # a number among numbers is the option's text
        ("1", ["0", "1"], "B"),
        ("0.5", [r"$\frac{1}{3}$", r"$\frac{1}{2}$"], "B"),
    ],
)
def test_the_gold_answer_of_a_choice_becomes_its_letter(
    tmp_path: Path, answer: str | int, options: list[str], letter: str
) -> None:
    assert read(tmp_path, {**PLAIN, "answer": answer, "options": options})[0].answer == letter


def test_json_csv_parquet_and_packed_files_are_read_alike(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"id": "1", "image": ["a.png", "b.png"], "question": "How,\nmany?", "answer": "A", "options": ["1", "2"]},
        {"id": "2", "image": ["c.png"], "question": 'The "second"?', "answer": "B", "options": ["3", "4"]},
    ]
    (tmp_path / "list.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "keyed.json").write_text(json.dumps({r["id"]: {k: r[k] for k in r if k != "id"} for r in records}))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    rows = [
        "id,image,question,answer,options",
        '1,"[""a.png"", ""b.png""]","How,\nmany?",A,"[""1"", ""2""]"',
        '2,c.png,"The ""second""?",B,"[""3"", ""4""]"',
    ]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    expected = [(q.id, q.images, q.question, q.answer, q.options) for q in read(tmp_path, *records)]
    for name in ("list.json", "keyed.json", "packed.jsonl.gz", "rows.parquet", "table.csv"):
        questions = read_questions(tmp_path / name)
        assert [(q.id, q.images, q.question, q.answer, q.options) for q in questions] == expected, name
        assert {q.source for q in questions} == {name.split(".")[0]}


def test_mathverse_is_read(tmp_path: Path) -> None:
    vision = {**MATHVERSE, "sample_index": "5", "problem_version": "Vision Only", "question": ""}
    free = {**MATHVERSE, "sample_index": "6", "question": "How long?", "question_type": "free-form", "answer": "5"}
    first, second, third = read(tmp_path, MATHVERSE, vision, free)
    assert (first.question, first.options) == (MATHVERSE["question"], ("40°", "60°", "120°", "140°"))
    assert (first.answer, first.id, first.source) == ("D", "1", "mathverse")
    # what a picture alone tells is not told in the text
    assert (second.question, second.options) == ("Answer the question that the image shows.", ("A", "B", "C", "D"))
    assert (third.answer, third.options) == ("5", ())


def test_mathvista_is_read(tmp_path: Path) -> None:
    free = {**MATHVISTA, "pid": "8", "question": "How long?", "choices": None, "unit": "cm", "precision": 1.0}
    free |= {"answer": "1.2", "question_type": "free_form", "answer_type": "float"}
    path = tmp_path / "testmini.json"
    path.write_text(json.dumps({"7": MATHVISTA, "8": free, "9": {**free, "pid": "9", "precision": 10**4000}}))
    choice, number, no_precision = read_questions(path)
    assert no_precision.question == "How long? (Unit: cm)"
    assert (choice.id, choice.answer, choice.options) == ("7", "B", ("the tree", "the house"))
    assert choice.question == "Which is taller?\nA. the tree\nB. the house"
    assert number.question == "How long? (Unit: cm)\nGive the answer with 1 digit(s) after the point."
    assert (number.answer, number.options, number.images) == ("1.2", (), ("images/7.jpg",))


def test_olympiadbench_is_read(tmp_path: Path) -> None:
    text = {**OLYMPIAD, "id": 2, "image_1": None, "modality": "Text-only", "unit": None, "context": None}
    text |= {"final_answer": ["2", "3"]}
    with_image, text_only = read(tmp_path, OLYMPIAD, text)
    assert with_image.question == "A rod leans.\n\nHow long is it? <image_1>\n\nGive the answer in m."
    assert (with_image.id, with_image.answer, with_image.images) == ("1606", "$\\frac{1}{2}$", ("images/1606.png",))
    assert (text_only.answer, text_only.images) == ("2, 3", ())


def test_mm_k12_is_read_in_both_layouts(tmp_path: Path) -> None:
    seed = {"id": "k1", "question": "How many?", "correct_answer": "3", "image_path": "/data/k1.png"}
    hub = {
        "id": "k2",
        "question": "Which?\nA. 1\nB. 2",
        "answer": "B",
        "subject": "math",
        "image": {"path": "k2.png"},
    }
    (of_seed,) = read(tmp_path, seed, name="seed.jsonl")
    (of_hub,) = read(tmp_path, hub, name="hub.jsonl")
    assert (of_seed.answer, of_seed.images, of_seed.source) == ("3", ("/data/k1.png",), "mm-k12")
    assert (of_hub.answer, of_hub.options, of_hub.question) == ("B", ("1", "2"), "Which?\nA. 1\nB. 2")


MATHVISION = {
    # (excerpt or whole, file): questions, multiple choices among them
    ("excerpt", "test.jsonl"): (145, 55),
    ("excerpt", "testmini.jsonl"): (10, 5),
    ("whole", "test.jsonl"): (3040, 1532),
    ("whole", "testmini.jsonl"): (304, 190),
}


@pytest.mark.parametrize("file", ["test.jsonl", "testmini.jsonl"])
@pytest.mark.parametrize("size", PUBLIC)
def test_mathvision_as_published_is_read(size: str, file: str) -> None:
    questions = read_questions(PUBLIC[size] / "mathvision" / file)
    assert (len(questions), sum(bool(q.options) for q in questions)) == MATHVISION[size, file]
    assert {q.source for q in questions} == {"mathvision"}
    assert all(q.answer in "ABCDE" for q in questions if q.options)


@pytest.mark.parametrize("size", PUBLIC)
def test_dynamath_as_published_is_read(size: str) -> None:
    path = PUBLIC[size] / "dynamath/dataset.json"
    questions = {q.id: q for q in read_questions(path)}
    assert list(questions) == list(json.loads(path.read_text()))
    # as many as say "multiple choice"
    n_questions, n_choices = {"excerpt": (120, 40), "whole": (501, 174)}[size]
    assert (len(questions), sum(bool(q.options) for q in questions.values())) == (n_questions, n_choices)
    assert questions["14"].options == ("larger than", "equal to", "smaller than")  # "Choices: (A) larger than …"
    assert questions["29"].options == ("even", "odd")  # "choice: (A) even …"


def test_a_missing_id_is_made_from_file_and_line(tmp_path: Path) -> None:
    record = {"question": "?", "answer": "1"}
    assert [q.id for q in read(tmp_path, PLAIN, record, record)] == ["1", "questions.jsonl:2", "questions.jsonl:3"]


@pytest.mark.parametrize(
    ("answer", "options", "gold", "is_extracted"),
    [
        ("9 * 2 = 18.\n#### 18", [], "18", True),
        (r"So $x = \boxed{\frac{1}{2}}$ of it.", [], r"\frac{1}{2}", True),
        ("She has 9. The answer is 18.", [], "18", True),
        ("Of the two, the second.\nThe answer is (B)", ["x", "y"], "B", True),
        ("The answer is y", ["The answer is x", "The answer is y"], "B", True),
        ("Mr. Smith", [], "Mr. Smith", False),
        ("\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}", [], "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}", False),
    ],
)
def test_the_gold_answer_is_read_out_of_a_rationale(
    tmp_path: Path, answer: str, options: list[str], gold: str, is_extracted: bool
) -> None:
    [question] = read(tmp_path, {**PLAIN, "answer": answer, "options": options})
    assert (question.answer, question.is_extracted) == (gold, is_extracted)


@pytest.mark.parametrize("size", PUBLIC)
def test_gsm8k_as_published_is_read(size: str) -> None:
    folder = PUBLIC[size] / "gsm8k"
    records = [json.loads(line) for line in (folder / "example_model_solutions.jsonl").read_text().splitlines()]
    known = {record["question"]: record["ground_truth"].split("\nA: ")[-1] for record in records}
    questions = read_questions(folder / "test.jsonl")
    assert len(questions) == len(known) == {"excerpt": 100, "whole": 1319}[size]
    assert [(q.question, q.answer) for q in questions if q.answer != known[q.question]] == []
    assert all(q.is_extracted and q.source == "gsm8k" for q in questions)
    assert questions[2].id == "test.jsonl:3"


@pytest.mark.parametrize("size", PUBLIC)
def test_math500_as_published_is_read_from_answers_and_from_solutions(size: str, tmp_path: Path) -> None:
    path = PUBLIC[size] / "math500" / "test500.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    questions = read_questions(path)
    expected = [(record["unique_id"], record["problem"].strip(), record["answer"]) for record in records]
    assert [(q.id, q.question, q.answer) for q in questions] == expected
    assert len(questions) == {"excerpt": 120, "whole": 500}[size]
    assert not any(q.is_extracted for q in questions)
    # MATH itself gives the solution alone: its last box holds the answer, in one or another way of writing
    solved = [{key: record[key] for key in ("problem", "solution", "unique_id")} for record in records]
    by_solution = read(tmp_path, *solved)
    assert all(q.is_extracted for q in by_solution)
    known = [read_answer(record["answer"]).key for record in records]
    assert [read_answer(q.answer).key for q in by_solution] == known


BAD = [
    (b"{", "not JSON"),
    (b"[1, 2]", "found 1"),  # the file is one list then
    (b'"text"', "expected a JSON object"),
    ({"id": "2", "question": "?"}, '"answer" is missing'),
    ({"id": "2", "question": "?", "answer": "She sells 9.\nThat makes 18."}, "states no final answer"),
    ({"id": "2", "question": "?", "answer": "She sells 9 eggs. That makes 18."}, "states no final answer"),
    ({"id": "2", "question": " ", "answer": "1"}, '"question" is empty'),
    ({"id": "2", "question": ["?"], "answer": "1"}, "expected text"),
    ({"id": "2", "question": "?", "answer": True}, "holds True"),
    ({"id": "2", "question": "?", "answer": "1", "image": 5}, "expected a path"),
    ({"id": "2", "question": "?", "answer": "1", "image": {"bytes": "x"}}, "image without a path"),
    ({"id": "2", "question": "?", "answer": "C", "options": ["x", "y"]}, "A to B"),
    ({"id": "2", "question": "?", "answer": "x", "options": ["x", "x"]}, "A to B"),
    ({"id": "2", "question": "?", "answer": "A", "options": ["x"]}, "1 option"),
    ({"id": "2", "question": "?", "answer": "A", "options": "x"}, "list of texts"),
    (b'{"id": "2", "question": "\\ud800", "answer": "1"}', "surrogate"),
    (b'{"id": "2", "question": "\xff", "answer": "1"}', "UTF-8"),
]


@pytest.mark.parametrize(("record", "text"), BAD)
def test_a_bad_record_is_named_by_its_line(tmp_path: Path, record: Any, text: str) -> None:
    is_list = record == b"[1, 2]"
    with pytest.raises(DataError) as caught:
        read(tmp_path, *([] if is_list else [PLAIN]), record)
    assert f"questions.jsonl:{1 if is_list else 2}: " in str(caught.value)
    assert text in str(caught.value)
    assert "Fix or remove these records" in str(caught.value)


def test_all_bad_records_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, PLAIN, *[{"id": str(n), "question": "?"} for n in range(2, 40)])
    assert "questions.jsonl:2:" in str(caught.value)
    assert "questions.jsonl:21:" in str(caught.value)
    assert "and 18 more" in str(caught.value)  # 38 bad ones, 20 named


def test_a_field_that_a_format_needs_is_named(tmp_path: Path) -> None:
    for format_name, record, field in [
        ("mathvision", {"id": "1", "question": "?", "answer": "3"}, '"image"'),
        ("dynamath", {"id": "1", "question": "?", "answer": "3", "image": "a.png"}, '"answer_type"'),
        ("mm-k12", {"id": "1", "question": "?", "image": "a.png"}, '"answer" or "correct_answer"'),
        ("olympiadbench", {**OLYMPIAD, "final_answer": None}, '"final_answer"'),
        ("mathverse", {k: v for k, v in MATHVERSE.items() if k != "question_type"}, '"question_type"'),
        ("mathvista", {k: v for k, v in MATHVISTA.items() if k != "answer"}, '"answer"'),
    ]:
        with pytest.raises(DataError, match=rf"questions.jsonl:1: .*{field}"):
            read(tmp_path, record, format=format_name)


def test_two_records_with_one_id_are_both_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [PLAIN])
    write_jsonl(tmp_path / "b.jsonl", [{**PLAIN, "id": "2"}, {**PLAIN, "id": 1}])
    with pytest.raises(DataError, match=r'b.jsonl:2: the id "1" is taken by .*a.jsonl:1'):
        read_questions([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    (tmp_path / "c.json").write_text(
        '{"1": {"question": "?", "answer": "1"},\n"1": {"question": "?", "answer": "2"}}'
    )
    with pytest.raises(DataError, match=r'c.json:2: the id "1" is taken by .*c.json:1'):
        read_questions(tmp_path / "c.json")


def test_lines_of_documents_and_tables_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([PLAIN, {"id": "2"}], indent=1))
    with pytest.raises(DataError, match=r"a.json:9: "):  # a bracket and the seven lines of the first record
        read_questions(tmp_path / "a.json")
    (tmp_path / "broken.json").write_text('[\n{"id": "1", "question": "?", "answer": "1"}\n{}]')
    with pytest.raises(DataError, match=r"broken.json:3: not JSON: Expecting ','"):
        read_questions(tmp_path / "broken.json")
    (tmp_path / "a.csv").write_text('id,question,answer\n1,"two\nlines",3\n2,?,\n3,?,4,5\n')
    with pytest.raises(DataError, match=r'(?s)a.csv:4: .*"answer" is missing.*a.csv:5: the row has 1 cell'):
        read_questions(tmp_path / "a.csv")


def test_unknown_formats_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"questions.jsonl:1: .*fields prompt.*plain"):
        read(tmp_path, {"prompt": "?"}, {"prompt": "!"})
    with pytest.raises(ConfigError, match="mathvision"):
        read(tmp_path, PLAIN, format="nonsense")
    with pytest.raises(DataError, match="holds no record"):
        read(tmp_path)
    with pytest.raises(InputNotFoundError):
        read_questions(tmp_path / "nowhere.jsonl")


def test_every_example_of_the_documentation_is_recognised_and_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")
    parts = text.split("\n### `")[1:]
    assert {part.split("`")[0] for part in parts} == set(QUESTION_FORMATS)
    for part in parts:
        name, example = part.split("`")[0], part.split("```json\n")[1].split("```")[0]
        path = tmp_path / f"{name}.json"
        path.write_text(example, encoding="utf-8")
        assert read_questions(path) == read_questions(path, format=name)
        if name != "plain":
            assert {question.source for question in read_questions(path)} == {name}


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text('{}[]":,\n id question answer 12', max_size=80).map(str.encode))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.jsonl", "a.json", "a.csv"):
        (folder / name).write_bytes(data)
        with pytest.raises(DataError):
            read_questions(folder / name)

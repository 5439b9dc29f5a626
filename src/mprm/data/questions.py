"""Questions with gold answers: their formats, reading them, and the prompt that a policy is asked.

To add a format: write its parse function and a `Format` in `QUESTION_FORMATS`. docs/questions.md shows a record of
each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mprm.answers.extract import gold_answer, stated_gold
from mprm.answers.options import LETTERS, letter_of, options_in, with_options
from mprm.data.format import Data, Format, by_name, check_no_bad, has, names_of, read_items, text_of
from mprm.data.images import IMAGE_MARK, find_images
from mprm.data.output import hash_file
from mprm.data.records import find_files
from mprm.data.types import BadRecord, Issues, Question, without_secrets
from mprm.errors import DataError, counted, shown


def read_questions(
    paths: Any,
    *,
    format: str | None = None,
    image_root: str | Path | None = None,
    on_renamed: Callable[[dict[str, str]], None] | None = None,
) -> list[Question]:
    """All questions of the files, in the order of the files and their lines.

    Parameters
    ----------
    paths
        Files, globs, folders or URLs: .jsonl, .json, .csv (each also as .gz or .zst) and .parquet.
    format
        Name of the format, where a file's first record must not decide.
    image_root
        Folder that must hold every image; the questions then name their images by the paths under it.
    on_renamed
        Called with images that have another name there than the questions give: that name, by the question's own.
    """
    questions: list[Question] = []
    bad: list[str] = []
    locations: dict[str, str] = {}
    for record, (item,), _ in read_items(paths, QUESTION_FORMATS, "question", format, bad):
        made_id = f"{Path(without_secrets(record.file.path)).name}:{record.line}"
        question = replace(item, id=item.id or record.key or made_id, source=item.source or record.file.source)
        location = record.location
        first = locations.setdefault(question.id, location)
        if first is not location:
            bad.append(f'{location}: the id "{question.id}" is taken by {first}; expected another one')
        questions.append(question)
    check_no_bad(bad, "Fix or remove these records; docs/questions.md shows what each format needs.")
    if image_root is None:
        return questions
    if questions and not any(question.images for question in questions):
        where = f"in {names_of(IMAGE_FIELDS)}"
        raise DataError(f"{image_root}: no question names an image {where}; add them, or leave out the image root")
    paths_of = find_images(dict.fromkeys(image for question in questions for image in question.images), image_root)
    renamed = {name: path for name, path in paths_of.items() if path != name}
    if renamed and on_renamed is not None:
        on_renamed(renamed)
    return [replace(question, images=tuple(paths_of[name] for name in question.images)) for question in questions]


def is_in_memory(questions: Any) -> bool:
    """Whether these are questions themselves, not names of files."""
    return isinstance(questions, list | tuple) and bool(questions) and isinstance(questions[0], Question)


def input_entries(paths: Any) -> list[dict[str, Any]]:
    """What a manifest says of the files that were read; one behind a URL has no hash."""
    return [
        {"path": file.name, "n_bytes": file.n_bytes, "xxh3_128": None if file.is_remote else hash_file(file.path)}
        for file in find_files(paths)
    ]


def given_questions(
    questions: Any, format: str | None, image_root: str | Path | None, renamed: dict[str, str]
) -> tuple[list[Question], list[dict[str, Any]]]:
    """The questions, from files or as they are, and the manifest's entries of their files."""
    if is_in_memory(questions):
        entries = list(questions)
        inputs: list[dict[str, Any]] = [{"path": "(in memory)"}]
    else:
        entries = read_questions(questions, format=format, image_root=image_root, on_renamed=renamed.update)
        inputs = input_entries(questions)
    if not entries:
        raise DataError(f"{questions}: no questions; expected at least one")
    for (source, own_id), n in Counter((question.source, question.id) for question in entries).items():
        if n > 1:
            raise DataError(f"{n} questions of source {source!r} have the id {own_id!r}; give them different ids")
    return entries, inputs


STEPS = "Solve the problem step by step, with a blank line between one step and the next."
OPEN = r"Put the final answer in \boxed{}."
CHOICE = r"Put the letter of the right option in \boxed{}."


def prompt_of(question: Question) -> str:
    """The question, its options where the text lacks them, and how to answer."""
    text = with_options(question.question, question.options)
    return f"{text.rstrip()}\n\n{STEPS} {CHOICE if question.options else OPEN}"


def _texts(data: Data, key: str) -> tuple[str, ...]:
    """The list of texts under the key; none when there is no such field."""
    values = data.get(key)
    if values is None or values == "":
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str | int | float) for value in values):
        raise BadRecord(f'"{key}" holds {shown(values)}; expected a list of texts')
    return tuple(str(value) for value in values)


def _images(data: Data, *keys: str, needed: bool = True) -> tuple[str, ...]:
    """The image paths under the keys: a text, a list of texts, or a Hugging Face image with its path."""
    paths: list[str] = []
    for key in keys:
        values = data.get(key)
        for value in values if isinstance(values, list) else [values]:
            path = value.get("path") if isinstance(value, dict) else value
            if isinstance(value, dict) and not path:
                raise BadRecord(f'"{key}" holds an image without a path; save the images and name their files')
            if path is not None and not isinstance(path, str):
                raise BadRecord(f'"{key}" holds {shown(value)}; expected a path or a list of paths')
            if path:
                paths.append(path)
    if needed and not paths:
        raise BadRecord(f"the field {names_of(keys)} names no image; expected a path")
    return tuple(paths)


def _images_of_one(data: Data, *keys: str, needed: bool = True) -> tuple[str, ...]:
    """The image paths under that one of the keys that names some; an error where several do."""
    named = [key for key in keys if _images(data, key, needed=False)]
    if len(named) > 1:
        raise BadRecord(f"images are named in {' and '.join(named)}; expected one of these fields")
    return _images(data, *(named or keys), needed=needed)


def _options(data: Data, key: str) -> tuple[str, ...]:
    """The options under the key; none, or two and more."""
    options = _texts(data, key)
    if len(options) == 1 or len(options) > len(LETTERS):
        raise BadRecord(f'"{key}" holds {len(options)} option(s); expected none, or 2 to {len(LETTERS)}')
    return options


def read_gold(answer: str | int, options: Sequence[str] = (), *, text_first: bool = False) -> str:
    """The gold answer alone, an option's letter where there are options; raises `BadRecord` where none is stated."""
    if options:
        if (letter := letter_of(answer, options, text_first=text_first)) is None:
            expected = f"expected {LETTERS[0]} to {LETTERS[len(options) - 1]}, or the text of one option"
            raise BadRecord(f"the answer {shown(answer)} is no one option; {expected}")
        return letter
    gold = gold_answer(str(answer))
    if gold is None:
        raise BadRecord(
            f"the gold answer {shown(answer)} is several lines or sentences and states no final answer; expected the"
            r' answer alone, or at the end "#### 18", "\boxed{18}" or "The answer is 18"'
        )
    return gold


def extracted_golds(n: int, n_questions: int) -> list[str]:
    """A line on the gold answers that were read out of longer ones; none where there are none."""
    share = f"{n:,} of {counted(n_questions, 'question')} ({n / max(1, n_questions):.1%})"
    return [f'The gold answers of {share} were read out of longer text, such as "#### 18".'] if n else []


def _question(
    data: Data,
    source: str,
    text: str,
    answer: str | int,
    options: Sequence[str] | None = None,
    *,
    id_key: str = "id",
    images: tuple[str, ...] | None = None,
    text_first: bool = False,
) -> tuple[Question, ...]:
    """The record's one question; ``options`` None is an open answer. A missing id is filled in by the reader."""
    if options is not None and not options:
        raise BadRecord("the multiple choice lists no options; expected two or more")
    gold = read_gold(answer, options or (), text_first=text_first)
    marks = IMAGE_MARK.findall(text)
    if len(marks) == 1:  # one on a line of its own tells nothing; several tell the parts of a picture apart
        text = re.sub(rf"(?:\A|\n)[ \t]*{re.escape(marks[0])}[ \t]*(?=\n|\Z)", "", text)
    raw = data.get("answer") if options else answer
    question = Question(
        id=text_of(data, id_key, default=""),
        question=with_options(text.strip(), options or ()),
        answer=gold,
        images=_images(data, "image") if images is None else images,
        source=source,
        options=tuple(options or ()),
        is_extracted=isinstance(raw, str) and stated_gold(raw) is not None,
    )
    return (question,)


def _is_gsm8k(data: Data) -> bool:
    answer = data.get("answer")
    return data.keys() == {"question", "answer"} and isinstance(answer, str) and "\n#### " in answer


def parse_gsm8k(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """GSM8K: the gold answer is a rationale whose last line is ``#### 18``."""
    return _question(data, "gsm8k", text_of(data, "question"), text_of(data, "answer"), images=())


MATH_GOLDS = ("answer", "final_answer", "solution")
IMAGE_FIELDS = ("image", "images", "image_path")


def parse_math500(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """MATH, MATH-500 and others with their fields: the gold answer, else the solution, whose last box holds it."""
    source, id_key = ("math500", "unique_id") if "unique_id" in data else ("math", "id")
    images = _images_of_one(data, *IMAGE_FIELDS, needed=False)  # of others with these fields, such as Geometry3K
    return _question(data, source, text_of(data, "problem"), text_of(data, *MATH_GOLDS), id_key=id_key, images=images)


def parse_plain(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """The format that everyone can make; images may be absent, for questions of text alone."""
    text, options, answer = text_of(data, "question"), _options(data, "options") or None, text_of(data, "answer")
    # a number in JSON may be the index of an option; the text "2" is always text
    index = data["answer"] if options and isinstance(data["answer"], int) else None
    source = text_of(data, "source", default="")
    images = _images_of_one(data, *IMAGE_FIELDS, needed=False)
    return _question(data, source, text, answer if index is None else index, options, images=images)


def parse_dynamath(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """DynaMath: one JSON object with a question under each number; options stand in the question's text."""
    text, is_choice = text_of(data, "question"), text_of(data, "answer_type") == "multiple choice"
    return _question(data, "dynamath", text, text_of(data, "answer"), options_in(text) if is_choice else None)


def parse_mathverse(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """MathVerse: the question of a vision-only version stands in the picture, its options too."""
    is_vision_only = text_of(data, "problem_version") == "Vision Only"
    text = text_of(data, "question", default="Answer the question that the image shows." if is_vision_only else None)
    answer, options = text_of(data, "answer"), None
    if text_of(data, "question_type") == "multi-choice":
        options = options_in(text) or options_in(text_of(data, "question_for_eval", default=""))
        if is_vision_only:
            answer = letter_of(answer, options) or answer
            options = tuple(LETTERS[: len(options)])  # what they say stays in the picture
    return _question(data, "mathverse", text, answer, options, id_key="sample_index")


def parse_mathvision(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """MathVision (MATH-V): competition questions with one picture; no options mean an open answer."""
    options = _options(data, "options") or None
    return _question(data, "mathvision", text_of(data, "question"), text_of(data, "answer"), options)


def parse_mathvista(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """MathVista: free answers with unit and precision, and choices whose gold answer is the text of the right one."""
    text, answer, options = text_of(data, "question"), text_of(data, "answer"), None
    if text_of(data, "question_type") == "multi_choice":
        options = _options(data, "choices")
    else:
        if unit := text_of(data, "unit", default=""):
            text += f" (Unit: {unit})"
        precision, is_float = data.get("precision"), text_of(data, "answer_type", default="") == "float"
        if is_float and isinstance(precision, int | float) and abs(precision) < 100:
            text += f"\nGive the answer with {precision:.0f} digit(s) after the point."
    return _question(data, "mathvista", text, answer, options, id_key="pid", text_first=True)


def _is_mm_k12(data: Data) -> bool:
    is_seed = {"correct_answer", "image_path"} <= data.keys()
    is_hub = {"answer", "subject", "image"} <= data.keys() and "options" not in data
    return is_seed or is_hub


def parse_mm_k12(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """MM-K12: a multiple choice where the text lists options and the answer is the letter of one."""
    text, answer = text_of(data, "question"), text_of(data, "answer", "correct_answer")
    options, images = options_in(text), _images_of_one(data, "image", "image_path")
    letter = letter_of(answer, options) if options else None
    return _question(data, "mm-k12", text, letter or answer, options if letter else None, images=images)


def parse_olympiadbench(data: Data, _issues: Issues) -> tuple[Question, ...]:
    """OlympiadBench: the question behind its context; theorems to prove have no answer and cannot be read."""
    answers = [answer for answer in _texts(data, "final_answer") if answer.strip()]
    if not answers:
        raise BadRecord('"final_answer" is empty, as for a theorem to prove; leave such records out')
    text = "\n\n".join(part for part in (text_of(data, "context", default=""), text_of(data, "question")) if part)
    if unit := text_of(data, "unit", default=""):
        text += f"\n\nGive the answer in {unit}."
    is_text = text_of(data, "modality", default="") == "Text-only"
    numbered = [f"image_{number}" for number in range(1, 10)]
    if _images(data, *numbered, needed=False) and _images(data, "images", needed=False):
        raise BadRecord("images are named in image_1 … and images; expected one of these fields")
    images = _images(data, *numbered, "images", needed=not is_text)
    return _question(data, "olympiadbench", text, ", ".join(answers), images=images)


QUESTION_FORMATS: dict[str, Format[Question]] = by_name(
    Format("mathverse", has("sample_index", "problem_version", "question_type", "answer"), parse_mathverse),
    Format("mathvista", has("pid", "question", "choices", "question_type"), parse_mathvista),
    Format("olympiadbench", has("id", "question", "final_answer", "answer_type"), parse_olympiadbench),
    Format(
        "dynamath",
        has("question", "answer", "image", "answer_type", "subject", "level", when=lambda data: "pid" not in data),
        parse_dynamath,
    ),
    Format("mathvision", has("id", "question", "options", "answer", "image", "level", "subject"), parse_mathvision),
    Format("mm-k12", has("id", "question", when=_is_mm_k12), parse_mm_k12),
    Format("math500", has("problem", when=lambda data: not data.keys().isdisjoint(MATH_GOLDS)), parse_math500),
    Format("gsm8k", has("question", "answer", when=_is_gsm8k), parse_gsm8k),
    Format("plain", has("question", "answer"), parse_plain),  # last: most others have its fields too
)

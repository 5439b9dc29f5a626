"""What mprm must know of a question format to read it, and typed access to a record's fields.

Plain questions: the format that everyone can make.

DynaMath: one JSON object with a question under each number; options stand in the question's text.

MathVerse: each problem in versions that tell more in the text or more in the picture.

MathVision (MATH-V): competition questions with one picture each; options may be in the picture only.

MathVista: free answers with unit and precision, and choices whose gold answer is the text of the right one.

MM-K12, of MM-PRM and MM-Eureka: fill-in questions, and some whose options stand in the text.

OlympiadBench: open questions with up to nine pictures; theorems to prove have no answer and cannot be read.

All question formats, and choosing one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mprm.answers.options import LETTERS, letter_of, options_in, with_options
from mprm.data.format import shown
from mprm.data.types import Question
from mprm.errors import ConfigError

Record = Mapping[str, Any]
"""One decoded JSON object, CSV row or Parquet row."""


class BadRecord(ValueError):  # noqa: N818 - not an error of its own: the reader adds the place and raises a DataError
    """Says what is wrong with a record, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFormat:
    """One way in which people store questions."""

    name: str
    """As users type it."""
    title: str
    recognise: Callable[[Record], bool]
    """Whether a file with this first record is in the format."""
    parse: Callable[[Record, str | None, str], Question]
    """The question of a record, given the key that it is filed under (None in a list) and its file's name;
    raises `BadRecord`."""


def text_of(record: Record, *keys: str, default: str | None = None) -> str:
    """The text under the first of the keys that is there; a number is taken as its text."""
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        if default is not None:
            return default
        raise BadRecord(f"the field {_named(keys)} is missing; expected text")
    value = record[key]
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        value = str(value)
    if not isinstance(value, str):
        raise BadRecord(f'"{key}" holds {shown(value)}; expected text')
    if not value.strip(" \t\r\n"):
        if default is not None:
            return default
        raise BadRecord(f'"{key}" is empty; expected text')
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        raise BadRecord(f'"{key}" holds half of a surrogate pair (\\ud800 to \\udfff); expected text')
    return value


def _named(keys: Sequence[str]) -> str:
    return " or ".join(f'"{key}"' for key in keys)


def texts_of(record: Record, key: str) -> tuple[str, ...]:
    """The list of texts under the key; none when there is no such field."""
    values = record.get(key)
    if values is None or values == "":
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str | int | float) for value in values):
        raise BadRecord(f'"{key}" holds {shown(values)}; expected a list of texts')
    texts = tuple(str(value) for value in values)
    if any("\ud800" <= sign <= "\udfff" for text in texts for sign in text):
        raise BadRecord(f'"{key}" holds half of a surrogate pair, which is no character; expected text')
    return texts


def images_of(record: Record, *keys: str, needed: bool = True) -> tuple[str, ...]:
    """The image paths under the keys: a text, a list of texts, or a Hugging Face image with its path."""
    paths: list[str] = []
    for key in keys:
        values = record.get(key)
        for value in values if isinstance(values, list) else [values]:
            path = value.get("path") if isinstance(value, dict) else value
            if isinstance(value, dict) and not path:
                raise BadRecord(f'"{key}" holds an image without a path; save the images and name their files')
            if path is not None and not isinstance(path, str):
                raise BadRecord(f'"{key}" holds {shown(value)}; expected a path or a list of paths')
            if path:
                paths.append(path)
    if needed and not paths:
        raise BadRecord(f"the field {_named(keys)} names no image; expected a path")
    return tuple(paths)


def options_of(record: Record, key: str) -> tuple[str, ...]:
    """The options under the key; none, or two and more."""
    options = texts_of(record, key)
    if len(options) == 1 or len(options) > len(LETTERS):
        raise BadRecord(f'"{key}" holds {len(options)} option(s); expected none, or 2 to {len(LETTERS)}')
    return options


def gold_letter(answer: str | int, options: Sequence[str], *, text_first: bool = False) -> str:
    """The letter of the right option."""
    letter = letter_of(answer, options, text_first=text_first)
    if letter is None:
        letters = f"{LETTERS[0]} to {LETTERS[len(options) - 1]}"
        raise BadRecord(f"the answer {shown(answer)} is no one option; expected {letters}, or the text of one option")
    return letter


_MARK = re.compile(r"<image(?:[ _]?\d+)?>")


def question_text(text: str, options: Sequence[str] = ()) -> str:
    """The question as a person reads it: options listed, a lone image mark on a line of its own left out."""
    marks = _MARK.findall(text)
    if len(marks) == 1:  # several tell the parts of a picture apart
        text = re.sub(rf"(?:\A|\n)[ \t]*{re.escape(marks[0])}[ \t]*(?=\n|\Z)", "", text)
    return with_options(text.strip(), options)


def parse_plain(record: Record, key: str | None, file: str) -> Question:
    """The question; images may be absent, for questions of text alone."""
    options = options_of(record, "options")
    answer = text_of(record, "answer")
    if options:
        # a number in JSON may be the place of an option; the text "2" is always text
        given = record["answer"]
        answer = gold_letter(given if isinstance(given, int) else answer, options)
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text_of(record, "question"), options),
        answer=answer,
        images=images_of(record, "image", needed=False),
        source=text_of(record, "source", default=file),
        options=options,
    )


PLAIN = QuestionFormat(
    name="plain",
    title="Plain questions",
    recognise=lambda record: {"question", "answer"} <= record.keys(),
    parse=parse_plain,
)


def parse_dynamath(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question, whose id is its number in the file."""
    text, answer = text_of(record, "question"), text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "answer_type") == "multiple choice":
        options = options_in(text)
        if not options:
            raise BadRecord(
                'the question is "multiple choice" but lists no options; expected (A) … (B) … or A. … B. …'
            )
        answer = gold_letter(answer, options)
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=DYNAMATH.name,
        options=options,
    )


DYNAMATH = QuestionFormat(
    name="dynamath",
    title="DynaMath",
    recognise=lambda record: (
        {"question", "answer", "image", "answer_type", "subject", "level"} <= record.keys() and "pid" not in record
    ),
    parse=parse_dynamath,
)


VISION_ONLY = "Answer the question that the image shows."


def parse_mathverse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question; that of a vision-only version stands in the picture, its options too."""
    is_vision_only = text_of(record, "problem_version") == "Vision Only"
    text = text_of(record, "question", default=VISION_ONLY if is_vision_only else None)
    answer = text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "question_type") == "multi-choice":
        options = options_in(text) or options_in(text_of(record, "question_for_eval", default=""))
        if not options:
            raise BadRecord('the question is "multi-choice" but neither it nor "question_for_eval" lists options')
        answer = gold_letter(answer, options)
        if is_vision_only:
            options = tuple(LETTERS[: len(options)])  # what they say stays in the picture
    return Question(
        id=text_of(record, "sample_index", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=MATHVERSE.name,
        options=options,
    )


MATHVERSE = QuestionFormat(
    name="mathverse",
    title="MathVerse",
    recognise=lambda record: {"sample_index", "problem_version", "question_type", "answer"} <= record.keys(),
    parse=parse_mathverse,
)


def parse_mathvision(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question; no options mean an open answer."""
    options = options_of(record, "options")
    answer = text_of(record, "answer")
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text_of(record, "question"), options),
        answer=gold_letter(answer, options) if options else answer,
        images=images_of(record, "image"),
        source=MATHVISION.name,
        options=options,
    )


MATHVISION = QuestionFormat(
    name="mathvision",
    title="MathVision",
    recognise=lambda record: {"id", "question", "options", "answer", "image", "level", "subject"} <= record.keys(),
    parse=parse_mathvision,
)


def parse_mathvista(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question, with what the data set's own hint says about unit and digits."""
    text, answer = text_of(record, "question"), text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "question_type") == "multi_choice":
        options = options_of(record, "choices")
        answer = gold_letter(answer, options, text_first=True)
    else:
        if unit := text_of(record, "unit", default=""):
            text += f" (Unit: {unit})"
        precision = record.get("precision")
        if text_of(record, "answer_type", default="") == "float" and isinstance(precision, int | float):
            text += f"\nGive the answer with {precision:.0f} digit(s) after the point."
    return Question(
        id=text_of(record, "pid", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=MATHVISTA.name,
        options=options,
    )


MATHVISTA = QuestionFormat(
    name="mathvista",
    title="MathVista",
    recognise=lambda record: {"pid", "question", "choices", "question_type"} <= record.keys(),
    parse=parse_mathvista,
)


def parse_mm_k12(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question; a multiple choice where the text lists options and the answer is the letter of one."""
    text = text_of(record, "question")
    answer = text_of(record, "answer", "correct_answer")
    options = options_in(text)
    letter = letter_of(answer, options) if options else None
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text, options if letter else ()),
        answer=letter or answer,
        images=images_of(record, "image", "image_path"),
        source=MM_K12.name,
        options=options if letter else (),
    )


def _recognise(record: Record) -> bool:
    is_seed = {"id", "question", "correct_answer", "image_path"} <= record.keys()
    is_hub = {"id", "question", "answer", "subject", "image"} <= record.keys() and "options" not in record
    return is_seed or is_hub


MM_K12 = QuestionFormat(name="mm-k12", title="MM-K12", recognise=_recognise, parse=parse_mm_k12)


IMAGES = tuple(f"image_{number}" for number in range(1, 10))


def parse_olympiadbench(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question behind its context; the unit of the answer, if any, is said in the text."""
    answers = [answer for answer in texts_of(record, "final_answer") if answer.strip()]
    if not answers:
        raise BadRecord('"final_answer" is empty, as for a theorem to prove; leave such records out')
    context = text_of(record, "context", default="")
    unit = text_of(record, "unit", default="")
    text = "\n\n".join(part for part in (context, text_of(record, "question")) if part)
    if unit:
        text += f"\n\nGive the answer in {unit}."
    is_text = text_of(record, "modality", default="") == "Text-only"
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text),
        answer=", ".join(answers),
        images=images_of(record, *IMAGES, "images", needed=not is_text),
        source=OLYMPIADBENCH.name,
    )


OLYMPIADBENCH = QuestionFormat(
    name="olympiadbench",
    title="OlympiadBench",
    recognise=lambda record: {"id", "question", "final_answer", "answer_type"} <= record.keys(),
    parse=parse_olympiadbench,
)


QUESTION_FORMATS: dict[str, QuestionFormat] = {
    fmt.name: fmt for fmt in (MATHVERSE, MATHVISTA, OLYMPIADBENCH, DYNAMATH, MATHVISION, MM_K12, PLAIN)
}
"""By name; the plain format last, as its fields are in most others too."""


def question_format(name: str) -> QuestionFormat:
    """The format of that name."""
    if name not in QUESTION_FORMATS:
        raise ConfigError(f"unknown question format {name!r}; expected one of {', '.join(QUESTION_FORMATS)}")
    return QUESTION_FORMATS[name]


def recognised_format(record: Record) -> QuestionFormat:
    """The format of a file whose first record this is."""
    found = next((fmt for fmt in QUESTION_FORMATS.values() if fmt.recognise(record)), None)
    if found is None:
        keys = ", ".join(sorted(map(str, record))[:12]) or "none"
        raise BadRecord(
            f"the record has the fields {keys}, which fit no known question format;"
            f" name one of {', '.join(QUESTION_FORMATS)}, or rename the fields to those of plain"
        )
    return found

"""What mprm must know of a question format to read it, and typed access to a record's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mprm.annotation.questions.options import LETTERS, letter_of, with_options
from mprm.annotation.questions.question import Question
from mprm.rollouts.fields import shown

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

"""The records of a question file, with the lines that they begin on: JSON lines, JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mprm.annotation.questions.format import BadRecord, Record
from mprm.rollouts.chunks import chunks_of, lines_of
from mprm.rollouts.fields import shown
from mprm.rollouts.files import CorpusFile

_IS_CSV = re.compile(r"\.csv(?:\.gz|\.zst)?$")
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Placed:
    """A record and where it stands."""

    line: int
    """Line of the file that it begins on, from 1; row of a Parquet file."""
    record: Record | BadRecord
    """Or what is wrong with it."""
    key: str | None = None
    """What it is filed under, where the file is one JSON object."""


def records_in(file: CorpusFile) -> Iterator[Placed]:
    """All records of the file, bad ones too."""
    lines = (line for chunk in chunks_of(file) for line in lines_of(chunk))
    if file.container == "parquet":
        for number, line in enumerate(lines, start=1):
            yield _placed(number, json.loads(line))
        return
    data = b"".join(lines)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Placed(data.count(b"\n", 0, error.start) + 1, BadRecord("not UTF-8; save the file as UTF-8"))
        return
    if _IS_CSV.search(file.path):
        yield from _csv_records(text)
    elif _is_document(text):
        yield from _document_records(text)
    else:
        yield from _line_records(text)


def _placed(line: int, value: Any, key: str | None = None) -> Placed:
    is_record = isinstance(value, dict)
    return Placed(line, value if is_record else BadRecord(f"found {shown(value)}; expected a JSON object"), key)


def _line_records(text: str) -> Iterator[Placed]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip(" \t\r"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Placed(number, BadRecord(f"not JSON: {error}"))
        else:
            yield _placed(number, value)


def _is_document(text: str) -> bool:
    """Whether the file is one list of records, or one object with a record under each key."""
    start = _after_space(text, 0)
    if text[start : start + 1] == "[":
        return True
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        # an object over several lines is a document, if a broken one
        return text[start : start + 1] == "{" and text[start + 1 :].lstrip(" \t")[:1] in ("\n", "\r")
    is_whole = _SPACE.fullmatch(text, end) is not None
    return is_whole and isinstance(value, dict) and bool(value) and all(isinstance(v, dict) for v in value.values())


def _document_records(text: str) -> Iterator[Placed]:
    """Each value of a list or object, with the line that it begins on."""
    decode = json.JSONDecoder().raw_decode
    place = _after_space(text, 0)
    closing = {"[": "]", "{": "}"}[text[place]]
    place = _after_space(text, place + 1)
    line, counted = 1, 0
    while text[place : place + 1] != closing:
        line, counted = line + text.count("\n", counted, place), place
        key = None
        try:
            if closing == "}":
                key, place = decode(text, place)
                place = _expected(text, place, ":")
            value, place = decode(text, place)
            place = _after_space(text, place)
            if text[place : place + 1] != closing:
                place = _expected(text, place, ",")
        except (ValueError, RecursionError) as error:
            yield Placed(line, BadRecord(f"not JSON: {error}"))
            return
        yield _placed(line, value, key)


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _expected(text: str, place: int, sign: str) -> int:
    place = _after_space(text, place)
    if text[place : place + 1] != sign:
        raise json.JSONDecodeError(f"Expecting {sign!r}", text, place)
    return _after_space(text, place + 1)


def _csv_records(text: str) -> Iterator[Placed]:
    """Each row as an object: empty cells are absent, cells that begin with ``[`` are JSON lists."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    line = 2
    while True:
        try:
            row = next(reader)
            record = {name: _cell(value) for name, value in row.items() if name is not None and value}
            extra = row.get(None)
        except StopIteration:
            return
        except (csv.Error, ValueError, RecursionError) as error:
            yield Placed(line, BadRecord(f"not CSV: {error}"))
            return
        yield Placed(line, BadRecord(f"the row has {len(extra)} cell(s) too many") if extra else record)
        line = reader.line_num + 1


def _cell(value: str) -> Any:
    return json.loads(value) if value.startswith("[") and value.endswith("]") else value

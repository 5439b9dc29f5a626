"""The records of a benchmark's file: JSON lines, one JSON array, or Parquet rows, packed or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import NoReturn

from mprm.errors import DataError
from mprm.rollouts.chunks import chunks_of, lines_of
from mprm.rollouts.files import CorpusFile
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report
from mprm.rollouts.read import is_blank, record_of

BLANK = re.compile(r"[ \t\r\n]*")
"""What JSON allows between its parts."""
SHOWN = 40
"""Characters that a message shows of what should not be there."""


def read_records(file: CorpusFile) -> Iterator[tuple[int, Record]]:
    """(line that it begins at, record) of each record; stops at the first that is no JSON object."""
    lines = chain.from_iterable(lines_of(chunk) for chunk in chunks_of(file))
    is_first = True
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            continue
        if is_first and line.lstrip().startswith(b"["):
            yield from _array_records(line + b"".join(lines), file.path, number)
            return
        is_first = False
        yield number, _record(line, f"{file.path}:{number}")


def stop_at(place: str) -> Report:
    """A report that raises, with the place, at whatever is wrong."""

    def report(_kind: str, text: str) -> None:
        raise DataError(f"{place}: {text}. Mend the record, or take it out of the file.")

    return report


def _record(line: bytes, place: str) -> Record:
    record = record_of(line, stop_at(place))
    assert record is not None  # anything else was reported, and so raised
    return record


def _array_records(data: bytes, path: str, line: int) -> Iterator[tuple[int, Record]]:
    """The objects of one JSON array that begins at ``line``, each with the line that it begins at itself."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    decoder, counted = json.JSONDecoder(), 0
    at = _past_blank(text, text.index("[") + 1)
    is_closed = text.startswith("]", at)
    while not is_closed:
        line, counted = line + text.count("\n", counted, at), at
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{line}: not JSON: {error}. Expected an array of objects.") from error
        yield line, _record(text[at:end].encode(), f"{path}:{line}")
        at = _past_blank(text, end)
        is_closed = text.startswith("]", at)
        if not is_closed and not text.startswith(",", at):
            _refuse_rest(text, at, path, line + text.count("\n", counted, at), "a comma or ] after the record")
        at = at if is_closed else _past_blank(text, at + 1)
    end = _past_blank(text, at + 1)
    if end < len(text):
        _refuse_rest(text, end, path, line + text.count("\n", counted, end), "nothing after the array")


def _past_blank(text: str, start: int) -> int:
    return BLANK.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too


def _refuse_rest(text: str, at: int, path: str, line: int, expected: str) -> NoReturn:
    found = repr(text[at : at + SHOWN]) if at < len(text) else "the end of the file"
    raise DataError(f"{path}:{line}: not JSON: found {found}; expected {expected}. Mend the file.")

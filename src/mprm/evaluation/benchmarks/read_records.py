"""The records of a benchmark's file: JSON lines, one JSON array, or Parquet rows, packed or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain

from mprm.errors import DataError
from mprm.rollouts.chunks import chunks_of, lines_of
from mprm.rollouts.files import CorpusFile
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report
from mprm.rollouts.read import is_blank, record_of

BETWEEN = re.compile(r"[\s,]*")


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
    start = text.index("[") + 1
    while True:
        start = BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too
        line, counted = line + text.count("\n", counted, start), start
        if text.startswith("]", start):
            return
        try:
            end = decoder.raw_decode(text, start)[1]
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{line}: not JSON: {error}. Expected an array of objects.") from error
        yield line, _record(text[start:end].encode(), f"{path}:{line}")
        start = end

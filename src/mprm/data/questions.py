"""The records of a question file, with the lines that they begin on: JSON lines, JSON, CSV, Parquet.

Finding the images of questions under an image root.

Reading questions from files.

The questions of a run: from files, or as they are.

The text that a policy is asked.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mprm.answers.options import with_options
from mprm.data.corpus import hash_file
from mprm.data.format import shown
from mprm.data.question_formats import BadRecord, QuestionFormat, Record, question_format, recognised_format
from mprm.data.records import CorpusFile, chunks_of, corpus_files, lines_of
from mprm.data.types import Question
from mprm.data.validate import leaves_root
from mprm.errors import ConfigError, DataError

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


ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
"""Endings that one picture may have in copies of a data set."""
SHOWN = 20
"""How many missing images an error names."""


def found_image(name: str, root: Path) -> str | None:
    """The image's path under the root; None when it is not there.

    An image that is not where its name says is looked for by its bare name, then with another ending: data sets are
    unpacked flat, and their pictures made smaller. A name that leaves the root is never found.
    """
    if leaves_root(name):
        return None
    path = PurePosixPath(name.replace("\\", "/"))
    for place in (path, PurePosixPath(path.name)):
        for ending in (path.suffix, *ENDINGS):
            other = place.with_suffix(ending) if path.suffix else place
            if _is_file(root / other):
                return str(other)
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system takes
        return False


def missing_images(questions: Iterable[Question], image_root: str | Path) -> list[str]:
    """All images that are not under the root, each once, in the order of the questions."""
    root = _folder(image_root)
    names = dict.fromkeys(image for question in questions for image in question.images)
    return [name for name in names if found_image(name, root) is None]


def with_found_images(
    questions: Sequence[Question],
    image_root: str | Path,
    *,
    on_renamed: Callable[[dict[str, str]], None] | None = None,
) -> list[Question]:
    """The questions with their images' paths under the root; an error names those that are not there.

    ``on_renamed`` is told of images that lie there under another name: that name, by the question's own.
    """
    root = _folder(image_root)
    names = list(dict.fromkeys(image for question in questions for image in question.images))
    found = {name: found_image(name, root) for name in names}
    missing = [name for name in names if found[name] is None]
    if missing:
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        raise DataError(
            f"{len(missing):,} of {len(names):,} images are not under {root}: {', '.join(missing[:SHOWN])}{more}."
            " Name the folder that the images' paths start from."
        )
    owners: dict[str, str] = {}
    for name, path in found.items():
        other = owners.setdefault(path or "", name)
        if other != name:
            raise DataError(f"{root}: {other} and {name} would both be {path}; unpack the images with their folders")
    renamed = {name: path for name, path in found.items() if path is not None and path != name}
    if renamed and on_renamed is not None:
        on_renamed(renamed)
    return [replace(question, images=tuple(found[name] or "" for name in question.images)) for question in questions]


def _folder(path: str | Path) -> Path:
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ConfigError(f"the image root {root} is not a folder")
    return root


"""How many bad records an error names."""


def read_questions(
    paths: str | Path | Sequence[str | Path],
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
        Name of the format, where it must not be guessed from a file's first record.
    image_root
        Folder that must hold every image; the questions then name their images by the paths found there.
    on_renamed
        Told of images that lie there under another name than the questions give; see `with_found_images`.

    Raises
    ------
    DataError
        Names the place of every bad record, and of both records that share an id.
    """
    given = None if format is None else question_format(format)
    questions: list[Question] = []
    problems: list[str] = []
    places: dict[str, str] = {}
    for file in corpus_files(paths):
        n_before = len(questions) + len(problems)
        for place, found in _read_file(file, given):
            if isinstance(found, BadRecord):
                problems.append(f"{place}: {found}")
            elif found.id in places:
                problems.append(f'{place}: the id "{found.id}" is taken by {places[found.id]}; expected another one')
            else:
                places[found.id] = place
                questions.append(found)
        if len(questions) + len(problems) == n_before:
            problems.append(f"{file.path}: holds no record; expected one question or more")
    if problems:
        raise _bad(problems)
    return questions if image_root is None else with_found_images(questions, image_root, on_renamed=on_renamed)


def _read_file(file: CorpusFile, fmt: QuestionFormat | None) -> list[tuple[str, Question | BadRecord]]:
    """(place, question or what is wrong with it) of every record."""
    name = re.sub(r"\.csv(?:\.gz|\.zst)?$", "", file.source)
    found: list[tuple[str, Question | BadRecord]] = []
    for placed in records_in(file):
        place = f"{file.path}:{placed.line}"
        try:
            if isinstance(placed.record, BadRecord):
                raise placed.record
            fmt = fmt or recognised_format(placed.record)
            found.append((place, fmt.parse(placed.record, placed.key, name)))
        except BadRecord as problem:
            found.append((place, problem))
            if fmt is None and not isinstance(placed.record, BadRecord):
                break  # of an unknown format the first record says enough
    return found


def _bad(problems: list[str]) -> DataError:
    more = f"\n… and {len(problems) - SHOWN:,} more" if len(problems) > SHOWN else ""
    remedy = "Mend or remove these records; docs/questions.md shows what each format needs."
    return DataError("\n".join(problems[:SHOWN]) + f"{more}\n{remedy}")


def is_in_memory(questions: Any) -> bool:
    """Whether these are questions themselves, not names of files."""
    return isinstance(questions, list | tuple) and bool(questions) and isinstance(questions[0], Question)


def input_entries(paths: Any) -> list[dict[str, Any]]:
    """What a manifest says of the files that were read."""
    return [
        {"path": file.path, "n_bytes": file.n_bytes, "xxh3_128": None if file.is_remote else hash_file(file.path)}
        for file in corpus_files(paths)
    ]


def given_questions(
    questions: Any, format: str | None, image_root: str | Path | None, renamed: dict[str, str]
) -> tuple[list[Question], list[dict[str, Any]]]:
    """The questions, each once, and the manifest's entries of their files."""
    if is_in_memory(questions):
        entries = list(questions)
        inputs: list[dict[str, Any]] = [{"path": "(in memory)"}]
    else:
        entries = read_questions(questions, format=format, image_root=image_root, on_renamed=renamed.update)
        inputs = input_entries(questions)
    if not entries:
        raise DataError(f"{questions}: no questions; expected at least one")
    seen: set[tuple[str, str]] = set()
    for question in entries:
        if (question.source, question.id) in seen:
            raise DataError(
                f"two questions of source {question.source!r} have the id {question.id!r};"
                " expected each once. Give them different ids or sources"
            )
        seen.add((question.source, question.id))
    return entries, inputs


STEPS = "Solve the problem step by step, with a blank line between one step and the next."
OPEN = r"Put the final answer in \boxed{}."
CHOICE = r"Put the letter of the right option in \boxed{}."


def prompt_of(question: Question) -> str:
    """The question, its options where the text lacks them, and how to answer.

    Examples
    --------
    >>> prompt_of(Question(id="1", question="Which is even?", answer="B", options=("3", "4"))).splitlines()[:3]
    ['Which is even?', 'A. 3', 'B. 4']
    """
    text = with_options(question.question, question.options)
    return f"{text.rstrip()}\n\n{STEPS} {CHOICE if question.options else OPEN}"

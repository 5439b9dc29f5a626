"""Reading questions from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from mprm.annotation.questions.format import BadRecord, QuestionFormat
from mprm.annotation.questions.formats import question_format, recognised_format
from mprm.annotation.questions.images import with_found_images
from mprm.annotation.questions.question import Question
from mprm.annotation.questions.records import records_in
from mprm.errors import DataError
from mprm.rollouts.files import CorpusFile, corpus_files

SHOWN = 20
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

"""The questions of a run: from files, or as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mprm.annotation.questions.question import Question
from mprm.annotation.questions.read import read_questions
from mprm.errors import DataError
from mprm.rollouts.files import corpus_files
from mprm.rollouts.manifest import hash_file


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

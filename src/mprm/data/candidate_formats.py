"""From a response to its steps.

Files with several answers to each question: our own, MM-PRM's and RLHFlow's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from mprm.data.corpus import is_blank, record_of
from mprm.data.format import Record, list_field, optional_text, shown, text_field
from mprm.data.records import CorpusFile, chunks_of, corpus_files, lines_of
from mprm.data.types import Question, Solution, problem_key
from mprm.data.validate import Report
from mprm.errors import ConfigError, DataError

BLANK_LINES = re.compile(r"\n\s*\n")
JOINT = "\n\n"
"""What stands between steps."""


def split_steps(text: str, max_steps: int | None = None) -> tuple[str, ...]:
    r"""The steps of a response: it is cut at blank lines, and white space at the seams goes.

    Where there are more than ``max_steps``, neighbours are joined again, so that each step is made of
    nearly as many pieces as any other.

    Examples
    --------
    >>> split_steps("First.\n\nThen.\n \nSo 4.")
    ('First.', 'Then.', 'So 4.')
    >>> split_steps("a\n\nb\n\nc\n\nd\n\ne", max_steps=2)
    ('a\n\nb', 'c\n\nd\n\ne')
    """
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be 1 or more, got {max_steps}")
    pieces = [stripped for piece in BLANK_LINES.split(text) if (stripped := piece.strip())]
    n = len(pieces)
    k = n if max_steps is None else min(n, max_steps)
    cuts = [number * n // k for number in range(k + 1)] if k else [0]
    return tuple(JOINT.join(pieces[start:end]) for start, end in pairwise(cuts))


STEP_END = "ки"
"""The mark after each step in answers in the way of Math-Shepherd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One answer to a question."""

    text: str
    steps: tuple[str, ...]
    finish_reason: str | None = None
    is_correct: bool | None = None
    """The label that the file gives; None where it gives none and the answer must be checked."""
    step_scores: tuple[float, ...] | None = None
    """Scores that the file gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSet:
    """A question with its candidates, at least one."""

    question: Question
    candidates: tuple[Candidate, ...]
    place: str
    """FILE:LINE."""

    @property
    def key(self) -> tuple[str, str]:
        """Source and id: no two sets have the same."""
        return self.question.source, self.question.id

    @property
    def solutions(self) -> list[Solution]:
        """The candidates as solutions without labels; candidate k of a question has its id with "#k" behind it."""
        question = self.question
        return [
            Solution(
                id=f"{question.id}#{index}",
                source=question.source,
                problem=problem_key(question.question, question.images),
                question=question.question,
                steps=candidate.steps,
                labels=(),
                first_error=None,
                images=question.images,
                place=self.place,
            )
            for index, candidate in enumerate(self.candidates)
        ]

    @property
    def is_labelled(self) -> bool:
        """Whether the file says which candidates are correct."""
        return all(candidate.is_correct is not None for candidate in self.candidates)


def _question(record: Record, report: Report, *, text: str, number: int, source: str) -> Question:
    """What all three layouts tell of the question, or may tell."""
    images = record.get("images") or record.get("image_path") or record.get("image") or []
    answer = optional_text(record, "answer", report) or optional_text(record, "correct_answer", report)
    return Question(
        id=optional_text(record, "id", report) or str(number),
        question=text_field(record, text, report) or "",
        answer=answer or "",
        images=_texts([images] if isinstance(images, str) else images, "the images", report),
        source=optional_text(record, "source", report) or source,
        options=_texts(record.get("options") or [], '"options"', report),
    )


def _own(record: Record, report: Report) -> list[Candidate]:
    found = []
    for number, entry in enumerate(list_field(record, "candidates", report) or []):
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            report("wrong_type", f'candidate {number} is {shown(entry)}; expected an object with "text"')
        steps = entry.get("steps")
        found.append(
            Candidate(
                text=entry["text"],
                steps=split_steps(entry["text"])
                if steps is None
                else _texts(steps, f'"steps" of candidate {number}', report),
                finish_reason=optional_text(entry, "finish_reason", report),
            )
        )
    return found


def _mm_prm(record: Record, report: Report) -> list[Candidate]:
    splits = list_field(record, "solutions_splits", report) or []
    labels = _labels(record, len(splits), report)
    scores = record.get("prm_scores") or [None] * len(splits)
    if not isinstance(scores, list) or len(scores) != len(splits):
        report("labels_and_steps_differ", f'"prm_scores" is {shown(scores)}; expected a list for each solution')
    found = []
    for number, (split, label, given) in enumerate(zip(splits, labels, scores, strict=True)):
        steps = _texts(split, f"solution {number}", report)
        numbers = None if given is None else _scores(given, len(steps), number, report)
        found.append(Candidate(text=JOINT.join(steps), steps=steps, is_correct=label, step_scores=numbers))
    return found


def _rlhflow(record: Record, report: Report) -> list[Candidate]:
    texts = _texts(list_field(record, "answers", report) or [], '"answers"', report)
    found = []
    for text, label in zip(texts, _labels(record, len(texts), report), strict=True):
        marked = tuple(step for part in text.split(STEP_END) if (step := part.strip()))
        steps = marked if STEP_END in text else split_steps(text)
        found.append(Candidate(text=text, steps=steps, is_correct=label))
    return found


def _texts(value: Any, what: str, report: Report) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        report("wrong_type", f"{what}: found {shown(value)}; expected a list of texts")
    return tuple(value)


def _labels(record: Record, n: int, report: Report) -> list[bool | None]:
    """The label of each candidate: true or false, 1 or 0; None where the record has no labels."""
    labels = record.get("labels", record.get("label"))
    if labels is None:
        return [None] * n
    if not isinstance(labels, list) or len(labels) != n:
        report("labels_and_steps_differ", f'"labels" is {shown(labels)}; expected {n} of them, one a candidate')
    for number, label in enumerate(labels):
        if label not in (0, 1):
            report("wrong_type", f"label {number} is {shown(label)}; expected true or false, 1 or 0")
    return [bool(label) for label in labels]


def _scores(value: Any, n: int, number: int, report: Report) -> tuple[float, ...]:
    """Step scores; null stands for a step that truncation cut off."""
    if not isinstance(value, list) or len(value) != n:
        report("labels_and_steps_differ", f"scores of solution {number}: {shown(value)}; expected {n}, one a step")
    found = [float("nan") if score is None else score for score in value]
    if not all(isinstance(score, int | float) and (score != score or 0 <= score <= 1) for score in found):
        report("score_out_of_range", f"scores of solution {number}: {shown(value)}; expected numbers from 0 to 1")
    return tuple(map(float, found))


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to write candidates: the field that tells it from others, and where the question stands."""

    telltale: str
    question: str
    candidates: Callable[[Record, Report], list[Candidate]]


LAYOUTS = {
    "mprm": Layout("candidates", "question", _own),
    "mm-prm": Layout("solutions_splits", "question", _mm_prm),
    "rlhflow": Layout("answers", "prompt", _rlhflow),
}


def read_candidates(paths: Any, *, format: str | None = None) -> list[CandidateSet]:
    """All questions of the files with their candidates, in the files' order.

    Parameters
    ----------
    paths
        Files, globs, folders or URLs: JSON lines, packed or not, or one JSON array.
    format
        ``mprm``, ``mm-prm`` or ``rlhflow``; each record shows it when None.
    """
    if format is not None and format not in LAYOUTS:
        raise ConfigError(f"unknown candidate format {format!r}; expected one of {', '.join(LAYOUTS)}")
    found: dict[tuple[str, str], CandidateSet] = {}
    for file in corpus_files(paths):
        for number, record in _records(file):
            entry = _candidate_set(record, number, file, format)
            first = found.setdefault(entry.key, entry)
            if first is not entry:
                raise DataError(
                    f"{entry.place}: question {entry.question.id!r} of {entry.question.source!r} is in"
                    f" {first.place} already; expected each once. Give them different ids or sources"
                )
    if not found:
        raise DataError(f"{_named(paths)}: no candidates in these files; expected one question a line")
    return list(found.values())


def _named(paths: Any) -> str:
    return str(paths) if isinstance(paths, str | Path) else ", ".join(map(str, paths))


def _candidate_set(record: Record, number: int, file: CorpusFile, format: str | None) -> CandidateSet:
    place = f"{file.path}:{number}"
    report = _raising(place)
    name = format or next((name for name, layout in LAYOUTS.items() if layout.telltale in record), None)
    if name is None:
        telltales = ", ".join(f'"{layout.telltale}" ({name})' for name, layout in LAYOUTS.items())
        report("missing_field", f"no candidates: the fields are {shown(list(record))}; expected one of {telltales}")
        raise AssertionError("a report raises")
    layout = LAYOUTS[name]
    question = _question(record, report, text=layout.question, number=number, source=file.source)
    candidates = tuple(layout.candidates(record, report))
    if not candidates:
        report(
            "no_steps", f'question {question.id!r} has no candidates; expected at least one in "{layout.telltale}"'
        )
    entry = CandidateSet(question=question, candidates=candidates, place=place)
    if not entry.is_labelled and not question.answer:
        report("missing_field", 'neither "answer" nor "labels" is given; expected one, to tell who is right')
    return entry


def _raising(place: str) -> Report:
    def report(_kind: str, text: str) -> NoReturn:
        raise DataError(f"{place}: {text}. Mend the record or take it out; docs/reranking.md shows the layouts")

    return report


def _records(file: CorpusFile) -> Iterator[tuple[int, Record]]:
    """(number, record) of each line, or of each entry of a JSON array, from 1."""
    lines = (line for chunk in chunks_of(file) for line in lines_of(chunk))
    for number, line in enumerate(lines, 1):
        if number == 1 and line.lstrip()[:1] == b"[":
            yield from _array(file, line + b"".join(lines))
            return
        if not is_blank(line):
            record = record_of(line, _raising(f"{file.path}:{number}"))
            assert record is not None, "a report raises"
            yield number, record


def _array(file: CorpusFile, data: bytes) -> Iterator[tuple[int, Record]]:
    try:
        records = json.loads(data)
    except ValueError as error:
        raise DataError(f"{file.path}: begins like a JSON array but is none: {error}") from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise DataError(f"{file.path}:{number}: the entry is {shown(record)}; expected a JSON object")
        yield number, record

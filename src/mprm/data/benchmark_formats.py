"""What mprm must know of a benchmark's files to read them.

VisualProcessBench: solutions of multimodal problems, every step judged by people.

ProcessBench: solutions of text problems, with the place of the first error.

PRMBench: correct solutions of text problems, and the same with errors of nine kinds put in.

VLRMBench's files of errors put into a multimodal solution, such as ``location_error.jsonl``.

All benchmarks by name, and telling which one a file holds from its first record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mprm.data.format import Format, Record, image_field, list_field, optional_text, shown, text_field
from mprm.data.rollout_formats import FORMATS
from mprm.data.types import CORRECT, IGNORED, INCORRECT, Solution, first_error_of, problem_key
from mprm.data.validate import Report
from mprm.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read."""

    file: str
    line: int
    source: str
    """The file's name without folders and endings."""
    text_only: bool = False
    """Records need no image."""
    note: Callable[[str], None] = lambda _text: None
    """Takes something odd that leaves the record usable, to be counted and told."""

    @property
    def id(self) -> str:
        """A name for a record that has none."""
        return f"{self.source}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFormat:
    """One way in which people store solutions with judged steps."""

    name: str
    """As users type it after ``--benchmark-format``."""
    title: str
    recognise: Callable[[Record], bool]
    parse: Callable[[Record, Place, Report], tuple[Solution, ...]]
    """The record's solutions; the report raises at the first thing that is wrong."""
    has_unique_ids: bool = True
    """Whether an id that occurs twice in a file is a mistake."""


def texts_field(record: Record, key: str, report: Report) -> tuple[str, ...]:
    """The texts under ``key``, at least one."""
    found = list_field(record, key, report) or []
    if not found:
        report("no_steps", f'"{key}" is empty; expected at least one step')
    for number, text in enumerate(found):
        if not isinstance(text, str):
            report("wrong_type", f'step {number} of "{key}" is {shown(text)}; expected text')
    return tuple(found)


def whole_numbers(record: Record, key: str, report: Report) -> tuple[int, ...]:
    """The whole numbers under ``key``, perhaps none."""
    found = list_field(record, key, report) or []
    for value in found:
        if not is_whole(value):
            report("wrong_type", f'"{key}" holds {shown(value)}; expected whole numbers')
    return tuple(found)


def is_whole(value: Any) -> bool:
    """Whether the value is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def question_text(text: str | None, key: str, report: Report) -> str:
    """The question, which must not be empty."""
    if not text or not text.strip():
        report("empty_question", f'"{key}" is empty; expected text')
    return text or ""


def needed_images(record: Record, place: Place, report: Report) -> tuple[str, ...]:
    """The record's images; there must be one unless text alone will do."""
    images = image_field(record, report)
    if not images and not place.text_only:
        report("no_image", "the record names no image; expected a path (text-only data: --text-only)")
    return images


def same_length(steps: tuple[str, ...], labels: tuple[int, ...], report: Report) -> None:
    """Report when there are not as many labels as steps."""
    if len(steps) != len(labels):
        report("labels_and_steps_differ", f"there are {len(steps)} steps and {len(labels)} labels; expected as many")


def recognise(record: Record) -> bool:
    """Whether the record has a response with a judgement of each step."""
    return "process_correctness" in _response(record)


def parse_visualprocessbench(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The record's one solution: 1 correct, 0 neutral, -1 incorrect; the source is its data source."""
    question = question_text(text_field(record, "question", report), "question", report)
    images = needed_images(record, place, report)
    steps = texts_field(_response(record), "steps", report)
    labels = whole_numbers(_response(record), "process_correctness", report)
    same_length(steps, labels, report)
    for number, label in enumerate(labels):
        if label not in (-1, 0, 1):
            report("wrong_type", f"step {number} has label {shown(label)}; expected 1, 0 or -1")
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=optional_text(record, "data_source", report) or place.source,
            problem=problem_key(question, images),
            question=question,
            images=images,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        ),
    )


def _response(record: Record) -> dict[str, Any]:
    response = record.get("response")
    return response if isinstance(response, dict) else {}


VISUALPROCESSBENCH = BenchmarkFormat(
    name="visualprocessbench", title="VisualProcessBench", recognise=recognise, parse=parse_visualprocessbench
)


def parse_processbench(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The record's one solution; the source is the file, as ProcessBench has one file a data set."""
    question = question_text(text_field(record, "problem", report), "problem", report)
    steps = texts_field(record, "steps", report)
    label = record.get("label")
    if not is_whole(label) or not -1 <= label < len(steps):  # type: ignore[operator]
        report("wrong_type", f'"label" is {shown(label)}; expected a step from 0 to {len(steps) - 1}, or -1 for none')
    first_error = None if label == -1 else label
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=place.source,
            problem=problem_key(question),
            question=question,
            steps=steps,
            labels=labels_up_to(first_error, len(steps)),
            first_error=first_error,
            place=str(place),
        ),
    )


def labels_up_to(first_error: int | None, n_steps: int) -> tuple[int, ...]:
    """Labels that the place of the first error gives: nobody judged what comes after it.

    Examples
    --------
    >>> labels_up_to(1, 4), labels_up_to(None, 2)
    ((1, -1, 0, 0), (1, 1))
    """
    if first_error is None:
        return (CORRECT,) * n_steps
    return (CORRECT,) * first_error + (INCORRECT,) + (IGNORED,) * (n_steps - first_error - 1)


PROCESSBENCH = BenchmarkFormat(
    name="processbench",
    title="ProcessBench",
    recognise=lambda record: {"problem", "steps", "label"} <= record.keys(),
    parse=parse_processbench,
)


PAST_THE_END = "error steps beyond the last step count for nothing, as in PRMBench's own evaluation"
NONE_LEFT = "every error step lies beyond the last step; the modified solution, whose errors are unknown, is left out"


def parse_prmbench(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The original solution, all correct, and the modified one; the source of both is the classification.

    The problem is the question before it was modified.
    """
    return tuple(_solutions(record, place, report))


def _solutions(record: Record, place: Place, report: Report) -> Iterator[Solution]:
    name = optional_text(record, "idx", report) or place.id
    source = optional_text(record, "classification", report) or place.source
    asked = optional_text(record, "question", report) or text_field(record, "original_question", report) or ""
    errors = whole_numbers(record, "error_steps", report)
    if any(number < 1 for number in errors):
        report("wrong_type", f'"error_steps" holds {list(errors)}; expected step numbers, the first step is 1')
    for kind in ("original", "modified"):
        question = question_text(text_field(record, f"{kind}_question", report), f"{kind}_question", report)
        steps = texts_field(record, f"{kind}_process", report)
        wrong = set(errors) if kind == "modified" else set()
        if wrong and min(wrong) > len(steps):
            place.note(NONE_LEFT)
            continue
        if wrong and max(wrong) > len(steps):
            place.note(PAST_THE_END)
        labels = tuple(INCORRECT if number in wrong else CORRECT for number in range(1, len(steps) + 1))
        yield Solution(
            id=f"{name}/{source}/{kind}",
            source=source,
            problem=problem_key(asked),
            question=question,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        )


PRMBENCH = BenchmarkFormat(
    name="prmbench",
    title="PRMBench",
    recognise=lambda record: {"original_process", "modified_process", "error_steps"} <= record.keys(),
    parse=parse_prmbench,
    has_unique_ids=False,  # as published, five ids have two records each, with other errors put in
)


STEP = re.compile(r"(?=STEP\d+:)")


def parse_vlrmbench(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The solution with errors in it; the source is the category.

    Its steps stand in one text, each behind ``STEP1:``, ``STEP2:`` and so on; ``task_gt`` is 1 for
    the steps with an error. ``step_list``, the solution before errors were put in, is not judged.
    """
    question = question_text(text_field(record, "question", report), "question", report)
    images = needed_images(record, place, report)
    text = text_field(record, "reasoning_error", report) or ""
    steps = tuple(step.strip() for step in STEP.split(text) if step.strip())
    if not steps:
        report("no_steps", '"reasoning_error" is empty; expected steps behind STEP1:, STEP2: and so on')
    marks = whole_numbers(record, "task_gt", report)
    same_length(steps, marks, report)
    for number, mark in enumerate(marks):
        if mark not in (0, 1):
            report("wrong_type", f"step {number} has task_gt {shown(mark)}; expected 1 for an error, else 0")
    labels = tuple(INCORRECT if mark else CORRECT for mark in marks)
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=optional_text(record, "category", report) or place.source,
            problem=problem_key(question, images),
            question=question,
            images=images,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        ),
    )


VLRMBENCH = BenchmarkFormat(
    name="vlrmbench",
    title="VLRMBench, files of errors",
    recognise=lambda record: {"reasoning_error", "task_gt"} <= record.keys(),
    parse=parse_vlrmbench,
)


BENCHMARKS: dict[str, BenchmarkFormat] = {
    fmt.name: fmt for fmt in (VISUALPROCESSBENCH, PROCESSBENCH, PRMBENCH, VLRMBENCH)
}


def benchmark_format(name: str | None, first: tuple[int, Record] | None, file: str) -> BenchmarkFormat | Format:
    """The named format, or the one that the file's first record, at its line, shows; rollouts are a benchmark too."""
    every: dict[str, BenchmarkFormat | Format] = {**BENCHMARKS, **FORMATS}
    if name is not None:
        if name not in every:
            raise ConfigError(f"unknown benchmark format {name!r}; expected one of {', '.join(every)}")
        return every[name]
    if first is None:
        raise DataError(f"{file}: the file holds no record; expected solutions with labelled steps")
    line, record = first
    for fmt in every.values():
        if fmt.recognise(record):
            return fmt
    keys = ", ".join(sorted(map(str, record))[:12]) or "none"
    raise DataError(
        f"{file}:{line}: the record has the fields {keys}, which fit no known benchmark;"
        f" name one with --benchmark-format: {', '.join(every)}."
    )

"""What mprm must know of a benchmark's files to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mprm.evaluation.solution import Solution
from mprm.rollouts.fields import image_field, list_field, shown
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report


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

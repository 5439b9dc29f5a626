"""What mprm must know of a file format to read it, judge it and write it.

Typed access to a record's fields; what does not fit is reported, with what was expected.

The turns of a ``conversations`` field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mprm.data.types import Rollout, Step
from mprm.data.validate import Report

Record = Mapping[str, Any]
"""One decoded JSON object, or one Parquet row."""

PRM_TOKEN = "<prm>"
"""Stands after each step in MM-PRM text; the model is read out at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which people store rollouts."""

    name: str
    """As users type it after ``--format`` and ``--to``."""
    title: str
    labels: Literal["mc", "binary", "either"]
    """``mc``: success rates; ``binary``: only right or wrong; ``either``: the file's own numbers decide."""
    has_images: bool
    recognise: Callable[[Record], bool]
    parse: Callable[[Record, Report], tuple[Rollout, ...]]
    """The record's rollouts; what is wrong is reported, and an unusable record gives none."""
    quick: Callable[[bytes], Rollout | None] | None = None
    """The rollout of a plain line, decoded at once; None for any other line, which ``parse`` then sees."""
    dump: Callable[[Rollout, float], Any] | None = None
    """The rollout as a record of this format, ready to be encoded, labels cut at tau; None: only read."""
    writes: Literal["mc", "binary"] = "binary"
    """What ``dump`` needs: MC scores, or labels of any kind."""
    forbids: str | None = None
    """Text that a step or question must not hold, because this format ends a step with it."""
    many: bool = False
    """Whether one record holds several rollouts, or one rollout several records."""
    regroup: (
        Callable[[Iterable[tuple[int, Record]], Callable[[int], Report]], Iterator[tuple[int, Rollout]]] | None
    ) = None
    """Reads rollouts that are spread over rows: (row, record) in, (row, rollout) out."""


def shown(value: Any, limit: int = 60) -> str:
    """The value as a short piece of text for a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_field(record: Record, key: str, report: Report) -> str | None:
    """The text under ``key``; None, and a report, when it is not there or not text."""
    if key not in record or record[key] is None:
        report("missing_field", f'the field "{key}" is missing; expected text')
        return None
    value = record[key]
    if not isinstance(value, str):
        report("wrong_type", f'"{key}" holds {shown(value)}; expected text')
        return None
    return value


def optional_text(record: Record, key: str, report: Report) -> str | None:
    """The text under ``key``, or None when there is none; a number is taken as its text."""
    value = record.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    report("odd_field", f'"{key}" holds {shown(value)}; expected text')
    return None


def list_field(record: Record, key: str, report: Report) -> list[Any] | None:
    """The list under ``key``; None, and a report, when it is not there or no list."""
    if key not in record or record[key] is None:
        report("missing_field", f'the field "{key}" is missing; expected a list')
        return None
    value = record[key]
    if not isinstance(value, list):
        report("wrong_type", f'"{key}" holds {shown(value)}; expected a list')
        return None
    return value


def image_field(record: Record, report: Report) -> tuple[str, ...]:
    """The paths under ``image``: a text, or a list of texts for several images."""
    value = record.get("image")
    if value is None or value in ("", []):
        return ()
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        report("wrong_type", f'"image" holds {shown(value)}; expected a path or a list of paths')
        return ()
    return tuple(paths)


def score_value(value: Any, place: str, report: Report) -> float | None:
    """The score, in [0, 1]; None, and a report that names ``place``, for anything else."""
    if value is None:
        report("score_not_a_number", f"{place} has no score; expected a number from 0 to 1")
    elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        report("score_not_a_number", f"{place} has score {shown(value)}; expected a number from 0 to 1")
    elif not 0 <= value <= 1:
        report("score_out_of_range", f"{place} has score {shown(value)}; expected 0 to 1")
    else:
        return float(value)
    return None


def steps_with_labels(
    texts: list[Any], labels: list[Any], report: Report, *, step_key: str, label_key: str
) -> tuple[Step, ...] | None:
    """Steps made of parallel lists of texts and of scores or truth values."""
    if len(texts) != len(labels):
        report(
            "labels_and_steps_differ",
            f'"{step_key}" holds {len(texts)} steps and "{label_key}" {len(labels)} labels; expected as many',
        )
        return None
    steps = []
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            report("wrong_type", f"step {number} is {shown(text)}; expected text")
            return None
        score = float(label) if isinstance(label, bool) else score_value(label, f"step {number}", report)
        if score is None:
            return None
        steps.append(Step(text, score))
    return tuple(steps)


def turns(record: Record, report: Report) -> list[tuple[str, Any]] | None:
    """(speaker, value) of each turn; None, and a report, when the field is not of that form."""
    conversation = list_field(record, "conversations", report)
    if conversation is None:
        return None
    talk = []
    for number, turn in enumerate(conversation):
        if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or "value" not in turn:
            report("wrong_type", f"turn {number} is {shown(turn)}; expected an object with from and value")
            return None
        talk.append((turn["from"], turn["value"]))
    return talk

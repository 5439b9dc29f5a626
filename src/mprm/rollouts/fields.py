"""Typed access to a record's fields; what does not fit is reported, with what was expected."""

from __future__ import annotations

from typing import Any

from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Step


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

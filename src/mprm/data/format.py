"""What mprm knows of a file format, choosing one, and typed access to a record's fields.

A format is added by writing a parse function, and a `Format` entry in the registry of its kind: `ROLLOUT_FORMATS`,
`QUESTION_FORMATS`, `BENCHMARK_FORMATS` or `CANDIDATE_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mprm.config import nearest
from mprm.data.records import DataFile, Record, read_records
from mprm.data.types import Step
from mprm.data.validate import BadRecord, Issues, StrictIssues
from mprm.errors import ConfigError, DataError, shown

Data = Mapping[str, Any]
"""One decoded JSON object, CSV row or Parquet row."""
T = TypeVar("T")

PRM_TOKEN = "<prm>"
"""Follows each step in MM-PRM text; the model is read out at it."""
SHOWN = 20
"""How many bad records or missing files an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """One way in which people store rollouts, questions, benchmarks or candidates."""

    name: str
    """As users type it after ``--format`` and ``--to``."""
    title: str
    matches: Callable[[Data], bool]
    """Whether a file with this first record is in the format."""
    parse: Callable[[Data, Issues], tuple[T, ...]]
    """The record's items; what is wrong is added to the issues, and an unusable record gives none."""


FormatT = TypeVar("FormatT", bound=Format[Any])


def format_named(name: str, formats: Mapping[str, FormatT], kind: str) -> FormatT:
    """The format of that name."""
    if name not in formats:
        raise ConfigError(f"unknown {kind} format {name!r}; {nearest(name, formats)}")
    return formats[name]


def format_of(data: Data, formats: Mapping[str, FormatT], kind: str) -> FormatT:
    """The format of a file whose first record this is; raises `BadRecord` where none fits."""
    for fmt in formats.values():
        if fmt.matches(data):
            return fmt
    keys = ", ".join(sorted(map(str, data))[:12]) or "none"
    raise BadRecord(
        f"the record has the fields {keys}, which fit no known {kind} format;"
        f" name one with --format: {', '.join(formats)}"
    )


def read_items(
    file: DataFile,
    formats: Mapping[str, Format[T]],
    kind: str,
    format_name: str | None,
    bad: list[str],
    *,
    by_record: bool = False,
) -> Iterator[tuple[Record, Format[T], tuple[T, ...], Issues]]:
    """(record, format, items, warnings) of each good record of a file; why others are bad is added to ``bad``.

    Where no format is named, the first record decides for the whole file, or with ``by_record`` each for itself.
    """
    fmt = None if format_name is None else format_named(format_name, formats, kind)
    n_records = 0
    for record in read_records(file):
        n_records += 1
        issues = StrictIssues()
        try:
            if isinstance(record.data, BadRecord):
                raise record.data
            if fmt is None or (by_record and format_name is None):
                fmt = format_of(record.data, formats, kind)
            items = fmt.parse(record.data, issues)
        except BadRecord as reason:
            bad.append(f"{record.location}: {reason}")
            if fmt is None and not isinstance(record.data, BadRecord):
                return  # of an unknown format the first record says enough
        else:
            yield record, fmt, items, issues
    if not n_records:
        bad.append(f"{file.path}: holds no record; expected at least one {kind}")


def check_no_bad(bad: list[str], remedy: str) -> None:
    """Stop when there are bad records; lists the first ones."""
    if bad:
        more = f"\n… and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        raise DataError("\n".join(bad[:SHOWN]) + f"{more}\n{remedy}")


def text_field(data: Data, key: str, issues: Issues) -> str | None:
    """The text under ``key``; None, and an issue, when it is missing or not text."""
    if key not in data or data[key] is None:
        issues.add("missing_field", f'the field "{key}" is missing; expected text')
        return None
    value = data[key]
    if not isinstance(value, str):
        issues.add("wrong_type", f'"{key}" holds {shown(value)}; expected text')
        return None
    return value


def optional_text(data: Data, key: str, issues: Issues) -> str | None:
    """The text under ``key``, or None when there is none; a number is taken as its text."""
    value = data.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    issues.add("odd_field", f'"{key}" holds {shown(value)}; expected text')
    return None


def list_field(data: Data, key: str, issues: Issues) -> list[Any] | None:
    """The list under ``key``; None, and an issue, when it is missing or not a list."""
    if key not in data or data[key] is None:
        issues.add("missing_field", f'the field "{key}" is missing; expected a list')
        return None
    value = data[key]
    if not isinstance(value, list):
        issues.add("wrong_type", f'"{key}" holds {shown(value)}; expected a list')
        return None
    return value


def image_field(data: Data, issues: Issues) -> tuple[str, ...]:
    """The paths under ``image``: a text, or a list of texts for several images."""
    value = data.get("image")
    if value is None or value in ("", []):
        return ()
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        issues.add("wrong_type", f'"image" holds {shown(value)}; expected a path or a list of paths')
        return ()
    return tuple(paths)


def score_value(value: Any, where: str, issues: Issues) -> float | None:
    """The score, in [0, 1]; None, and an issue that says ``where``, for anything else."""
    if value is None:
        issues.add("score_not_a_number", f"{where} has no score; expected a number from 0 to 1")
    elif isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        issues.add("score_not_a_number", f"{where} has score {shown(value)}; expected a number from 0 to 1")
    elif not 0 <= value <= 1:
        issues.add("score_out_of_range", f"{where} has score {shown(value)}; expected 0 to 1")
    else:
        return float(value)
    return None


def steps_with_labels(
    texts: list[Any], labels: list[Any], issues: Issues, *, step_key: str, label_key: str
) -> tuple[Step, ...] | None:
    """Steps made of parallel lists of texts and of scores or booleans."""
    if len(texts) != len(labels):
        issues.add(
            "labels_and_steps_differ",
            f'"{step_key}" holds {len(texts)} steps and "{label_key}" {len(labels)} labels; expected as many',
        )
        return None
    steps = []
    for index, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            issues.add("wrong_type", f"step {index} is {shown(text)}; expected text")
            return None
        score = float(label) if isinstance(label, bool) else score_value(label, f"step {index}", issues)
        if score is None:
            return None
        steps.append(Step(text, score))
    return tuple(steps)

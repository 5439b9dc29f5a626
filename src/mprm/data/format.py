"""What mprm knows of a file format, choosing one, and typed access to a record's fields.

A format is added by writing a parse function, and a `Format` entry in the registry of its kind: `ROLLOUT_FORMATS`,
`QUESTION_FORMATS`, `BENCHMARK_FORMATS` or `CANDIDATE_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mprm.config import nearest
from mprm.data.records import DataFile, Paths, Record, find_files, read_records
from mprm.data.types import BadRecord, Issues, Step
from mprm.errors import ConfigError, DataError, shown

Data = Mapping[str, Any]
"""One decoded JSON object, CSV row or Parquet row."""
T = TypeVar("T")

PRM_TOKEN = "<prm>"
"""Follows each step in MM-PRM text; the model is read out at it."""
SHOWN = 20
"""How many bad records or missing files an error lists."""


class has:  # noqa: N801 - reads as a function
    """``matches`` of a format whose records have all of these fields, and pass ``when``."""

    def __init__(self, *keys: str, when: Callable[[Data], bool] | None = None) -> None:
        self.keys, self.when = keys, when

    def __call__(self, data: Data) -> bool:
        return all(key in data for key in self.keys) and (self.when is None or self.when(data))


@dataclass(frozen=True, slots=True)
class Format(Generic[T]):
    """One way in which people store rollouts, questions, benchmarks or candidates."""

    name: str
    """As users type it after ``--format`` and ``--to``."""
    matches: has
    """Whether a file with this first record is in the format."""
    parse: Callable[[Data, Issues], tuple[T, ...]]
    """The record's items; what is wrong is added to the issues, or ends the parse with a `BadRecord`."""


FormatT = TypeVar("FormatT", bound=Format[Any])


def by_name(*formats: FormatT) -> dict[str, FormatT]:
    """A registry: the first format whose ``matches`` holds for a file's first record is taken."""
    return {fmt.name: fmt for fmt in formats}


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

    def missing(fmt: FormatT) -> dict[str, str]:
        """The format's fields that the record lacks, each with a key that its name is part of, or KEY."""
        absent = [key for key in fmt.matches.keys if key not in data]
        return {
            key: next((own for own in map(str, data) if key in own or (len(own) > 2 and own in key)), "KEY")
            for key in absent
        }

    def distance(fmt: FormatT) -> float:
        return sum(1.0 if key == "KEY" else 0.5 for key in missing(fmt).values()) / len(fmt.matches.keys)

    # the last of them has the plainest fields; one that misses none is told apart by what they hold
    lacking = {name: fmt for name, fmt in formats.items() if missing(fmt)} or formats
    near = min(reversed(list(lacking.values())), key=distance)
    absent = missing(near)
    why = f"it misses {', '.join(absent)}" if absent else f"its {' and '.join(near.matches.keys)} hold something else"
    remedy = f"name one with --format: {', '.join(formats)}"
    if kind == "rollout" and absent:
        words = ",".join(f"{name}={key}" for name, key in absent.items())
        remedy = f"say which fields these are, as --map {words}, or {remedy}"
    raise BadRecord(
        f"the record has the fields {keys}, which fit no known {kind} format; nearest is {near.name}: {why}."
        f" {remedy[0].upper()}{remedy[1:]}"
    )


def read_items(
    paths: Paths | DataFile,
    formats: Mapping[str, Format[T]],
    kind: str,
    format_name: str | None,
    bad: list[str],
    *,
    by_record: bool = False,
) -> Iterator[tuple[Record, tuple[T, ...], Issues]]:
    """(record, items, warnings) of each good record; why others are bad is added to ``bad``.

    Where no format is named, a file's first record decides for all of it, or with ``by_record`` each for itself.
    """
    named = None if format_name is None else format_named(format_name, formats, kind)
    for file in [paths] if isinstance(paths, DataFile) else find_files(paths):
        fmt, record = named, None
        for record in read_records(file):
            issues = Issues()
            try:
                if isinstance(record.data, BadRecord):
                    raise record.data
                if fmt is None or (by_record and named is None):
                    fmt = format_of(record.data, formats, kind)
                items = fmt.parse(record.data, issues)
                if (error := issues.first_error()) is not None:
                    raise BadRecord(error[1])
            except BadRecord as reason:
                bad.append(f"{record.location}: {reason}")
                if fmt is None and not isinstance(record.data, BadRecord):
                    break  # of an unknown format the first record says enough
            else:
                yield record, items, issues
        if record is None:
            bad.append(f"{file.path}: holds no record; expected at least one {kind}")


def check_no_bad(bad: list[str], remedy: str) -> None:
    """Stop when there are bad records; lists the first ones."""
    if bad:
        more = f"\n… and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        raise DataError("\n".join(bad[:SHOWN]) + f"{more}\n{remedy}")


def field(data: Data, key: str, kind: type[T]) -> T:
    """The text or list under ``key``; raises `BadRecord` when it is missing or of another type."""
    value = data.get(key)
    if isinstance(value, kind):
        return value
    expected = "text" if kind is str else "a list"
    if value is None:
        raise BadRecord(f'the field "{key}" is missing; expected {expected}', "missing_field")
    raise BadRecord(f'"{key}" holds {shown(value)}; expected {expected}')


def fields(data: Data, issues: Issues, **kinds: type) -> list[Any]:
    """The texts and lists under these keys; of several wrong ones the last raises, and the others are issues."""
    bad: list[BadRecord] = []
    for key, kind in kinds.items():
        try:
            field(data, key, kind)
        except BadRecord as reason:
            bad.append(reason)
    for other in bad[:-1]:
        issues.add_bad(other)
    if bad:
        raise bad[-1]
    return [data[key] for key in kinds]


def text_of(data: Data, *keys: str, default: str | None = None) -> str:
    """The text under the first of the keys that is there; a number is taken as its text."""
    key = next((key for key in keys if data.get(key) is not None), keys[0])
    value = data.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        value = str(value)
    if isinstance(value, str) and value.strip(" \t\r\n"):
        return value
    if value is not None and not isinstance(value, str):
        raise BadRecord(f'"{key}" holds {shown(value)}; expected text')
    if default is None:
        problem = f"the field {names_of(keys)} is missing" if value is None else f'"{key}" is empty'
        raise BadRecord(f"{problem}; expected text")
    return default


def names_of(keys: Sequence[str]) -> str:
    """The keys as a message names them: ``"a" or "b"``."""
    return " or ".join(f'"{key}"' for key in keys)


def _add(issues: Issues | None, kind: str, text: str) -> None:
    if issues is None:
        raise BadRecord(text, kind)
    issues.add(kind, text)


def optional_text(data: Data, key: str, issues: Issues | None = None) -> str | None:
    """The text under ``key``, or None when there is none; a number is taken as its text.

    What is neither is an issue, or without ``issues`` a `BadRecord`.
    """
    value = data.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    _add(issues, "odd_field", f'"{key}" holds {shown(value)}; expected text')
    return None


def image_field(data: Data, issues: Issues | None = None) -> tuple[str, ...]:
    """The paths under ``image``: a text, or a list of texts for several images."""
    value = data.get("image")
    if value is None or value in ("", []):
        return ()
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        _add(issues, "wrong_type", f'"image" holds {shown(value)}; expected a path or a list of paths')
        return ()
    return tuple(paths)


def score_value(value: Any, where: str) -> float:
    """The score, in [0, 1]; a `BadRecord` that says ``where`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        score = "no score" if value is None else f"score {shown(value)}"
        raise BadRecord(f"{where} has {score}; expected a number from 0 to 1", "score_not_a_number")
    if not 0 <= value <= 1:
        raise BadRecord(f"{where} has score {shown(value)}; expected 0 to 1", "score_out_of_range")
    return float(value)


def steps_with_labels(texts: list[Any], labels: list[Any], *, step_key: str, label_key: str) -> tuple[Step, ...]:
    """Steps made of parallel lists of texts and of scores or booleans."""
    if len(texts) != len(labels):
        counts = f'"{step_key}" holds {len(texts)} steps and "{label_key}" {len(labels)} labels'
        raise BadRecord(f"{counts}; expected as many", "labels_and_steps_differ")
    steps = []
    for index, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            raise BadRecord(f"step {index} is {shown(text)}; expected text")
        score = float(label) if isinstance(label, bool) else score_value(label, f"step {index}")
        steps.append(Step(text, score))
    return tuple(steps)

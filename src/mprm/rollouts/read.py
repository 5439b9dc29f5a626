"""From one line to its rollouts, with everything that is wrong with it reported."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mprm.errors import DataError
from mprm.rollouts.chunks import Chunk, lines_of
from mprm.rollouts.fields import shown
from mprm.rollouts.files import CorpusFile
from mprm.rollouts.format import Format, Record
from mprm.rollouts.formats import FORMATS, format_named, recognised
from mprm.rollouts.judge import judge
from mprm.rollouts.problem import Problems, Report
from mprm.rollouts.rollout import Rollout

LOOK_AT = 1000
"""How many broken lines at a file's start are passed over in the search for a record."""

_decode = msgspec.json.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rollout must satisfy, beyond what every rollout must."""

    text_only: bool = False
    """Records need no image."""
    image_root: Path | None = None
    """Folder that must hold every image."""
    forbids: str | None = None
    """Text that the output format cannot hold inside a step."""


def record_of(line: bytes, report: Report) -> Record | None:
    """The line's JSON object; None, and a report, when it is not one."""
    try:
        record = _decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        record = _slow_record(line, report)
        if record is None:
            return None
    if not isinstance(record, dict):
        report("not_json", f"the line is {shown(record)}; expected a JSON object")
        return None
    return record


def _slow_record(line: bytes, report: Report) -> Any:
    """Decode again with the standard library, which takes NaN, and say what is wrong."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "; the file looks like UTF-16, save it as UTF-8" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        report("not_utf8", f"byte {error.start} (0x{line[error.start]:02x}) is not UTF-8{hint}")
        return None
    if text.startswith("\ufeff"):
        report("not_json", "the line begins with a byte-order mark; save the file as UTF-8 without it")
        return None
    try:
        record = json.loads(text)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        report("not_utf8", "the text holds half of a surrogate pair (\\ud800 to \\udfff)")
        return None
    except RecursionError:
        report("not_json", "the value is nested too deeply")
        return None
    except ValueError as error:
        report("not_json", f"not JSON: {error}")
        return None
    return record


def read_line(line: bytes, fmt: Format, judgement: Judgement | None, report: Report) -> tuple[Rollout, ...]:
    """The line's rollouts, judged unless they have been already."""
    if fmt.quick is not None and is_utf8(line) and (rollout := fmt.quick(line)) is not None:
        judge_rollout(rollout, fmt, judgement, report)
        return (rollout,)
    record = record_of(line, report)
    if record is None:
        return ()
    rollouts = fmt.parse(record, report)
    for rollout in rollouts:
        judge_rollout(rollout, fmt, judgement, report)
    return rollouts


def is_utf8(line: bytes) -> bool:
    """Whether every byte of the line is, also in fields that a typed decoder skips."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def judge_rollout(rollout: Rollout, fmt: Format, judgement: Judgement | None, report: Report) -> None:
    """Report what is wrong with a rollout of this format; nothing when there is no judgement to make."""
    if judgement is None:
        return
    judge(
        rollout,
        report,
        needs_image=fmt.has_images and not judgement.text_only,
        image_root=judgement.image_root,
        forbids=judgement.forbids,
    )


def is_blank(line: bytes) -> bool:
    """Whether the line holds no record at all."""
    return not line.strip(b" \t\r\n")


def file_format(file: CorpusFile, name: str | None, first_chunk: Chunk | None) -> Format:
    """The named format, or the one that the file's first record shows."""
    if name is not None:
        return format_named(name)
    first_problem: tuple[str, str] | None = None
    for line in _some(lines_of(first_chunk)) if first_chunk else ():
        if is_blank(line):
            continue
        problems = Problems()
        record = record_of(line, problems)
        if record is not None:
            return recognised(record, file.path)
        if line.lstrip()[:1] == b"[":
            raise DataError(
                f"{file.path}:1: the file is one JSON array; expected one object a line."
                f" Make it so with: jq -c '.[]' {file.path}"
            )
        first_problem = first_problem or problems.found[0]
    # nothing to go by: an empty file is no error, and a file without one good record is told line by line
    return FORMATS["visualprm-raw"]


def _some(lines: Iterable[bytes]) -> Iterable[bytes]:
    for _, line in zip(range(LOOK_AT), lines, strict=False):
        yield line

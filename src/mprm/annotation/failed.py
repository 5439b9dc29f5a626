"""The list of questions that failed, beside the output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mprm.annotation.journal import Key
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.files import DATA_FILE


def failed_path(out: str) -> str:
    """Where it lies."""
    return DATA_FILE.sub("", out) + ".failed.jsonl"


def write_failed(out: str, reasons: Mapping[Key, list[str]]) -> str | None:
    """List the questions that failed; a list of an earlier run goes when there are none."""
    path = failed_path(out)
    if not reasons:
        Path(path).expanduser().unlink(missing_ok=True)
        return None
    with atomic_write(path) as temporary, temporary.open("wb") as lines:
        for (source, id_), errors in reasons.items():
            lines.write(msgspec.json.encode({"id": id_, "source": source, "errors": errors}) + b"\n")
    return path

"""The records that were left out because they cannot be used: each kept, with its reason."""

from __future__ import annotations

import base64
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.files import DATA_FILE
from mprm.rollouts.temporary import temporary_file


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that was left out, and why."""

    file: str
    line: int
    source: str
    kind: str
    reason: str
    record: bytes

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object; a record that is not text goes in base64."""
        found: dict[str, Any] = {
            "file": self.file,
            "line": self.line,
            "source": self.source,
            "kind": self.kind,
            "reason": self.reason,
        }
        try:
            found["record"] = self.record.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            found["record_base64"] = base64.b64encode(self.record).decode()
        return found


class DroppedRecords:
    """Collects dropped records on disk until it is known where they go."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        """How many were dropped, by source and kind."""
        self._file = temporary_file(self)

    def __call__(self, dropped: Dropped) -> None:
        """Take one more."""
        kinds = self.counts.setdefault(dropped.source, {})
        kinds[dropped.kind] = kinds.get(dropped.kind, 0) + 1
        self._file.write(msgspec.json.encode(dropped.as_dict()) + b"\n")

    def __len__(self) -> int:
        return sum(sum(kinds.values()) for kinds in self.counts.values())

    def account(self, source: str, *, n_kept: int, n_left: int = 0) -> dict[str, Any]:
        """What became of the source's records: read = kept + left + dropped."""
        reasons = self.counts.get(source, {})
        n_dropped = sum(reasons.values())
        return {
            "read": n_kept + n_left + n_dropped,
            "kept": n_kept,
            "left": n_left,
            "dropped": n_dropped,
            "reasons": reasons,
        }

    def write(self, path: str) -> None:
        """Write all of them to a file."""
        self._file.seek(0)
        with atomic_write(path) as temporary, temporary.open("wb") as out:
            shutil.copyfileobj(self._file, out)


def dropped_path(out: str) -> str:
    """Where the records go that were dropped on the way to ``out``.

    Examples
    --------
    >>> dropped_path("subsets/bis10.jsonl.gz")
    'subsets/bis10.dropped.jsonl'
    """
    folder, slash, name = out.rpartition("/")
    return folder + slash + (DATA_FILE.sub("", name) or Path(name).stem) + ".dropped.jsonl"

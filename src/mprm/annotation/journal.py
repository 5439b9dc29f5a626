"""Errors of writing that say what was being written.

Work that is saved as it is done, so that a run that was stopped continues where it was.

What a run with a policy writes: the output, and beside it the list of questions that failed.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import msgspec

from mprm.data.corpus import MANIFEST_SUFFIX
from mprm.data.output import atomic_write, check_not_inputs, check_overwrite
from mprm.data.questions import is_in_memory
from mprm.data.records import corpus_files, is_url
from mprm.errors import ConfigError, DataError, printable


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the file system that names no file, as a full disk's does not, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


SUFFIX = ".partial"
Key = tuple[str, str]
"""Source and id of a question."""
VOID = "void"
"""The part that takes back all others of its question."""
Span = tuple[int, int]
"""Where a line begins and ends."""


class Journal:
    """A file beside the output, with the parts of the work in the order in which they were done.

    A record belongs to a question, by ``source`` and ``id``; where a question is done in parts, ``part``
    tells which. Its first line tells what run it belongs to; a run with other settings is refused, and so
    is a second process. A last line that was cut off by the end of a run is removed. A file that is no
    journal is never touched.

    Parameters
    ----------
    out
        The output; the journal is ``OUT.partial``.
    run
        What must be the same for a run to continue this one.
    force
        Begin anew where the journal belongs to another run.
    sync_s
        A record is with the system when it is added, and survives the end of the process; at least so
        often, in seconds, it is on disk as well, and survives the end of the machine.
    """

    def __init__(self, out: str, *, run: Mapping[str, Any], force: bool = False, sync_s: float = 0.0) -> None:
        self.path = Path(out + SUFFIX).expanduser()
        self._run = msgspec.json.decode(msgspec.json.encode(run))  # as it reads back
        self._spans: dict[Key, dict[str, Span]] = {}
        self._sync_s, self._synced = sync_s, monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._header = msgspec.json.encode({"run": self._run}) + b"\n"
        self._file = self.path.open("ab+")
        try:
            self._lock()
            difference = self._difference()
            if difference is not None and not force:
                raise ConfigError(
                    f"{self.path} was begun with other settings: {difference}. Continue with the same ones,"
                    " or begin anew with --force (in Python: force=True)"
                )
            if difference is not None:
                self._file.truncate(0)
            self._continue()
        except BaseException:
            self._close()
            raise

    def _lock(self) -> None:
        """Keep other processes out; the lock ends with the process, however it ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another process is working on {self.path}; wait for it, or choose another output"
            ) from error
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise ConfigError(f"another process has just finished the work of {self.path}; look at its output first")

    def _continue(self) -> None:
        """Take over what an earlier run has done; write the first line where there is none."""
        end = 0
        for number, start, line in self._lines():
            record = _decoded(line)
            if record is None and start + len(line) == self.path.stat().st_size:
                break  # torn: the run ended while it was written
            end = start + len(line)
            match record:
                case _ if number == 1:
                    pass  # the run's, looked at before
                case {"source": str(source), "id": str(id_)} if isinstance((record or {}).get("part", ""), str):
                    self._note((source, id_), record or {}, (start, end))
                case _:
                    raise DataError(
                        f"{self.path}:{number}: the line is damaged; expected a JSON object with source and id."
                        " Remove the file to begin anew"
                    )
        self._file.truncate(end)
        if end == 0:
            self._append(self._header)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """(number, place, line) of each line."""
        with self.path.open("rb") as lines:
            start = 0
            for number, line in enumerate(lines, 1):
                yield number, start, line
                start += len(line)

    def _difference(self) -> str | None:
        """What the journal's run has otherwise than this one; None where they agree or nothing is begun."""
        with self.path.open("rb") as lines:
            line = lines.readline()
        if self._header.startswith(line):  # nothing, or a first line that the end of a run cut off, or the same
            return None
        first = _decoded(line)
        then = None if first is None else first.get("run")
        if not isinstance(then, dict):
            raise ConfigError(
                f"{self.path} was not made by mprm: its first line tells of no run. Work is saved under that"
                " name as it is done; move the file away, or choose another output"
            )
        changed = [name for name in {**then, **self._run} if then.get(name) != self._run.get(name)]
        told = [f"{printable(name)} was {then.get(name)!r}, now {self._run.get(name)!r}" for name in changed]
        return "; ".join(told) or None

    def __contains__(self, key: Key) -> bool:
        return "" in self._spans.get(key, ())

    def __len__(self) -> int:
        return sum("" in parts for parts in self._spans.values())

    def parts(self, key: Key) -> set[str]:
        """The parts of an unfinished question that are done."""
        return self._spans.get(key, {}).keys() - {""}

    def add(self, record: Mapping[str, Any]) -> None:
        """Save one more record, with ``source`` and ``id``; one without ``part`` stands for the whole question."""
        span = self._append(msgspec.json.encode(record) + b"\n")
        self._note((record["source"], record["id"]), record, span)

    def _note(self, key: Key, record: Mapping[str, Any], span: Span) -> None:
        part = record.get("part", "")
        if part == VOID:
            self._spans.pop(key, None)
        elif part:
            self._spans.setdefault(key, {})[part] = span
        else:
            self._spans[key] = {"": span}  # its parts are not asked for again

    def _append(self, line: bytes) -> tuple[int, int]:
        with naming(self.path):
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(line)
            self._file.flush()
            if monotonic() - self._synced >= self._sync_s:
                os.fsync(self._file.fileno())
                self._synced = monotonic()
        return start, start + len(line)

    def line(self, key: Key, part: str = "") -> bytes:
        """The record of a question or of a part of it, as a line."""
        start, end = self._spans[key][part]
        self._file.seek(start)
        return self._file.read(end - start)

    def forget(self, key: Key) -> None:
        """Take back what is saved of a question."""
        self.add({"source": key[0], "id": key[1], "part": VOID})

    def remove(self) -> None:
        """Delete the file, once its records are in the output; locked to the last."""
        self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        with naming(self.path):  # what could not be written before is tried again
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _decoded(line: bytes) -> dict[str, Any] | None:
    """The line's object; None where the line is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = msgspec.json.decode(line)
    except (ValueError, msgspec.MsgspecError):
        return None
    return record if isinstance(record, dict) else None


PACKED = re.compile(r"\.(?:gz|zst|parquet)$")
MOST_NAME_BYTES = 220
"""Of a file's name; file systems take 255, and other files are named after it."""


def check_output(out: str, given: Any, *, force: bool) -> None:
    """Stop when nothing can be written to ``out``: to be called before a policy is loaded, too."""
    if is_url(out):
        raise ConfigError(f"{out}: answers are saved as they come, on this machine; name a local file")
    if PACKED.search(out) or out.endswith(("/", os.sep)):
        raise ConfigError(f"{out}: answers are written as plain JSON lines; name a file such as raw.jsonl")
    made = [out + SUFFIX, failed_path(out), out + MANIFEST_SUFFIX]
    if len(Path(out).name.encode()) > MOST_NAME_BYTES:
        raise ConfigError(f"{out}: the name is too long for the files beside it; take a shorter one")
    for path in made:
        if Path(path).expanduser().is_dir():
            raise ConfigError(f"{path} is a folder, and would be a file beside the output; choose another output")
    if given is not None and not is_in_memory(given):
        check_not_inputs([file.path for file in corpus_files(given)], [out, *made])
    check_overwrite(out, force=force)


def commonest(reasons: Mapping[Key, list[str]]) -> str:
    """The reason that most questions failed for."""
    [(reason, n)] = Counter(reason for some in reasons.values() for reason in set(some)).most_common(1)
    return f"{n:,} of them with: {reason}"


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as lines:
            first = msgspec.json.decode(lines.readline())
    except (OSError, ValueError, msgspec.MsgspecError):
        return False
    return isinstance(first, dict) and first.keys() == {"id", "source", "errors"}


def failed_path(out: str) -> str:
    """Where it lies."""
    return out + ".failed"


def write_failed(out: str, reasons: Mapping[Key, list[str]]) -> str | None:
    """List the questions that failed; a list of an earlier run goes when there are none."""
    path = failed_path(out)
    if not reasons:
        if _is_ours(Path(path).expanduser()):
            Path(path).expanduser().unlink()
        return None
    with atomic_write(path) as temporary, temporary.open("wb") as lines:
        for (source, id_), errors in reasons.items():
            lines.write(msgspec.json.encode({"id": id_, "source": source, "errors": errors}) + b"\n")
    return path

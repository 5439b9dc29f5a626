"""Work that is saved as it is done, so that a run that was stopped continues where it was."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from mprm.data.output import printable
from mprm.errors import ConfigError, DataError

SUFFIX = ".partial"
APPLICATION_ID = int.from_bytes(b"mprm")
"""Tells journals from other SQLite files."""
NOT_A_JOURNAL = (
    "was not made by mprm. Work is saved under that name as it is done; move the file away, or choose another output"
)
SYNC_S = 1.0
"""Records come by the hundred a second: only so often are they forced onto the disk."""

Key = tuple[str, str]
"""Source and id of a question."""


class Journal:
    """The work that is done, in the SQLite file ``OUT.partial`` (with ``OUT.partial-wal`` while it is open).

    A record belongs to a question, by ``source`` and ``id``; where a question is done in parts, it has a ``part``. It
    survives the end of the process once it is added, and the end of the machine a second later. A second process is
    refused, and so is another ``run``, the settings of a run, unless ``force`` begins anew. A file that is no journal
    is never touched.
    """

    def __init__(self, out: str, *, run: Mapping[str, Any], force: bool = False) -> None:
        self.path = Path(out + SUFFIX).expanduser()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._synced = monotonic()
        with self._errors():
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            with self._errors():
                # locks the file until the process ends, however it ends; a WAL then needs no shared memory,
                # which network file systems have not
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("BEGIN EXCLUSIVE")
                with self._db:
                    self._open(msgspec.json.encode(run), force=force)
                # 40,000 commits/s that survive a kill -9; a rollback journal makes 2,000
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._db.close()
            raise

    def _open(self, run: bytes, *, force: bool) -> None:
        if not self.path.exists():
            raise ConfigError(f"another process has just finished the work of {self.path}; look at its output first")
        [application_id] = self._db.execute("PRAGMA application_id").fetchone()
        if not self.path.stat().st_size:
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute("CREATE TABLE run (settings BLOB)")
            self._db.execute("INSERT INTO run VALUES (?)", [run])
            columns = "source TEXT, id TEXT, part TEXT, record BLOB, PRIMARY KEY (source, id, part)"
            self._db.execute(f"CREATE TABLE records ({columns}) WITHOUT ROWID")
            return
        if application_id != APPLICATION_ID:
            raise ConfigError(f"{self.path} {NOT_A_JOURNAL}")
        [settings] = self._db.execute("SELECT settings FROM run").fetchone()
        before, now = msgspec.json.decode(settings), msgspec.json.decode(run)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed and not force:
            words = (f"{printable(name)} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
            raise ConfigError(
                f"{self.path} was begun with other settings: {'; '.join(words)}. Continue with the same ones,"
                " or begin anew with --force (in Python: force=True)"
            )
        if changed:
            self._db.execute("DELETE FROM records")
            self._db.execute("UPDATE run SET settings = ?", [run])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise ConfigError(
                    f"another process is working on {self.path}; wait for it, or choose another output"
                ) from error
            if code == sqlite3.SQLITE_NOTADB:
                raise ConfigError(f"{self.path} {NOT_A_JOURNAL}") from error
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
                raise OSError(number, str(error), str(self.path)) from error
            raise DataError(f"{self.path} is damaged ({error}); remove the file to begin anew") from error

    def __contains__(self, key: Key) -> bool:
        return self._select("1", key, "") is not None

    def get(self, key: Key, part: str = "") -> dict[str, Any] | None:
        record = self._select("record", key, part)
        return None if record is None else msgspec.json.decode(record)

    def line(self, key: Key) -> bytes:
        """The record of a question as a JSON line."""
        return bytes(self._select("record", key, "")) + b"\n"

    def _select(self, column: str, key: Key, part: str) -> Any:
        query = f"SELECT {column} FROM records WHERE source = ? AND id = ? AND part = ?"
        with self._errors():
            row = self._db.execute(query, (*key, part)).fetchone()
        return row and row[0]

    def add(self, record: Mapping[str, Any]) -> None:
        """Save one more record, with ``source`` and ``id``; one without ``part`` replaces the question's parts."""
        source, id_, part = record["source"], record["id"], record.get("part", "")
        values = source, id_, part, msgspec.json.encode(record)
        is_due = monotonic() - self._synced >= SYNC_S
        with self._errors():
            if is_due:
                self._db.execute("PRAGMA synchronous = FULL")
            if part:
                self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", values)
            else:
                self._db.execute("BEGIN")
                with self._db:
                    self._db.execute("DELETE FROM records WHERE source = ? AND id = ?", (source, id_))
                    self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?)", values)
            if is_due:
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._synced = monotonic()

    def forget(self, key: Key) -> None:
        with self._errors():
            self._db.execute("DELETE FROM records WHERE source = ? AND id = ?", key)

    def remove(self) -> None:
        """Delete the file, once its records are in the output; locked to the last."""
        with self._errors():
            self._db.execute("PRAGMA journal_mode = DELETE")  # the WAL goes first
        self.path.unlink(missing_ok=True)
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

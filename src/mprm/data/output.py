"""Temporary files and folders that go with the object that holds them.

Writing files so that a half-written one never stands under its final name.

Keeping a command from replacing what it reads.

The records that were left out because they cannot be used: each kept, with its reason.

Where converted or compressed records go: JSON lines, packed or not, or Parquet.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from mprm.data.records import DATA_FILE, Container, filesystem, is_url
from mprm.errors import ConfigError, OutputExistsError


def temporary_file(owner: object) -> IO[bytes]:
    """A nameless file that is closed, and so gone, when its owner is."""
    file = tempfile.TemporaryFile(prefix="mprm-")  # noqa: SIM115 - closed with the owner
    weakref.finalize(owner, file.close)
    return file


class TemporaryFolder:
    """A folder that is removed when the object is."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mprm-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def check_overwrite(path: str, *, force: bool) -> None:
    """Stop when the output is there already and must not be replaced."""
    if is_url(path):
        fs, inner = filesystem(path)
        exists = not force and fs.exists(inner)
    else:
        final = Path(path).expanduser()
        if final.exists() and not final.is_file():
            raise ConfigError(f"{path} is there already and is no regular file; choose another name")
        check_folder(str(final.parent))
        exists = not force and final.exists()
    if exists:
        raise OutputExistsError(
            f"{path} exists already; replace it with --force (in Python: force=True), or choose another name"
        )


def check_folder(path: str) -> None:
    """Stop when a local folder is not there and cannot be made, before work is done whose outcome would be lost."""
    if is_url(path):
        return
    folder = Path(path).expanduser()
    nearest = next((one for one in (folder, *folder.parents) if one.exists()), Path())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file; {path} cannot be a folder for outputs, choose another")
    try:
        tempfile.TemporaryFile(dir=nearest).close()  # tried, as permissions do not tell all
    except OSError as error:
        raise ConfigError(
            f"nothing can be written into {nearest} ({error.strerror}); choose another folder for outputs"
        ) from error


@contextmanager
def atomic_write(path: str) -> Iterator[Path]:
    """A temporary file that becomes ``path`` when the block ends well, and is removed when it does not.

    It lies beside the final file, so that the last move is one rename; for a URL it lies on this
    machine and is uploaded at the end.
    """
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="mprm-") as folder:
            local = Path(folder) / "output"
            local.touch()
            yield local
            fs, inner = filesystem(path)
            fs.makedirs(fs._parent(inner), exist_ok=True)
            fs.put_file(str(local), inner)
        return
    final = Path(path).expanduser()
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes files that only their owner can read
        temporary.replace(final)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path  # a full disk does not say what was being written
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_not_inputs(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> None:
    """Stop when an output is one of the inputs, whatever ``force`` says."""
    read = {_identity(path) for path in inputs}
    for out in outputs:
        if _identity(out) in read:
            raise ConfigError(f"{out} would be replaced, and is one of the inputs; choose another output")


def check_outputs(paths: Iterable[str], *, inputs: Iterable[str | Path], force: bool) -> None:
    """Stop when an output would replace an input, or another file without ``force``, or cannot be written."""
    outputs = list(paths)
    check_not_inputs(inputs, outputs)
    for path in outputs:
        check_overwrite(path, force=force)


def _identity(path: str | Path) -> str:
    """The same text for every way to name a local file."""
    local = str(path).removeprefix("file://")
    return local if is_url(local) else str(Path(local).expanduser().resolve())


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


class Sink(Protocol):
    """Takes what `convert_lines` makes, in order."""

    def write(self, data: bytes) -> None:
        """Take some records."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


def open_sink(path: Path, container: Container) -> Sink:
    """A file that takes JSON lines, or Arrow streams where it is Parquet."""
    return _ParquetSink(path) if container == "parquet" else _LineSink(path, container)


class _LineSink:
    def __init__(self, path: Path, container: Container) -> None:
        self._stack = ExitStack()
        out: Any = self._stack.enter_context(path.open("wb"))
        if container == "gz":
            import gzip

            # no name and no time in the header: the same records give the same bytes
            out = self._stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0))
        elif container == "zst":
            import zstandard

            out = self._stack.enter_context(zstandard.ZstdCompressor().stream_writer(out, closefd=False))
        self._out = out

    def write(self, data: bytes) -> None:
        self._out.write(data)

    def close(self) -> None:
        self._stack.close()


class _ParquetSink:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        from mprm.data.corpus import arrow_schema

        self._writer = pq.ParquetWriter(path, arrow_schema(), compression="zstd")

    def write(self, data: bytes) -> None:
        if not data:
            return
        import pyarrow as pa

        with pa.ipc.open_stream(data) as stream:
            self._writer.write_table(stream.read_all())

    def close(self) -> None:
        self._writer.close()

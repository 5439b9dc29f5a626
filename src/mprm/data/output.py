"""Outputs: files written whole or not at all, manifests, dropped records; tables as text."""

from __future__ import annotations

import base64
import mmap
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm import __version__
from mprm.data.engine import Engine
from mprm.data.records import DATA_FILE, DataFile, filesystem, is_url, stamp_of
from mprm.errors import ConfigError, DataError, OutputExistsError, location

MANIFEST_SUFFIX = ".manifest.json"


class TemporaryFolder:
    """A folder that is removed with the object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mprm-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def check_overwrite(path: str, *, force: bool) -> None:
    """Stop when the output exists already and must not be replaced, or cannot be written."""
    if is_url(path):
        fs, inner = filesystem(path)
        exists = not force and fs.exists(inner)
    else:
        final = Path(path).expanduser()
        if final.exists() and not final.is_file():
            raise ConfigError(f"{path} exists already and is no regular file; choose another name")
        check_folder(str(final.parent))
        exists = not force and final.exists()
    if exists:
        raise OutputExistsError(
            f"{path} exists already; replace it with --force (in Python: force=True), or choose another name"
        )


def check_folder(path: str) -> None:
    """Stop when a local folder does not exist and cannot be made, before work is done that would be lost."""
    if is_url(path):
        return
    folder = Path(path).expanduser()
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path())
    if not existing.is_dir():
        raise ConfigError(f"{existing} is a file; {path} cannot be a folder for outputs, choose another")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # tried, as permissions do not tell all
    except OSError as error:
        raise ConfigError(
            f"nothing can be written into {existing} ({error.strerror}); choose another folder for outputs"
        ) from error


def check_output_name(out: str) -> None:
    """Stop when the output's name does not say how it is packed."""
    if not DATA_FILE.search(out):
        raise ConfigError(f"{out}: the name must end in .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


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


def check_unchanged(files: Iterable[DataFile]) -> None:
    """Stop when a local input is not as it was when it was opened."""
    for file in files:
        if not file.is_remote and file.stamp != stamp_of(file.path):
            raise DataError(f"{file.path}: the file changed while it was read; run again")


@contextmanager
def atomic_write(path: str) -> Iterator[Path]:
    """A temporary file that becomes ``path`` when the block ends well, and is removed when it does not.

    It lies beside the final file, so that the last move is one rename; for a URL it is local and uploaded at the end.
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
        """As a JSON object; a record that is not text is base64."""
        fields = {name: getattr(self, name) for name in ("line", "source", "kind", "reason")}
        fields = {"file": location(self.file), **fields}
        try:
            return {**fields, "record": self.record.decode().rstrip("\r\n")}
        except UnicodeDecodeError:
            return {**fields, "record_base64": base64.b64encode(self.record).decode()}


class DroppedRecords:
    """Collects dropped records on disk until it is known where they go."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        """How many were dropped, by source and kind."""
        self._file = tempfile.TemporaryFile(prefix="mprm-")  # noqa: SIM115 - closed, and so gone, with its owner
        weakref.finalize(self, self._file.close)

    def __call__(self, dropped: Dropped) -> None:
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
        self._file.seek(0)
        with atomic_write(path) as temporary, temporary.open("wb") as out:
            shutil.copyfileobj(self._file, out)

    def write_beside(self, out: str, *, force: bool) -> str | None:
        """Write them beside the output that they were dropped from; returns where, None where there are none."""
        if not len(self):
            return None
        path = dropped_path(out)
        check_overwrite(path, force=force)
        self.write(path)
        return path


def dropped_path(out: str) -> str:
    """Where the records go that were dropped on the way to ``out``.

    Examples
    --------
    >>> dropped_path("subsets/bis10.jsonl.gz")
    'subsets/bis10.dropped.jsonl'
    """
    folder, slash, name = out.rpartition("/")
    return folder + slash + (DATA_FILE.sub("", name) or Path(name).stem) + ".dropped.jsonl"


def hash_file(path: str) -> str:
    """XXH3-128 of a local file, as ``xxhsum -H2`` prints it."""
    with open(path, "rb") as handle:  # noqa: PTH123 - kept next to mmap
        if os.fstat(handle.fileno()).st_size == 0:
            return xxhash.xxh3_128_hexdigest(b"")  # an empty file cannot be mapped
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return xxhash.xxh3_128_hexdigest(data)  # mapped: not copied before it is hashed


def hash_files(paths: list[str]) -> dict[str, str]:
    """XXH3-128 of some local files."""
    return {path: hash_file(path) for path in paths}


class InputHashes:
    """The hashes of local input files; the engine works on them while other things are done."""

    BATCHES = 4
    """Few, so that an engine with workers takes all of them at once."""

    def __init__(self, files: Iterable[DataFile], engine: Engine) -> None:
        local = [file.path for file in files if not file.is_remote]
        batches = [local[number :: self.BATCHES] for number in range(self.BATCHES)]
        self._hashing: Iterator[dict[str, str]] = engine.map(hash_files, batches)
        self._hashes: dict[str, str] | None = None

    def of(self, file: DataFile) -> str | None:
        """The file's hash; None for a URL."""
        if self._hashes is None:
            self._hashes = {path: digest for batch in self._hashing for path, digest in batch.items()}
        return self._hashes.get(file.path)


def write_manifest(
    out: str,
    *,
    command: str,
    config: Mapping[str, Any],
    inputs: list[dict[str, Any]],
    sources: Mapping[str, Any],
    output: Mapping[str, Any],
    **more: Any,
) -> str:
    """Write the manifest of ``out`` beside it; returns its path.

    It holds no time and no machine, so that the same run gives the same bytes.
    """
    manifest = {
        "mprm": __version__,
        "command": command,
        "config": config,
        "inputs": inputs,
        "sources": sources,
        "output": output,
        **more,
    }
    beside = out + MANIFEST_SUFFIX
    with atomic_write(beside) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return beside


def output_entry(out: str, temporary: Path, n_rollouts: int) -> dict[str, Any]:
    """What a manifest says of an output that was just written to a temporary file."""
    return {
        "path": out,
        "n_bytes": temporary.stat().st_size,
        "xxh3_128": hash_file(str(temporary)),
        "n_rollouts": n_rollouts,
    }


def write_with_manifest(path: str, data: bytes, *, output: Mapping[str, Any] | None = None, **manifest: Any) -> None:
    """Write a file and the manifest beside it, which is there before the file gets its name."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
        entry = {"path": path, "n_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        write_manifest(path, output={**entry, **(output or {})}, **manifest)


# Tables


def printable(text: str) -> str:
    r"""The text on one line, with whatever could steer a terminal or break a table written as an escape.

    Examples
    --------
    >>> print(printable("ai2d\x1b[2J\n"), printable("Größe"))
    ai2d\x1b[2J\n Größe
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under heads, with a title above and notes below."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    has_total: bool = False
    """Whether the last row sums up the others."""

    def markdown(self) -> str:
        """The table in Markdown, under its title."""
        title, *notes = map(markdown_text, (self.title, *self.notes))
        heads, *rows = ([*map(markdown_text, line)] for line in (self.heads, *self.rows))
        return "\n\n".join([f"## {title}", markdown_table(heads, rows), *notes]) + "\n"


def markdown_text(text: str) -> str:
    r"""The text as Markdown that shows it as it is: no HTML, links, images or emphasis.

    Examples
    --------
    >>> print(markdown_text("<b> [a](b) *c* _d_ e_f"))
    \<b> \[a](b) \*c\* \_d\_ e_f
    """
    # a bracket that no link can begin with, and an underscore within a word, are only that
    return re.sub(r"[\\`*<&~]|\[(?=.*\][(\[:])|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", printable(text))


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""The table in Markdown: the first column left, the others right; Markdown in its cells stays Markdown.

    Examples
    --------
    >>> print(markdown_table(["source", "n"], [["a|b", "1"]]))
    | source | n |
    | --- | ---: |
    | a\|b | 1 |
    """
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)

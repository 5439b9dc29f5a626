"""Outputs: files written whole or not at all, manifests, dropped records; tables as text."""

from __future__ import annotations

import base64
import errno
import mmap
import os
import re
import shutil
import tempfile
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import msgspec
import xxhash

from mprm import __version__
from mprm.data import engine
from mprm.data.engine import Engine
from mprm.data.records import DATA_FILE, DataFile, filesystem, is_url, stamp_of
from mprm.data.types import location
from mprm.errors import ConfigError, DataError, OutputExistsError

MANIFEST_SUFFIX = ".manifest.json"
PARTIAL = ".partial"
"""Added to an output's name: the work of a run that was stopped."""


class TemporaryFolder:
    """A folder that is removed with the object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mprm-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def check_overwrite(path: str, *, force: bool) -> None:
    """Stop when the output exists already and must not be replaced, or cannot be written."""
    check_folder(path if is_url(path) else str(Path(path).expanduser().parent))
    _check_replaceable(path, force=force)


def _check_replaceable(path: str, *, force: bool) -> None:
    if is_url(path):
        fs, inner = filesystem(path)
        exists = not force and fs.exists(inner)
    else:
        final = Path(path).expanduser()
        exists = os.path.lexists(final)
        if exists and not final.is_file():
            what = "a symbolic link that leads to no file" if final.is_symlink() else "no regular file"
            raise ConfigError(f"{path} exists already and is {what}; remove it, or choose another name")
    if exists and not force:
        raise OutputExistsError(f"{path} exists already; replace it with --force (in Python: force=True)")


def check_folder(path: str) -> None:
    """Stop when a local folder does not exist and cannot be made, before work is done that would be lost."""
    if is_url(path):
        return
    folder = Path(path).expanduser()
    existing = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), Path())
    if not existing.is_dir():
        what = "a file" if existing.exists() else "a symbolic link that leads nowhere"
        raise ConfigError(f"{existing} is {what}; {path} cannot be a folder for outputs, choose another")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # tried, as permissions do not tell all
    except OSError as error:
        raise ConfigError(f"nothing can be written into {existing} ({error.strerror}); choose another") from error


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


def _identity(path: str | Path) -> str:
    """The same text for every way to name a local file."""
    local = str(path).removeprefix("file://")
    return local if is_url(local) else os.path.realpath(Path(local).expanduser())


def check_unchanged(files: Iterable[DataFile]) -> None:
    """Stop when a local input is not as it was when it was opened."""
    for file in files:
        if not file.is_remote and file.stamp != stamp_of(file.path):
            raise DataError(f"{file.path}: the file changed while it was read; run again")


@contextmanager
def unchanged(files: Iterable[DataFile]) -> Iterator[None]:
    """Stop when a local input changes while the block reads it: whatever else goes wrong then, that is the reason."""
    try:
        yield
    finally:
        check_unchanged(files)


@contextmanager
def atomic_write(path: str, *, sync: bool = True) -> Iterator[Path]:
    """A temporary file that becomes ``path`` when the block ends well, and is removed when it does not.

    It lies beside the final file, so that the last move is one rename; for a URL it is local and uploaded at the end.
    With ``sync`` it is on disk before it gets its name. Several files that belong together: `Outputs`.
    """
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="mprm-") as folder, writing(tempfile.gettempdir()):
            local = Path(folder) / "output"
            local.touch()
            yield local
            _upload(local, path)
        return
    final = Path(path).expanduser()
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{os.urandom(4).hex()}.tmp")
    try:
        with writing(path, {str(temporary): path}):
            temporary.touch(exist_ok=False)
            yield temporary
            if sync:
                _sync(temporary)
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Name the output in an error that names no file, as that of a full disk, or a temporary file of ``names``."""
    try:
        yield
    except OSError as error:
        finals: dict[Any, str] = {None: path, **(names or {})}
        if error.errno is not None:
            error.filename = finals.get(error.filename, error.filename)
        raise


def _upload(local: str | Path, url: str) -> None:
    fs, inner = filesystem(url)
    fs.makedirs(fs._parent(inner), exist_ok=True)
    fs.put_file(str(local), inner)


def _sync(path: str | Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Several files that belong together. One rename is atomic, several are not: what is to be renamed is written down
# first, so that the next writer can finish what a kill interrupted.

TEMPORARY, LOCK, PLAN = ".mprm-tmp", "lock", "plan.json"
MAX_NAME = 255  # bytes


class _Plan(msgspec.Struct):
    rename: list[str]
    """Final names of the temporary files 0, 1, …, as seen from beside the temporary folder; manifests last."""
    replaced: list[tuple[int, int, int] | None]
    """`stamp_of` each file that is replaced; None where there is none."""
    remove: list[str]
    """Files of the run whose output is replaced that have no successor."""


@contextmanager
def _claimed(out: str) -> Iterator[tuple[Path, list[str]]]:
    """A folder for temporary files, which nobody else has, and files that killed runs had all but written."""
    if is_url(out):
        with tempfile.TemporaryDirectory(prefix="mprm-") as local:
            yield Path(local), []
        return
    final = Path(out).expanduser()
    check_folder(str(final.parent))
    is_new = not final.parent.exists()
    final.parent.mkdir(parents=True, exist_ok=True)
    finished = _clean_up(final.parent)
    folder = final.with_name(f".{final.name}{TEMPORARY}")
    with ExitStack() as stack:
        for _ in range(5):  # a process that looks for the remains of killed runs has it for a moment
            with suppress(FileNotFoundError):
                folder.mkdir(exist_ok=True)
                if stack.enter_context(_lock(folder)) is not False:
                    break
            time.sleep(0.01)
        else:
            raise ConfigError(f"another process is writing {out}; wait for it, or choose another output")
        try:
            yield folder, finished + _recovered(folder)
        finally:
            if not (folder / PLAN).exists():  # else the next writer does the rest of it
                shutil.rmtree(folder, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    final.parent.rmdir()  # it is empty where nothing was written


def _clean_up(parent: Path) -> list[str]:
    """Finish what killed runs had all but written to a folder, and remove their other temporary files."""
    finished: list[str] = []
    for folder in parent.glob(f".*{TEMPORARY}"):
        with suppress(OSError), _lock(folder) as is_ours:  # gone in the meantime, or another user's
            if is_ours:
                finished += _recovered(folder)
                shutil.rmtree(folder, ignore_errors=True)
    return finished


def _recovered(folder: Path) -> list[str]:
    """The final files of a killed run's plan, after doing the rest of it; none where that is not to be done any more.

    A plan may lie in a folder that came from elsewhere: it names files beside itself alone. And a file that somebody
    has written since is left as it is.
    """
    try:
        plan = msgspec.json.decode((folder / PLAN).read_bytes(), type=_Plan)
        beside = folder.parent.resolve()
        are_inside = all((beside / name).resolve().is_relative_to(beside) for name in (*plan.rename, *plan.remove))
        # a manifest is removed first: where it is gone, this plan has removed it
        are_old = all(
            stamp_of(str(beside / name)) in (stamp, None) or not (folder / str(number)).exists()
            for number, (name, stamp) in enumerate(zip(plan.rename, plan.replaced, strict=True))
        )
        return _finish(folder, plan) if are_inside and are_old else []
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return []


_LOCKS: set[int] = set()


@contextmanager
def _lock(folder: Path) -> Iterator[bool | None]:
    """Lock a temporary folder until the end of the block or process, killed or not; whether it is ours now.

    False where another process has locked it, None on a disk without locks.
    """
    import fcntl

    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    _LOCKS.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # not that of a folder that was removed in the meantime
            is_ours: bool | None = os.path.samestat(os.fstat(handle), (folder / LOCK).stat())
        except OSError as error:
            is_ours = False if error.errno in (errno.EWOULDBLOCK, errno.ENOENT) else None
        yield is_ours
    finally:
        _LOCKS.discard(handle)
        os.close(handle)


def _leave_locks() -> None:
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_leave_locks)  # or a worker would hold them for longer than its killed parent


def _finish(folder: Path, plan: _Plan) -> list[str]:
    """Do what the plan says, or the rest of it; returns the final files."""
    finals = [folder.parent / name for name in plan.rename]
    pending = [(folder / str(n), final) for n, final in enumerate(finals) if (folder / str(n)).exists()]
    if pending:
        # a manifest never lies beside other files than its own
        old = [final for _, final in pending if final.name.endswith(MANIFEST_SUFFIX)]
        for final in [*old, *(folder.parent / name for name in plan.remove)]:
            final.unlink(missing_ok=True)
    for temporary, final in pending:
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.replace(final)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with atomic_write(str(final)) as near:  # a folder on another disk, such as that of a report's figures
                shutil.copyfile(temporary, near)
            temporary.unlink()
    for parent in {final.parent for final in finals}:
        _sync(parent)
    (folder / PLAN).unlink()
    return list(map(str, finals))


def _check_name(path: str, max_bytes: int) -> None:
    """Stop at a name that no file can have, before any work."""
    try:
        is_name = "\0" not in path and len(Path(path).name.encode()) <= max_bytes
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise ConfigError(f"{path!r}: a file cannot have this name; expected UTF-8 of at most {max_bytes} bytes")


class Outputs:
    """Files that are written together: all get their names when the block ends well, and none when it does not.

    ``outs`` are what has a manifest, the outputs themselves or folders of outputs; no other process may write them
    before the block ends.
    """

    def __init__(self, *outs: str, force: bool = False) -> None:
        self._outs, self._force = outs, force
        self._folders: list[Path] = []
        self._files: dict[str, str] = {}
        """Final name of each temporary file."""
        self._manifests: dict[str, dict[str, Any]] = {}
        self._replaceable: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            for out in self._outs:
                _check_name(out, MAX_NAME - len(TEMPORARY) - 1)
                folder, finished = stack.enter_context(_claimed(out))
                self._folders.append(folder)
                self._replaceable.update(map(_identity, finished))
            for out in self._outs:
                self._check_manifest(out)
            self._stack = stack.pop_all()
        return self

    def _check_manifest(self, out: str) -> None:
        """Stop at an output that is there, or at a manifest that is not of mprm; one whose output is gone may go."""
        if not is_url(out) and not Path(out).expanduser().is_dir():
            self.check(out)
        manifest = out + MANIFEST_SUFFIX
        files = [_identity(Path(out).expanduser().parent / name) for name in files_of_manifest(manifest)]
        if files and not Path(files[0]).exists():
            self._replaceable.update({_identity(manifest)}, {_identity(dropped_path(out))}.intersection(files))
        self.check(manifest)

    def check(self, path: str) -> None:
        """Stop when the file exists and may not be replaced, or cannot have its name."""
        _check_name(path, MAX_NAME)
        _check_replaceable(path, force=self._force or _identity(path) in self._replaceable)

    def add(self, path: str) -> Path:
        """A temporary file that becomes ``path``."""
        self.check(path)
        temporary = self._folders[0] / str(len(self._files))
        temporary.touch()
        self._files[str(temporary)] = path
        return temporary

    def add_manifest(self, out: str, *, files: Iterable[str] | None = None, **content: Any) -> str:
        """Write a manifest beside ``out``, of these files or of all that were added; returns its path.

        It holds no time and no machine, so that the same run gives the same bytes.
        """
        names = [os.path.relpath(path, Path(out).parent) for path in files or self._files.values()]
        self._manifests[out + MANIFEST_SUFFIX] = {"mprm": __version__, **content, "files": names}
        return out + MANIFEST_SUFFIX

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        with self._stack:
            if not self._files:
                return
            last = tempfile.gettempdir() if is_url(self._outs[0]) else list(self._files.values())[-1]
            with writing(last, self._files):
                if error is None:
                    self._commit()
                elif isinstance(error, OSError):
                    raise error

    def _commit(self) -> None:
        for path, content in self._manifests.items():
            with writing(path):
                self.add(path).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        if is_url(self._outs[0]):
            for name, path in self._files.items():
                _upload(name, path)
            return
        for name in self._files:
            _sync(name)
        folder, finals = self._folders[0], [Path(path).expanduser() for path in self._files.values()]
        plan = _Plan(
            [os.path.relpath(final, folder.parent) for final in finals],
            [stamp_of(str(final)) for final in finals],
            [os.path.relpath(path, folder.parent) for path in self._stale()],
        )
        with atomic_write(str(folder / PLAN)) as temporary:
            temporary.write_bytes(msgspec.json.encode(plan))
        _sync(folder)
        try:
            _finish(folder, plan)
        except OSError:  # it would fail again, and later outputs with it
            (folder / PLAN).unlink(missing_ok=True)
            raise

    def _stale(self) -> Iterator[Path]:
        """Files of the manifests that are replaced which may be replaced too, and no manifest names any more."""
        written = set(map(_identity, self._files.values()))
        for path in self._manifests:
            folder = Path(path).expanduser().parent
            others = [str(other) for other in folder.glob(f"*{MANIFEST_SUFFIX}") if _identity(other) not in written]
            for name in files_of_manifest(path):
                is_inside = (folder / name).resolve().is_relative_to(folder.resolve())
                is_named = _identity(folder / name) in written or any(name in files_of_manifest(o) for o in others)
                may_go = self._force or _identity(folder / name) in self._replaceable
                if may_go and is_inside and not is_named:
                    yield folder / name


def files_of_manifest(path: str) -> list[str]:
    """The files that a manifest is of, as seen from beside it, the output first; none where it is no manifest."""
    try:
        manifest = msgspec.json.decode(Path(path).expanduser().read_bytes(), type=dict[str, Any])
        return [str(name) for name in manifest["files"]] if "mprm" in manifest else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.MsgspecError):
        return []


class Dropped(NamedTuple):
    """A record that was left out, and why."""

    file: str
    line: int
    source: str
    kind: str
    reason: str
    record: bytes


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # what a full disk left in the buffer was reported when it was written
        file.close()


class DroppedRecords:
    """Collects dropped records on disk until it is known where they go."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How many were dropped, by source and kind."""
        self._file = tempfile.TemporaryFile(prefix="mprm-")  # noqa: SIM115 - closed, and so gone, with its owner
        weakref.finalize(self, _close, self._file)

    def __call__(self, dropped: Dropped) -> None:
        self.counts[dropped.source][dropped.kind] += 1
        entry = {**dropped._asdict(), "file": location(dropped.file)}
        try:
            entry["record"] = dropped.record.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            entry["record_base64"] = base64.b64encode(entry.pop("record")).decode()
        with writing(tempfile.gettempdir()):
            self._file.write(msgspec.json.encode(entry) + b"\n")

    def __len__(self) -> int:
        return sum(kinds.total() for kinds in self.counts.values())

    def reasons(self, source: str) -> dict[str, Any]:
        kinds = self.counts.get(source, Counter())
        return {"dropped": kinds.total(), "reasons": kinds}

    def account(self, source: str, *, n_kept: int, n_left: int = 0) -> dict[str, Any]:
        """What became of the source's records: read = kept + left + dropped."""
        reasons = self.reasons(source)
        return {"read": n_kept + n_left + reasons["dropped"], "kept": n_kept, "left": n_left, **reasons}

    def write(self, path: str) -> None:
        with atomic_write(path) as temporary:
            self.copy_to(temporary)

    def copy_to(self, path: Path) -> None:
        with writing(tempfile.gettempdir()):
            self._file.seek(0)
        with path.open("wb") as out:
            shutil.copyfileobj(self._file, out)

    def write_beside(self, out: str, outputs: Outputs) -> str | None:
        """Write them beside the output that they were dropped from; returns where, None where there are none."""
        if not len(self):
            return None
        path = dropped_path(out)
        self.copy_to(outputs.add(path))
        return path


def dropped_path(out: str) -> str:
    """Where the records go that were dropped on the way to ``out``.

    >>> dropped_path("subsets/bis10.jsonl.gz")
    'subsets/bis10.dropped.jsonl'
    """
    folder, slash, name = out.rpartition("/")
    return folder + slash + (DATA_FILE.sub("", name) or Path(name).stem) + ".dropped.jsonl"


def hash_file(path: str) -> str:
    """XXH3-128 of a local file, as ``xxhsum -H2`` prints it."""
    with open(path, "rb", buffering=0) as handle:  # noqa: PTH123 - kept next to mmap
        if engine.is_worker and os.fstat(handle.fileno()).st_size:  # it may die of a file that is cut short
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return xxhash.xxh3_128_hexdigest(data)  # mapped: not copied before it is hashed
        return file_digest(handle, xxhash.xxh3_128).hexdigest()


def hash_files(paths: list[str]) -> dict[str, str]:
    """XXH3-128 of some local files."""
    return {path: hash_file(path) for path in paths}


class InputHashes:
    """The hashes of local input files; the engine works on them while other things are done."""

    def __init__(self, files: Iterable[DataFile], workers: Engine) -> None:
        local = [file.path for file in files if not file.is_remote]
        # in few batches, so that an engine with workers takes all of them at once
        self._hashing = workers.map(hash_files, [local[number::4] for number in range(4)])

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {path: digest for batch in self._hashing for path, digest in batch.items()}

    def of(self, file: DataFile) -> str | None:
        """The file's hash; None for a URL."""
        return self._hashes.get(file.path)


def output_entry(out: str, temporary: Path, **more: Any) -> dict[str, Any]:
    """What a manifest says of an output that was just written to a temporary file."""
    return {"path": out, "n_bytes": temporary.stat().st_size, "xxh3_128": hash_file(str(temporary)), **more}


def write_with_manifest(
    files: Mapping[str, bytes], *, output: Mapping[str, Any] | None = None, **manifest: Any
) -> None:
    """Write files that belong together and the manifest of the first of them, replacing what is there."""
    path, data = next(iter(files.items()))
    with Outputs(path, force=True) as outputs:
        for name, content in files.items():
            with writing(name):
                outputs.add(name).write_bytes(content)
        entry = {"path": path, "n_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        outputs.add_manifest(path, **manifest, output={**entry, **(output or {})})


# Tables


def printable(text: str) -> str:
    r"""The text on one line, with whatever could steer a terminal or break a table written as an escape.

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
        title, *notes = map(markdown_text, (self.title, *self.notes))
        heads, *rows = ([*map(markdown_text, line)] for line in (self.heads, *self.rows))
        return "\n\n".join([f"## {title}", markdown_table(heads, rows), *notes]) + "\n"


def markdown_text(text: str) -> str:
    r"""The text as Markdown that shows it as it is: no HTML, links, images or emphasis.

    >>> print(markdown_text("<b> [a](b) *c* _d_ e_f"))
    \<b> \[a](b) \*c\* \_d\_ e_f
    """
    # a bracket that no link can begin with, and an underscore within a word, are only that
    return re.sub(r"[\\`*<&~]|\[(?=.*\][(\[:])|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", printable(text))


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""The table in Markdown: the first column left, the others right; Markdown in its cells stays Markdown.

    >>> print(markdown_table(["source", "n"], [["a|b", "1"]]))
    | source | n |
    | --- | ---: |
    | a\|b | 1 |
    """
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)

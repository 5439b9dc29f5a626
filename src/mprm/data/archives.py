"""Zip archives, whole or split, unpacked once into a cache: ``$MPRM_CACHE``, by default ``~/.cache/mprm``."""

from __future__ import annotations

import errno
import fcntl
import glob
import io
import os
import re
import shutil
import stat
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import xxhash

from mprm.data.hub import downloaded, named_errors
from mprm.data.images import leaves_root
from mprm.data.output import check_folder, printable, writing
from mprm.data.records import MAX_LINE_BYTES, MAX_UNPACKED_RATIO, filesystem, is_url, remote_matches
from mprm.data.types import without_secrets
from mprm.errors import DataError, InputNotFoundError, MprmError
from mprm.progress import progress_bar

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

ARCHIVE = re.compile(r"(?P<stem>.*\.zip)(?:[._-]?(?P<part>(?!gz)[a-z]{2,3}|\d{2,3}))?", re.DOTALL | re.IGNORECASE)
"""A zip archive or a part of one, as split and 7z name them: x.zip, x.zip_aa, x.zip.001."""
COPY_BYTES = 1 << 20

Archive = tuple[str, ...]
"""The parts of a zip archive in order, one or several: paths or URLs."""


def archives_of(name: str) -> list[Archive]:
    """The zip archives that a path, glob or URL names, with all parts of those of which it names one, or the stem."""
    match = ARCHIVE.fullmatch(name)
    is_part = match is not None and match["part"] is not None
    stem = match["stem"] if match is not None and is_part else name
    begin = re.sub(r"(?i)(?<=\.zip)[._-]?[a-z\d]{0,3}$", "", _base(stem))
    named = _files(name)
    stems = {found["stem"] for path in named if (found := ARCHIVE.fullmatch(without_secrets(path)))}
    parts: dict[str, dict[str, str]] = {}
    for path in _files(f"{glob.escape(stem) if Path(name).exists() else stem}*") if is_part or not named else named:
        found = ARCHIVE.fullmatch(without_secrets(path))
        # other archives may begin alike: data.zip-old.zip
        if found is None or not (found["stem"] in stems if named else fnmatchcase(_base(found["stem"]), begin)):
            continue
        if found["part"] or not is_part:
            parts.setdefault(found["stem"], {})[found["part"] or ""] = path
    if not parts:
        raise InputNotFoundError(f"{name}: no such zip archive, whole or in parts such as {name}_aa")
    return [(own[""],) if "" in own else _in_order(stem, own) for stem, own in sorted(parts.items())]


def _base(name: str) -> str:
    return re.split(r"[/\\]", name)[-1]


def _files(name: str) -> list[str]:
    if is_url(name):
        with suppress(InputNotFoundError):
            return [url for url, _ in remote_matches(name)]
        return []
    name = str(Path(name).expanduser())
    paths = [name] if Path(name).exists() else glob.glob(name)  # noqa: PTH207 - any pattern
    return sorted(path for path in paths if Path(path).is_file())


def _in_order(stem: str, parts: dict[str, str]) -> Archive:
    """The parts by their endings, none of which may be missing before the last."""

    def number(part: str) -> int:
        return (
            int(part)
            if part.isdigit()
            else reduce(lambda total, letter: 26 * total + ord(letter) - 97, part.lower(), 0)
        )

    ordered = sorted(parts, key=lambda part: (len(part), part))
    numbers = [number(part) for part in ordered]
    if numbers[0] > ordered[0].isdigit() or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise InputNotFoundError(f"{stem}: of its parts {', '.join(ordered)} are there; expected all, in a row")
    return tuple(parts[part] for part in ordered)


class _Joined(io.RawIOBase):
    """Files one after the other, read as one."""

    def __init__(self, handles: Sequence[IO[bytes]]) -> None:
        self._handles, self._position = handles, 0
        self._starts = [0, *accumulate(handle.seek(0, io.SEEK_END) for handle in handles)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._starts[-1])[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        index = bisect_right(self._starts, self._position) - 1
        if index >= len(self._handles):
            return 0
        self._handles[index].seek(self._position - self._starts[index])
        data = self._handles[index].read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def cache_folder() -> Path:
    """Where archives are unpacked."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "mprm"
    return Path(os.environ.get("MPRM_CACHE") or caches).expanduser()


@lru_cache  # asked for each question that has images
def unpacked_root(name: str) -> Path:
    """The folder with what all the archives of this name hold, as an image root."""
    folder = unpacked(archives_of(name))
    tops = [path for path in folder.iterdir() if path.name != "__MACOSX"]
    if len(tops) == 1 and tops[0].is_dir():
        text = f"{name}: all of it lies in {tops[0].name}/, with which image paths have to begin then"
        print(printable(text), file=sys.stderr)
    return folder


def unpacked(archives: Sequence[Archive]) -> Path:
    """A folder with what the archives hold; unpacked if it is not in the cache.

    The folder has the archive's name, and a hash of paths, sizes and times of the parts, or of what a server says of
    them. It gets its name when it is complete, and beside it lies a hash of what it holds: once that is no longer so,
    it is unpacked again. A second process waits for the first.
    """
    archives = [tuple(downloaded(p) if p.startswith("hf://") else p for p in parts) for parts in archives]
    key = xxhash.xxh3_64_hexdigest(repr([[_stamp(part) for part in parts] for parts in archives]).encode())
    name = ARCHIVE.sub(r"\g<stem>", re.split(r"[/\\]", without_secrets(archives[0][0]))[-1])
    folder = cache_folder() / f"{re.sub(r'[^a-zA-Z0-9_.-]', '_', name)[:80]}-{key}"
    content = folder.with_name(f"{folder.name}.content")

    def is_whole() -> bool:
        return folder.is_dir() and content.is_file() and content.read_bytes() == _content(folder)

    if is_whole():
        return folder
    check_folder(str(folder.parent))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    with folder.with_name(f"{folder.name}.lock").open("a") as lock, writing(str(folder)):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_whole():
            return folder
        if os.path.lexists(folder):
            print(printable(f"{folder} is not as it was unpacked; it is unpacked again"), file=sys.stderr)
            folder.unlink() if folder.is_symlink() or not folder.is_dir() else shutil.rmtree(folder)
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            partial.mkdir()
            for parts in archives:
                _unpack(parts, partial, folder)
            content.write_bytes(_content(partial))
            partial.rename(folder)
        except FileExistsError as error:
            twice = Path(error.filename).relative_to(partial)
            raise DataError(f"{archives[-1][0]}: {twice} is there twice; unpack by hand which you mean") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _content(folder: Path) -> bytes:
    """A hash of the names, sizes and times of all files in the folder."""
    paths = (f"{parent}/{name}" for parent, _, names in os.walk(folder) for name in names)
    files = sorted((path[len(str(folder)) :], (s := os.lstat(path)).st_size, s.st_mtime_ns) for path in paths)
    return xxhash.xxh3_64_digest(repr(files).encode())


def _stamp(part: str) -> Any:
    """What changes when the file does."""
    if not is_url(part):
        status = Path(part).stat()
        return os.path.realpath(part), status.st_size, status.st_mtime_ns
    with named_errors(part):
        fs, path = filesystem(part)
        info = fs.info(path)
    stamps = {"etag", "lastmodified", "contentmd5", "digest", "mtime", "size"}  # each file system has its spelling
    return part, sorted((name, str(info[name])) for name in info if re.sub("[-_]", "", name.lower()) in stamps)


@contextmanager
def _opened(parts: Archive) -> Iterator[ZipFile]:
    """The archive; whatever is wrong with it, or with what the block reads of it, in one line."""
    import zipfile

    import fsspec

    try:
        with ExitStack() as stack:
            handles = [stack.enter_context(fsspec.open(part, "rb")) for part in parts]
            yield stack.enter_context(zipfile.ZipFile(io.BufferedReader(_Joined(handles), COPY_BYTES)))
    except Exception as error:  # zipfile's, zlib's, lzma's, a server's
        is_written = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_written or isinstance(error, MprmError) or getattr(error, "filename", None) not in (None, *parts):
            raise  # told already, or of the cache
        of = f" in {len(parts)} parts" if len(parts) > 1 else ""
        remedy = "compare its size with the original's" + ", and whether the last part is there" * bool(of)
        raise DataError(f"{parts[0]}: the zip archive{of} cannot be unpacked: {error}; {remedy}") from error


def _unpack(parts: Archive, partial: Path, folder: Path) -> None:
    with _opened(parts) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        total, packed = sum(info.file_size for info in infos), archive.fp.seek(0, io.SEEK_END)  # type: ignore[union-attr]
        free = shutil.disk_usage(folder.parent).free
        problems = [f"{info.filename!r:.200} {problem}" for info in infos if (problem := _refused(info))]
        if total > max(2 * MAX_LINE_BYTES, MAX_UNPACKED_RATIO * packed):
            problems.append(f"it unpacks to {total:,} bytes, over {MAX_UNPACKED_RATIO} times its size")
        if problems:
            raise DataError(f"{parts[0]}: {problems[0]}; if that should be, unpack it by hand")
        if total > free:
            room = f"{total:,} bytes, and {folder.parent} has room for {free:,}"
            raise DataError(f"{parts[0]}: it unpacks to {room}; name a folder with more by MPRM_CACHE")
        print(printable(f"unpacking {without_secrets(parts[0])}, {total:,} bytes, into {folder}"), file=sys.stderr)
        with progress_bar("unpacking", total, "bytes") as advance:
            for info in infos:
                path = partial / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source, path.open("xb") as target:  # x: a name that is there twice
                    while block := source.read(COPY_BYTES):
                        target.write(block)
                        advance(len(block))


def _refused(info: ZipInfo) -> str | None:
    """Why an entry is not unpacked."""
    if leaves_root(info.filename):
        return "would lie outside of the folder"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link or a device"
    return "is encrypted" if info.flag_bits & 1 else None

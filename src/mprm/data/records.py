"""From what the user typed to the files of a corpus: globs, folders, URLs, compression, sources.

Cutting files into pieces of work, and reading the lines of a piece.
"""

from __future__ import annotations

import glob
import io
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast
from urllib.parse import unquote

import msgspec

from mprm.errors import DataError, InputNotFoundError, MissingDependencyError

Container = Literal["plain", "gz", "zst", "parquet"]
SUFFIXES: dict[str, Container] = {".gz": "gz", ".zst": "zst", ".parquet": "parquet"}
DATA_FILE = re.compile(r"\.(?:jsonl|ndjson|json)(?:\.gz|\.zst)?$|\.parquet$")
"""Endings that are no part of a source's name."""
IN_FOLDER = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz|\.zst)?$|\.parquet$")
"""Files that are taken from a folder; a .json file must be named itself, as it is seldom lines."""
SHARD = re.compile(r"-\d{3,}-of-\d{3,}$")


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of rollouts."""

    path: str
    source: str
    container: Container
    n_bytes: int
    stamp: tuple[int, int, int] | None = None
    """Size, time and number of a local file, to tell whether it was changed since."""

    @property
    def is_remote(self) -> bool:
        """Whether the path is a URL, read through fsspec."""
        return is_url(self.path)


def is_url(path: str) -> bool:
    """Whether fsspec, not the local file system, knows the path."""
    return "://" in path


def source_name(path: str) -> str:
    """The file's name without folders, endings and shard number.

    Examples
    --------
    >>> source_name("annotations/ai2d.jsonl.gz"), source_name("ai2d-00003-of-00010.parquet")
    ('ai2d', 'ai2d')
    """
    name = re.split(r"[/\\]", path.rstrip("/"))[-1]
    name = DATA_FILE.sub("", name) or name
    name = SHARD.sub("", name) or name
    return unquote(name)  # as --by-source writes a source that is no file name


def container_of(path: str) -> Container:
    """How the file is packed, from its name."""
    return next((kind for suffix, kind in SUFFIXES.items() if path.endswith(suffix)), "plain")


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path on it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise MissingDependencyError(f"{url}: {error}") from error
    return fs, path


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """What changes when a local file does; None when it is gone."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def corpus_files(paths: str | Path | Sequence[str | Path]) -> list[CorpusFile]:
    """All files that the paths, globs, folders and URLs name, each once, in canonical order.

    The order is by source, then by path: it does not depend on the order in which the files were
    named, and so neither does anything that mprm makes of them.
    """
    typed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not typed:
        raise InputNotFoundError("no input was named; expected files, globs or folders of rollouts")
    found: dict[str, CorpusFile] = {}
    for path in map(str, typed):
        matches = list(_remote_matches(path) if is_url(path) else _local_matches(path))
        if not matches:
            raise InputNotFoundError(
                f"{path}: no such file; expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet files"
            )
        for match, n_bytes in matches:
            if not match.isprintable() and not _is_text(match):
                raise InputNotFoundError(f"{match!a}: the file's name is not UTF-8; rename it")
            identity = match if is_url(match) else str(Path(match).resolve())
            stamp = None if is_url(match) else stamp_of(match)
            file = CorpusFile(match, source_name(match), container_of(match), n_bytes, stamp)
            # of several names of one file the first in the alphabet counts, not the first that was typed
            found[identity] = min(file, found.get(identity, file), key=lambda file: (file.source, file.path))
    ordered = sorted(found, key=lambda identity: (found[identity].source, re.split(r"[/\\]", identity)))
    return [found[identity] for identity in ordered]


def _local_matches(path: str) -> Iterable[tuple[str, int]]:
    here = Path(path).expanduser()
    if here.is_dir():
        below = (p for p in sorted(here.rglob("*")) if p.is_file() and _is_data(p.name))
        inside = [str(p) for p in below if not any(part.startswith(".") for part in p.relative_to(here).parts)]
        if not inside:
            raise InputNotFoundError(f"{path}: the folder holds no .jsonl, .jsonl.gz, .jsonl.zst or .parquet files")
    else:
        # a name that exists is meant as it stands, even if it holds * or [
        inside = [str(here)] if here.exists() else sorted(glob.glob(str(here), recursive=True))  # noqa: PTH207 - any pattern
    for match in inside:
        if Path(match).is_dir():
            yield from _local_matches(match)
        elif not Path(match).is_file():
            raise InputNotFoundError(
                f"{match}: is no regular file; mprm reads its input twice, so save it to a file first"
            )
        else:
            yield match, Path(match).stat().st_size


def _remote_matches(url: str) -> Iterable[tuple[str, int]]:
    fs, path = filesystem(url)
    if glob.has_magic(path):
        matches = fs.glob(path)
    elif fs.isdir(path):
        matches = [p for p in fs.find(path) if _is_data(p.rsplit("/", 1)[-1])]
    else:
        matches = [path] if fs.exists(path) else []
    for match in matches:
        yield fs.unstrip_protocol(match), int(fs.size(match) or 0)


def _is_data(name: str) -> bool:
    is_dropped = name == "dropped.jsonl" or name.endswith(".dropped.jsonl")
    return not name.startswith(".") and bool(IN_FOLDER.search(name)) and not is_dropped


CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one file, small enough to be one task."""

    path: str
    container: Container
    source: str
    start: int
    """First byte of a plain file's range; first row group of a Parquet file's."""
    stop: int
    """End of the range, exclusive."""
    format: str = ""
    """Name of the file's format."""

    @property
    def is_range(self) -> bool:
        """Whether bytes of the file can be copied without reading lines."""
        return self.container == "plain" and not is_url(self.path)


def chunks_of(file: CorpusFile, *, format_name: str = "", chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """The pieces of a file, in order."""
    if file.container == "plain":
        stops = [*range(chunk_bytes, file.n_bytes, chunk_bytes), file.n_bytes]
    elif file.container == "parquet":
        with _reading(file.path), _opened(file.path) as handle:
            stops = list(range(1, _parquet(handle).num_row_groups + 1))
    else:
        stops = [file.n_bytes]
    starts = [0, *stops]
    return [
        Chunk(file.path, file.container, file.source, start, stop, format_name)
        for start, stop in zip(starts, stops, strict=False)
    ]


def lines_of(chunk: Chunk) -> Iterator[bytes]:
    """Each line that begins in the chunk, with its line end."""
    with _reading(chunk.path):
        if chunk.container == "parquet":
            yield from _parquet_lines(chunk)
        elif chunk.is_range:
            yield from _mapped_lines(chunk)
        else:
            yield from _streamed_lines(chunk)


def _mapped_lines(chunk: Chunk) -> Iterator[bytes]:
    with mapped(chunk) as data:
        place = range_start(data, chunk.start)
        while place < chunk.stop:
            end = data.find(b"\n", place) + 1 or len(data)
            yield data[place:end]
            place = end


@contextmanager
def mapped(chunk: Chunk) -> Iterator[bytes | mmap.mmap]:
    """The bytes of the chunk's whole file, in memory only as far as they are looked at."""
    with _reading(chunk.path), open(chunk.path, "rb") as handle:  # noqa: PTH123 - kept next to mmap
        if chunk.stop == 0:
            yield b""  # an empty file cannot be mapped
            return
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if len(data) < chunk.stop:
                raise DataError(f"{chunk.path}: the file became shorter while it was read")
            yield data


def range_start(data: bytes | mmap.mmap, start: int) -> int:
    """First byte of the first line that begins at ``start`` or after it."""
    return 0 if start == 0 else data.find(b"\n", start - 1) + 1 or len(data)


def _streamed_lines(chunk: Chunk) -> Iterator[bytes]:
    with _opened(chunk.path, chunk.container) as handle:
        place = chunk.start if chunk.container == "plain" else 0
        if place:
            handle.seek(place - 1)
            place += len(handle.readline()) - 1
        stop = chunk.stop if chunk.container == "plain" else None
        while stop is None or place < stop:
            line = handle.readline()
            if not line:
                return
            place += len(line)
            yield line


def _parquet_lines(chunk: Chunk) -> Iterator[bytes]:
    encode = msgspec.json.Encoder(enc_hook=str).encode
    with _opened(chunk.path) as handle:
        for batch in _parquet(handle).iter_batches(batch_size=1024, row_groups=list(range(chunk.start, chunk.stop))):
            for row in batch.to_pylist():
                image = row.get("image")
                if isinstance(image, dict):  # a Hugging Face image: its path is what a record holds
                    row["image"] = image.get("path")
                yield encode(row) + b"\n"


def _parquet(handle: IO[bytes]) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(handle)


class _ZstdReader(io.RawIOBase):
    """Unpacks frame after frame, and does not take a file that breaks off for one that ends."""

    def __init__(self, handle: IO[bytes]) -> None:
        import zstandard

        self._handle, self._unpacked = handle, b""
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            is_between = self._frame is None or self._frame.eof
            packed = (
                self._frame.unused_data if self._frame is not None and is_between else b""
            ) or self._handle.read(1 << 17)
            if not packed and is_between:
                return 0
            if not packed:
                raise EOFError("the file breaks off in the middle of a frame")
            if is_between:
                self._frame = self._new_frame()
            self._unpacked = self._frame.decompress(packed)
        n_bytes = min(len(buffer), len(self._unpacked))
        buffer[:n_bytes], self._unpacked = self._unpacked[:n_bytes], self._unpacked[n_bytes:]
        return n_bytes


@contextmanager
def _opened(path: str, container: Container = "plain") -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; plain files and URLs alike."""
    if is_url(path):
        import fsspec

        handle: IO[bytes] = fsspec.open(path, "rb").open()
    else:
        handle = open(path, "rb")  # noqa: PTH123, SIM115 - closed below
    with handle:
        if container == "gz":
            import gzip

            with gzip.open(handle) as unpacked:
                yield cast(IO[bytes], unpacked)
        elif container == "zst":
            with io.BufferedReader(_ZstdReader(handle), 1 << 18) as unpacked:
                yield unpacked
        else:
            yield handle


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn what a broken or vanished file raises into an error that names it."""
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except Exception as error:
        # zstandard, pyarrow and fsspec back ends each raise their own base classes
        if type(error).__module__.split(".")[0] in {"zstandard", "zlib", "pyarrow", "aiohttp", "botocore"}:
            raise DataError(f"{path}: cannot be read: {error}") from error
        raise

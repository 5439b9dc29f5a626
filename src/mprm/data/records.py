"""From what the user typed to records: globs, folders, URLs, compression, JSON lines and arrays, CSV, Parquet.

A corpus of rollouts is read in chunks, so that several processes can share the work: a plain file is cut at byte
ranges, where a line belongs to the range in which it begins; a compressed file or a JSON array is one chunk; a
Parquet file is one chunk a row group. `lines_of` gives every chunk as JSON lines. Smaller files (questions,
benchmarks, candidates) are read record by record with `read_records`.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import mmap
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast
from urllib.parse import unquote

import msgspec

from mprm.data import engine
from mprm.data.types import BadRecord, location, without_secrets
from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError, counted, shown

Container = Literal["plain", "gz", "zst", "parquet"]
SUFFIXES: dict[str, Container] = {".gz": "gz", ".zst": "zst", ".parquet": "parquet"}
DATA_FILE = re.compile(r"\.(?:jsonl|ndjson|json)(?:\.gz|\.zst)?$|\.parquet$")
"""Endings of files of rollouts."""
CSV_FILE = re.compile(r"\.csv(?:\.gz|\.zst)?$")
IN_FOLDER = re.compile(r"\.(?:jsonl|ndjson)(?:\.gz|\.zst)?$|\.parquet$")
"""Files that are taken from a folder, and .json files that begin with a list of records."""
SHARD = re.compile(r"-\d{3,}-of-\d{3,}$")
CHUNK_BYTES = 16 << 20
BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 64 << 20
"""Of a compressed file, where a few kilobytes can be a line of gigabytes."""
MAX_UNPACKED_RATIO = 200
"""Of a compressed file, once it is longer than two lines may be; that of JSON is seldom over 30."""
MADV_POPULATE_READ = 22
"""Map all pages of a range in one call, not a few with each page fault: a tenth of the time of a selection."""
READ_AHEAD = 1 << 16
"""Bytes read at a time in search of the end of a chunk's last line."""
ARCHIVES = re.compile(r"(?i)\.zip(?!\.(?:gz|zst|csv)$)(?:[._-]?[a-z\d]{0,3}|[._-]?[a-z\d]*[*?\[][*?\[\]a-z\d-]*)$")
"""The end of what names archives: also of a glob, and of what the names of parts have in common."""
FIRST_PART = re.compile(r"\.zip(?:[._-]?(?:a{2,3}|00+|001))?$", re.IGNORECASE)
HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\S+))?")
"""``org/name`` or ``org/name@revision``."""
HUB_URL = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)\w[\w.-]*/\w[\w.-]*(@[^/]+)?(/|$)")
MAX_DEPTH = 500
"""Lists and objects within each other that a record may have; decoders and encoders give up near 1,000."""

Paths = str | Path | Sequence[str | Path]
"""Files, globs, folders or URLs."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One input file."""

    path: str
    source: str
    container: Container
    n_bytes: int
    name: str
    """What outputs call it: the path, and of a file in an archive the archive and the path there."""
    stamp: tuple[int, int, int] | None = None
    """Size, modification time and inode of a local file, to notice changes."""

    @property
    def is_remote(self) -> bool:
        return is_url(self.path)


def _file_name(path: str) -> str:
    """The last part of a path or URL: ``ai2d.jsonl`` of ``zip://x/ai2d.jsonl::https://…``, a file in another."""
    path = without_secrets(path)
    path = next((part for part in path.split("::") if is_url(part)), path)
    return re.split(r"[/\\]", path.rstrip("/"))[-1]


def is_url(path: str) -> bool:
    """Whether fsspec, not the local file system, knows the path."""
    return "://" in path


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path on it."""
    import fsspec

    if not all(HUB_URL.match(part) for part in url.split("::") if part.startswith("hf://")):
        raise ConfigError(f"{url}: expected hf://datasets/ORG/NAME/FILES, or hf://datasets/ORG/NAME@REVISION/FILES")
    try:
        return fsspec.core.url_to_fs(url)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        remedy = "; install mprm with its extra [hub]" if "hf://" in url and isinstance(error, ImportError) else ""
        raise MissingDependencyError(f"{url}: {error}{remedy}") from error


def is_archive(name: str) -> bool:
    """Whether the path, glob or URL names zip archives."""
    return bool(ARCHIVES.search(without_secrets(name))) and "::" not in name and not Path(name).expanduser().is_dir()


def source_name(path: str) -> str:
    """The file's name without folders, endings and shard number: ``ai2d`` of ``x/ai2d-00003-of-00010.parquet``."""
    name = _file_name(path)
    name = DATA_FILE.sub("", CSV_FILE.sub("", name)) or name
    name = SHARD.sub("", name) or name
    return unquote(name)  # as --by-source writes a source that is no file name


def container_of(path: str) -> Container:
    """How the file is packed, from its name."""
    return next((kind for suffix, kind in SUFFIXES.items() if _file_name(path).endswith(suffix)), "plain")


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """What changes when a local file does; None when it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def find_files(paths: Paths) -> list[DataFile]:
    """All files that the paths, globs, folders and URLs name, each once, in canonical order.

    The order is by source, then by path: it does not depend on the order in which the files were named, and so
    neither does anything that mprm makes of them.
    """
    typed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not typed:
        raise InputNotFoundError("no input was named; expected files, globs or folders")
    files: dict[str, DataFile] = {}
    for path in map(str, typed):
        matches = list(_matches(path))
        if not matches:
            kinds = ".jsonl or .json (also .gz, .zst), .parquet or .zip files"
            hint = f". Of a dataset on the hub, say which files: hf://datasets/{path}/…" * bool(
                HUB_NAME.fullmatch(path)
            )
            raise InputNotFoundError(f"{path}: no such file; expected {kinds}{hint}")
        for match, n_bytes, name in matches:
            if any("\ud800" <= letter <= "\udfff" for letter in match):
                raise InputNotFoundError(f"{match!a}: the file's name is not UTF-8; rename it")
            identity = match if is_url(match) else str(Path(match).resolve())
            stamp = None if is_url(match) else stamp_of(match)
            file = DataFile(match, source_name(match), container_of(match), n_bytes, without_secrets(name), stamp)
            # of several names of one file the first in the alphabet counts, not the first that was typed
            files[identity] = min(file, files.get(identity, file), key=lambda file: (file.source, file.path))
    ordered = sorted(files, key=lambda identity: (files[identity].source, re.split(r"[/\\]", identity)))
    return [files[identity] for identity in ordered]


def _matches(path: str) -> Iterator[tuple[str, int, str]]:
    if is_archive(path):
        from mprm.data.archives import archives_of, unpacked  # they are read with this module

        for archive in archives_of(path):
            folder = unpacked([archive])
            for match, n_bytes in _local_matches(str(folder)):
                yield match, n_bytes, f"{archive[0]}::{Path(match).relative_to(folder).as_posix()}"
        return
    for match, n_bytes in remote_matches(path) if is_url(path) else _local_matches(path):
        yield match, n_bytes, match


_tell_once = lru_cache(print)  # a command looks for its inputs more than once


def _local_matches(path: str) -> Iterable[tuple[str, int]]:
    here = Path(path).expanduser()
    if here.is_dir():
        names = (p for p in sorted(here.rglob("*")) if not any(n.startswith(".") for n in p.relative_to(here).parts))
        below = [p for p in names if p.is_file()]
        inside = [str(p) for p in below if _is_data(p.name) or _is_json_list(p)]
        n_zips = sum(bool(FIRST_PART.search(p.name)) for p in below)
        zips = f"{counted(n_zips, 'zip archive')} in it must be named as inputs themselves, such as {path}/*.zip"
        if not inside:
            problem = "the folder holds no .jsonl (also .gz, .zst), .parquet or .json list" + f"; {zips}" * bool(
                n_zips
            )
            raise InputNotFoundError(f"{path}: {problem}")
        if n_zips:
            from mprm.data.output import printable  # it reads files with this module

            _tell_once(printable(f"{path}: {zips}; passed over"), file=sys.stderr)
    else:
        # a name that exists is meant as it stands, even if it holds * or [
        inside = [str(here)] if here.exists() else sorted(glob.glob(str(here), recursive=True))  # noqa: PTH207 - any pattern
    for match in inside:
        if Path(match).is_dir():
            yield from _local_matches(match)
        elif not Path(match).is_file():
            raise InputNotFoundError(f"{match}: is no regular file; it is read twice, so save it to a file first")
        else:
            yield match, Path(match).stat().st_size


def remote_matches(url: str) -> Iterable[tuple[str, int]]:
    """(URL, size) of each file that a URL, of a file, a glob or a folder, names; one on the hub with its commit."""
    from mprm.data.hub import named_errors, pinned_path  # they are read with this module

    with named_errors(url):
        fs, path = filesystem(url)
        path = pinned_path(fs, path)
        infos = fs.glob(path, detail=True).values() if glob.has_magic(path) else [fs.info(path)]
        within = "".join(re.findall("::.*", url))
        for info in infos:
            inside = [info]
            if info["type"] == "directory":
                inside = [
                    one for name, one in fs.find(info["name"], detail=True).items() if _is_data(_file_name(name))
                ]
            for entry in inside:
                match = fs.unstrip_protocol(entry["name"]) + within
                if entry.get("size") is None:
                    raise DataError(f"{match}: the server does not say its size; download it first")
                yield match, int(entry["size"])


def _is_data(name: str) -> bool:
    is_dropped = name == "dropped.jsonl" or name.endswith(".dropped.jsonl")
    return not name.startswith(".") and bool(IN_FOLDER.search(name)) and not is_dropped


def _is_json_list(path: Path) -> bool:
    """Whether the file is a .json file with one list; one of another kind must be named itself."""
    if path.suffix != ".json":
        return False
    with _reading(str(path)), path.open("rb") as handle:
        return handle.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


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
    is_array: bool = False
    """Whether the file is one JSON array instead of JSON lines."""
    key_map: tuple[tuple[str, str], ...] = ()
    """(field, key) of each field that the records call otherwise."""

    @property
    def is_range(self) -> bool:
        """Whether its bytes can be copied without reading lines."""
        return self.container == "plain" and not self.is_array and not self.key_map and not is_url(self.path)

    @property
    def n_bytes(self) -> int:
        """Bytes of the file, for progress; row groups do not say."""
        return 0 if self.container == "parquet" else self.stop - self.start


def chunks_of(file: DataFile) -> list[Chunk]:
    """The chunks of a file of JSON lines or Parquet rows, in order."""
    if file.container == "plain":
        stops = [*range(CHUNK_BYTES, file.n_bytes, CHUNK_BYTES), file.n_bytes]
    elif file.container == "parquet":
        with _reading(file.path), _opened(file.path) as handle:
            stops = list(range(1, _parquet(handle).num_row_groups + 1))
    else:
        stops = [file.n_bytes]
    return [Chunk(file.path, file.container, file.source, *ends) for ends in pairwise([0, *stops])]


def lines_of(chunk: Chunk) -> Iterator[bytes]:
    """Each line that begins in the chunk, with its line end; array items and Parquet rows as JSON lines."""
    if chunk.key_map:
        fields = {key: field for field, key in chunk.key_map}
        yield from (_renamed(line, fields) for line in lines_of(replace(chunk, key_map=())))
        return
    with _reading(chunk.path):
        if chunk.container == "parquet":
            yield from _parquet_lines(chunk)
        elif chunk.is_array:
            yield from _array_lines(chunk)
        elif chunk.is_range and engine.is_worker:
            with mapped(chunk) as data:
                start = range_start(data, chunk.start)
                while start < chunk.stop:
                    end = data.find(b"\n", start) + 1 or len(data)
                    yield data[start:end]
                    start = end
        else:
            yield from _streamed_lines(chunk)


def _renamed(line: bytes, fields: Mapping[str, str]) -> bytes:
    """The record with other names for its fields, and the same values; a line that is no record as it is."""
    try:
        data = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return line
    kept = {key: value for key, value in data.items() if key not in fields.values() or key in fields}
    return msgspec.json.encode({fields.get(key, key): value for key, value in kept.items()}) + b"\n"


@contextmanager
def mapped(chunk: Chunk) -> Iterator[bytes | mmap.mmap]:
    """The chunk's lines at their positions in the file; what lies before and after them may be missing."""
    with _reading(chunk.path), open(chunk.path, "rb", buffering=0) as handle:  # noqa: PTH123 - kept next to mmap
        if chunk.stop == 0:
            yield b""  # an empty file cannot be mapped
            return
        size = os.fstat(handle.fileno()).st_size
        if size < chunk.stop:
            raise DataError(f"{chunk.path}: {CUT_SHORT}")
        # a process dies when it touches a mapped page of a file that was cut short: only a worker may
        if engine.is_worker:
            with mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_READ) as data:
                if sys.platform == "linux":
                    first_page = chunk.start - chunk.start % mmap.PAGESIZE
                    with suppress(OSError):  # before Linux 5.14
                        data.madvise(MADV_POPULATE_READ, first_page, min(chunk.stop, size) - first_page)
                yield data
        else:
            with mmap.mmap(-1, size, access=mmap.ACCESS_COPY) as data:  # takes memory only where it is written to
                _read_lines(handle, chunk, data)
                yield data


CUT_SHORT = "the file became shorter while it was read; run again when it is complete"


def _read_lines(handle: io.FileIO, chunk: Chunk, data: mmap.mmap) -> None:
    """Read the chunk into ``data``, and on to the end of its last line."""
    position = handle.seek(max(chunk.start - 1, 0))
    with memoryview(data) as view:
        while position < chunk.stop or (position < len(data) and data.find(b"\n", chunk.stop - 1, position) < 0):
            end = max(chunk.stop, min(position + READ_AHEAD, len(data)))
            n_bytes = handle.readinto(view[position:end])
            if not n_bytes:
                raise DataError(f"{chunk.path}: {CUT_SHORT}")
            position += n_bytes


def range_start(data: bytes | mmap.mmap, start: int) -> int:
    """First byte of the first line that begins at ``start`` or after it."""
    return 0 if start == 0 else data.find(b"\n", start - 1) + 1 or len(data)


def _streamed_lines(chunk: Chunk) -> Iterator[bytes]:
    with _opened(chunk.path, chunk.container) as handle:
        if chunk.container != "plain":
            for number, line in enumerate(iter(lambda: handle.readline(MAX_LINE_BYTES), b""), start=1):
                is_cut = len(line) == MAX_LINE_BYTES
                if is_cut and line.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"[":  # no array
                    problem = f"the line is over {MAX_LINE_BYTES >> 20} MiB; expected one record a line"
                    raise DataError(f"{chunk.path}:{number}: {problem}. If that is right, unpack the file first")
                yield line + handle.readline() if is_cut else line
            return
        position = chunk.start
        if position:
            handle.seek(position - 1)
            position += len(handle.readline()) - 1
        while position < chunk.stop and (line := handle.readline()):
            position += len(line)
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


def _array_lines(chunk: Chunk) -> Iterator[bytes]:
    """Each item on one line; blank lines before it keep line numbers true where the file has items on lines."""
    with _opened(chunk.path, chunk.container) as handle:
        text = _utf8(handle.read(), chunk.path)
    next_line = 1
    for line, _, item in _items(text):
        if isinstance(item, BadRecord):
            raise DataError(f"{chunk.path}:{line}: {item}. Expected an array of objects")
        yield from repeat(b"\n", line - next_line)
        next_line = max(next_line, line) + 1
        yield re.sub(r"[\r\n]+", " ", item).encode() + b"\n"  # JSON allows no line end inside a string


def _parquet(handle: IO[bytes]) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(handle)


class _Unpacked(io.RawIOBase):
    """Blocks of a packed file; an error once they are so much more than was read of it that it must be a bomb."""

    def __init__(self, blocks: Iterator[bytes], packed: IO[bytes]) -> None:
        self._blocks, self._packed, self._block, self._n_bytes = blocks, packed, b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._block = self._block or next(self._blocks, b"")
        n_bytes = min(len(buffer), len(self._block))
        buffer[:n_bytes], self._block = self._block[:n_bytes], self._block[n_bytes:]
        self._n_bytes += n_bytes
        if self._n_bytes > max(2 * MAX_LINE_BYTES, MAX_UNPACKED_RATIO * self._packed.tell()):
            raise ValueError(f"it unpacks to over {MAX_UNPACKED_RATIO} times its size; if it should, unpack it first")
        return n_bytes


def _zst_blocks(handle: IO[bytes]) -> Iterator[bytes]:
    """Frame after frame; a file that breaks off in a frame is an error, not an end."""
    import zstandard

    packed, frame = b"", None
    while packed := packed or handle.read(4096):  # 4 bytes of it can hold a block of 128 KiB
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        if block := frame.decompress(packed):
            yield block
        packed, frame = frame.unused_data, None if frame.eof else frame
    if frame is not None:
        raise EOFError("the file breaks off in the middle of a frame")


@contextmanager
def _opened(path: str, container: Container = "plain") -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; local files and URLs alike."""
    if is_url(path):
        fs, inner = filesystem(path)  # a file in another is closed with its file system
        handle: IO[bytes] = io.BufferedReader(fs.open(inner, "rb"), BLOCK_BYTES)  # whose lines come ten times as fast
    else:
        handle = open(path, "rb")  # noqa: PTH123, SIM115 - closed below
    with handle:
        if container == "plain":
            yield handle
            return
        blocks = _zst_blocks(handle)
        if container == "gz":
            blocks = iter(partial(gzip.GzipFile(fileobj=handle).read, BLOCK_BYTES), b"")
        with io.BufferedReader(_Unpacked(blocks, handle), BLOCK_BYTES) as unpacked:
            yield unpacked


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn what a broken or vanished file raises into an error that names it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DataError) or getattr(error, "filename", None) not in (None, path):
            raise  # told already, or of the output
        if is_url(path):
            from mprm.data.hub import named_errors

            with named_errors(path):
                raise
        packages = {"zstandard", "zlib", "pyarrow"}  # each raises its own base classes
        is_known = isinstance(error, OSError | EOFError | ValueError | RuntimeError)
        if not is_known and type(error).__module__.split(".")[0] not in packages:
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error


def is_blank(line: bytes) -> bool:
    """Whether the line holds no record at all."""
    return not line.strip(b" \t\r\n")


def is_utf8(line: bytes) -> bool:
    """Whether every byte of the line is, also in fields that a typed decoder skips."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


_SIGNS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
"""Strings and brackets."""


def is_deep(line: bytes) -> bool:
    """Whether lists and objects lie more than `MAX_DEPTH` deep within each other."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    return any(depth > MAX_DEPTH for depth, _ in _depths(line))


def _depths(line: bytes) -> Iterator[tuple[int, int]]:
    """(depth after it, end) of each bracket that is in no string."""
    depth = 0
    for sign in _SIGNS.finditer(line):
        if sign[0] in b"[]{}":
            depth += 1 if sign[0] in b"[{" else -1
            yield depth, sign.end()


def decode_record(line: bytes) -> dict[str, Any] | BadRecord:
    """The line's JSON object, or what is wrong with it."""
    if is_deep(line):
        return BadRecord(f"the value is nested more than {MAX_DEPTH} deep", "not_json")
    try:
        data = msgspec.json.decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        data = _decode_again(line)
    if isinstance(data, dict | BadRecord):
        return data
    return BadRecord(f"found {shown(data)}; expected a JSON object", "not_json")


def _decode_again(line: bytes) -> Any:
    """The line decoded with the standard library, which takes NaN, or what is wrong with it."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "; the file looks like UTF-16, save it as UTF-8" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        return BadRecord(f"byte {error.start} (0x{line[error.start]:02x}) is not UTF-8{hint}", "not_utf8")
    if text.startswith("\ufeff"):
        return BadRecord("the line begins with a byte-order mark; save the file as UTF-8 without it", "not_json")
    try:
        data = json.loads(text, parse_int=_whole)
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return BadRecord("the text holds half of a surrogate pair (\\ud800 to \\udfff)", "not_utf8")
    except RecursionError:
        return BadRecord("the value is nested too deeply", "not_json")
    except ValueError as error:
        return BadRecord(f"not JSON: {error}", "not_json")
    return data


def _whole(digits: str) -> int | float:
    """The whole number; infinite where it has more digits than Python reads (4,300), as for any other reader."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class Record(NamedTuple):
    """A record and where it was read."""

    file: DataFile
    line: int
    """Line of the file that it begins on, from 1; row of a Parquet file."""
    number: int
    """Number of the record in its file, from 1; the line in JSON lines."""
    data: Mapping[str, Any] | BadRecord
    """The decoded object, or what is wrong with it."""
    key: str | None = None
    """The key it has, where the file is one JSON object of records."""

    @property
    def location(self) -> str:
        return location(self.file.name, self.line)


def read_records(file: DataFile) -> Iterator[Record]:
    """All records of a file, bad ones too: JSON lines, one JSON array, one object of records, CSV, Parquet."""
    lines = (line for chunk in chunks_of(file) for line in lines_of(chunk))
    if file.container == "parquet":
        for number, raw in enumerate(lines, start=1):
            yield Record(file, number, number, decode_record(raw))
        return
    data = b"".join(lines)
    if CSV_FILE.search(_file_name(file.path)):
        for number, (line, row) in enumerate(_csv_rows(_utf8(data, file.path)), start=1):
            yield Record(file, line, number, row)
    elif _is_document(data):
        for number, (line, key, item) in enumerate(_items(_utf8(data, file.path)), start=1):
            yield Record(file, line, number, decode_record(item.encode()) if isinstance(item, str) else item, key)
    else:
        for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
            if not is_blank(raw):
                yield Record(file, number, number, decode_record(raw))


def _utf8(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8") from error


def _is_document(data: bytes) -> bool:
    """Whether the file is one list of records, or one object with a record under each key."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if start[:1] == b"[":
        return True
    try:
        items = msgspec.json.decode(start, type=dict[str, dict[str, msgspec.Raw]])
    except msgspec.ValidationError:
        return False  # one record
    except (ValueError, RecursionError, msgspec.MsgspecError):
        # an object over several lines is a document, if a broken one
        return start[:1] == b"{" and start[1:].lstrip(b" \t")[:1] in (b"\n", b"\r")
    return bool(items) and bool(set.intersection(*(set(item) for item in items.values())))  # records have like fields


_SPACE = re.compile(r"[ \t\r\n]*")


def _items(text: str) -> Iterator[tuple[int, str | None, str | BadRecord]]:
    """(line, key, JSON text) of each value of one array or object; a `BadRecord` last where it breaks off."""
    decode = json.JSONDecoder(parse_int=_whole).raw_decode

    def skip_space(position: int) -> int:
        return cast(re.Match[str], _SPACE.match(text, position)).end()

    def after(sign: str, position: int) -> int:
        position = skip_space(position)
        if not text.startswith(sign, position):
            raise json.JSONDecodeError(f"Expecting {sign!r}", text, position)
        return skip_space(position + 1)

    start = skip_space(0)
    closing = {"[": "]", "{": "}"}.get(text[start : start + 1])
    position = skip_space(start + 1)
    line, counted = 1, 0
    try:
        if closing is None:
            raise json.JSONDecodeError("Expecting a list or an object", text, start)
        while not text.startswith(closing, position):
            line, counted = line + text.count("\n", counted, position), position
            key = None
            if closing == "}":
                key, position = decode(text, position)
                position = after(":", position)
            try:
                end = decode(text, position)[1]
            except RecursionError:  # a bad record, whose end is found nevertheless
                rest = text[position:].encode("utf-8", "surrogatepass")
                closed = next((end for depth, end in _depths(rest) if depth == 0), len(rest))
                end = position + len(rest[:closed].decode("utf-8", "surrogatepass"))
            item, position = text[position:end], skip_space(end)
            if not text.startswith(closing, position):
                position = after(",", position)
                if text.startswith(closing, position):
                    raise json.JSONDecodeError("Expecting value", text, position)
            yield line, key, item
        end = skip_space(position + 1)
        if end < len(text):
            raise json.JSONDecodeError("Expecting nothing after the last record", text, end)
    except json.JSONDecodeError as error:
        yield error.lineno, None, BadRecord(f"not JSON: {error}")


def _csv_list(cell: str) -> Any:
    if is_deep(cell.encode("utf-8", "surrogatepass")):
        raise ValueError(f"the list is nested more than {MAX_DEPTH} deep")
    return json.loads(cell, parse_int=_whole)


def _csv_rows(text: str) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
    """(line, row) of each row: empty cells are absent, cells that begin with ``[`` are JSON lists."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    line = 2
    try:
        for row in reader:
            data: dict[str, Any] | BadRecord
            try:
                data = {
                    name: _csv_list(value) if value.startswith("[") and value.endswith("]") else value
                    for name, value in row.items()
                    if name is not None and value
                }
            except ValueError as error:
                data = BadRecord(f"not CSV: {error}")
            extra = row.get(None)
            yield line, BadRecord(f"the row has {len(extra)} cell(s) too many") if extra else data
            line = reader.line_num + 1
    except csv.Error as error:
        yield line, BadRecord(f"not CSV: {error}")

"""Cutting files into pieces of work, and reading the lines of a piece.

A plain file is cut at byte ranges: a line belongs to the range in which it begins, however far it
reaches. A compressed file is one piece; a Parquet file is one piece a row group, its rows turned
into JSON lines, so that everything after this file sees lines only.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import msgspec

from mprm.errors import DataError
from mprm.rollouts.files import Container, CorpusFile, is_url

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

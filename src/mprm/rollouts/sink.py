"""Where converted or compressed records go: JSON lines, packed or not, or Parquet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from mprm.rollouts.files import Container


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

        from mprm.rollouts.frames import arrow_schema

        self._writer = pq.ParquetWriter(path, arrow_schema(), compression="zstd")

    def write(self, data: bytes) -> None:
        if not data:
            return
        import pyarrow as pa

        with pa.ipc.open_stream(data) as stream:
            self._writer.write_table(stream.read_all())

    def close(self) -> None:
        self._writer.close()

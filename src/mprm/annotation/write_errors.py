"""Errors of writing that say what was being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the file system that names no file, as a full disk's does not, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise

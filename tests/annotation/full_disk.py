"""A disk that has no more room."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """Writing beyond so many bytes of a file fails, as on a full disk, with an error that names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

"""Temporary files and folders that go with the object that holds them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO


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

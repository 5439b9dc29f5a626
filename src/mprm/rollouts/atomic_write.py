"""Writing files so that a half-written one never stands under its final name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mprm.errors import ConfigError, OutputExistsError
from mprm.rollouts.files import filesystem, is_url


def refuse_existing(path: str, *, force: bool) -> None:
    """Stop when the output is there already and must not be replaced."""
    if is_url(path):
        fs, inner = filesystem(path)
        exists = not force and fs.exists(inner)
    else:
        final = Path(path).expanduser()
        if final.exists() and not final.is_file():
            raise ConfigError(f"{path} is there already and is no regular file; choose another name")
        refuse_no_folder(str(final.parent))
        exists = not force and final.exists()
    if exists:
        raise OutputExistsError(
            f"{path} exists already; replace it with --force (in Python: force=True), or choose another name"
        )


def refuse_no_folder(path: str) -> None:
    """Stop when a local folder is not there and cannot be made, before work is done whose outcome would be lost."""
    if is_url(path):
        return
    folder = Path(path).expanduser()
    nearest = next((one for one in (folder, *folder.parents) if one.exists()), Path())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file; {path} cannot be a folder for outputs, choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"nothing can be written into {nearest}; choose another folder for outputs")


@contextmanager
def atomic_write(path: str) -> Iterator[Path]:
    """A temporary file that becomes ``path`` when the block ends well, and is removed when it does not.

    It lies beside the final file, so that the last move is one rename; for a URL it lies on this
    machine and is uploaded at the end.
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

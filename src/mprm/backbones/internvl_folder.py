"""The folder of a converted checkpoint: it appears whole or not at all, and replaces only its like."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mprm import __version__
from mprm.errors import ConfigError, InputNotFoundError, OutputExistsError

MARKER = "mprm_conversion.json"
"""Names every file that the conversion wrote; a folder with others in it is never replaced."""
SHOWN = 5
"""Files that a message names."""


def refuse_paths(src: Path, dst: Path, *, force: bool) -> None:
    """Stop before anything is read where input or output cannot be what was meant."""
    if not src.is_dir():
        raise InputNotFoundError(
            f"{src} is no folder; SRC is a downloaded checkpoint:"
            " hf download OpenGVLab/InternVL2_5-8B --local-dir InternVL2_5-8B"
        )
    inside, outside = src.resolve(), dst.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise ConfigError(f"{dst} and the source {src} lie in one another; choose another folder")
    if not dst.exists():
        return
    if not force:
        raise OutputExistsError(
            f"{dst} exists already; replace it with --force (in Python: force=True), or choose another name"
        )
    _refuse_strangers(dst)


def _refuse_strangers(dst: Path) -> None:
    """Stop unless the folder is empty, or holds what a conversion wrote and nothing else."""
    if not dst.is_dir():
        raise ConfigError(f"{dst} is no folder and is not replaced; choose another name")
    found = {path.name for path in dst.iterdir()}
    if not found:
        return
    written = _marked(dst)
    if written is None:
        raise ConfigError(
            f"{dst} is no converted checkpoint (no {MARKER} names its files) and is not replaced;"
            " choose another name, or remove it yourself"
        )
    strangers = sorted(found - written)
    if strangers:
        more = f" and {len(strangers) - SHOWN:,} more" if len(strangers) > SHOWN else ""
        raise ConfigError(
            f"{dst} holds what mprm convert-internvl did not write ({', '.join(strangers[:SHOWN])}{more})"
            " and is not replaced; choose another name, or remove it yourself"
        )


def _marked(dst: Path) -> set[str] | None:
    """The files that the folder's marker names; None where there is no such marker."""
    try:
        return {MARKER, *map(str, json.loads((dst / MARKER).read_text(encoding="utf-8"))["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_marker(folder: Path) -> None:
    """Write down that a conversion made the folder's files."""
    marker = {
        "mprm": __version__,
        "command": "convert-internvl",
        "files": sorted(path.name for path in folder.iterdir()),
    }
    with naming(folder / MARKER):
        (folder / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file when it cannot be written, as on a full device; the system's errors often do not."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    except Exception as error:
        # safetensors and tokenizers tell of the system's errors in their own ways
        if type(error) not in (SafetensorError, Exception):
            raise
        raise OSError(errno.EIO, str(error), str(path)) from error


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A folder beside ``final`` that takes its place when the block ends well, and is removed when it does not."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent) as outer:
        folder = Path(outer) / "new"
        folder.mkdir()
        try:
            yield folder
        except OSError as error:
            if error.filename is not None and Path(error.filename).parent == folder:
                error.filename = str(final / Path(error.filename).name)  # the temporary folder is gone in a moment
            raise
        old = Path(outer) / "old"
        if final.exists():
            final.replace(old)
        try:
            folder.replace(final)
        except OSError:
            if old.exists():
                old.replace(final)
            raise

"""From what the user typed to the files of a corpus: globs, folders, URLs, compression, sources."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from mprm.errors import InputNotFoundError, MissingDependencyError

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

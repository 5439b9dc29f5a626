"""The manifest beside every output: what made it, out of what, and what was left out."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from mprm import __version__
from mprm.engines.engine import Engine
from mprm.errors import DataError
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.files import is_url, stamp_of
from mprm.rollouts.refuse_inputs import refuse_inputs
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX


def hash_file(path: str) -> str:
    """XXH3-128 of a local file, as ``xxhsum -H2`` prints it."""
    with open(path, "rb") as handle:  # noqa: PTH123 - kept next to mmap
        if os.fstat(handle.fileno()).st_size == 0:
            return xxhash.xxh3_128_hexdigest(b"")  # an empty file cannot be mapped
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return xxhash.xxh3_128_hexdigest(data)  # mapped: not copied before it is hashed


def hash_files(paths: list[str]) -> dict[str, str]:
    """XXH3-128 of some local files."""
    return {path: hash_file(path) for path in paths}


class InputHashes:
    """The hashes of a corpus's local files; the engine works on them while other things are done."""

    BATCHES = 4
    """Few, so that an engine with workers takes all of them at once."""

    def __init__(self, corpus: Corpus, engine: Engine) -> None:
        self._corpus = corpus
        local = [file.path for file in corpus.files if not is_url(file.path)]
        batches = [local[number :: self.BATCHES] for number in range(self.BATCHES)]
        self._hashing: Iterator[dict[str, str]] = engine.map(hash_files, batches)
        self._found: dict[str, str] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """Path, size, hash and format of every input file; no hash for files behind URLs."""
        if self._found is None:
            self._found = {path: digest for batch in self._hashing for path, digest in batch.items()}
        return [
            {
                "path": "(in memory)" if self._corpus.is_frame else file.path,
                "n_bytes": file.n_bytes,
                "xxh3_128": self._found.get(file.path),
                "format": self._corpus.formats[file.path].name,
                "source": file.source,
            }
            for file in self._corpus.files
        ]


def refuse_input_as_output(corpus: Corpus, outs: list[str]) -> None:
    """Stop before an input is replaced by what is made of it."""
    refuse_inputs([file.path for file in corpus.files], outs)


def refuse_changed(corpus: Corpus) -> None:
    """Stop when a local input is not as it was when the corpus was opened."""
    for file in corpus.files:
        if not is_url(file.path) and file.stamp != stamp_of(file.path):
            raise DataError(f"{file.path}: the file changed while it was read; run again")


def write_manifest(
    out: str,
    *,
    command: str,
    config: Mapping[str, Any],
    inputs: list[dict[str, Any]],
    sources: Mapping[str, Any],
    output: Mapping[str, Any],
) -> str:
    """Write the manifest of ``out`` beside it; returns where.

    It holds no time and no place, so that the same run gives the same bytes.
    """
    manifest = {
        "mprm": __version__,
        "command": command,
        "config": config,
        "inputs": inputs,
        "sources": sources,
        "output": output,
    }
    beside = out + MANIFEST_SUFFIX
    with atomic_write(beside) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return beside

"""The manifest beside every output: what made it, out of what, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mprm import __version__
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX


def input_entries(corpus: Corpus, hashes: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Path, size, hash and format of every input file."""
    return [
        {
            "path": file.path,
            "n_bytes": file.n_bytes,
            "xxh3_128": hashes.get(file.path),
            "format": corpus.formats[file.path].name,
            "source": file.source,
        }
        for file in corpus.files
    ]


def write_manifest(
    path: str,
    *,
    command: str,
    config: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]],
    sources: Mapping[str, Mapping[str, Any]],
    output: Mapping[str, Any],
) -> str:
    """Write the manifest of ``path`` beside it; returns where. It holds no time, so the same run gives the same bytes."""
    manifest = {
        "mprm": __version__,
        "command": command,
        "config": config,
        "inputs": inputs,
        "sources": sources,
        "output": output,
    }
    beside = path + MANIFEST_SUFFIX
    with atomic_write(beside) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return beside

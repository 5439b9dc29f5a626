"""Which weights a folder holds, told apart without reading all of them."""

from __future__ import annotations

from pathlib import Path

import xxhash

SAMPLE = 1 << 20


def fingerprint_of(folder: str | Path) -> str:
    """XXH3-128 of the checkpoint's configuration and of its weights' sizes, headers, first and last megabytes.

    Training moves every weight, so that the sample changes; gigabytes need not be read.
    """
    digest = xxhash.xxh3_128()
    folder = Path(folder)
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json", folder / "mprm.json"]):
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as handle:
            digest.update(handle.read(SAMPLE))
            handle.seek(max(0, size - SAMPLE))
            digest.update(handle.read(SAMPLE))
    return digest.hexdigest()

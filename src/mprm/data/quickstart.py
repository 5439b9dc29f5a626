"""``mprm quickstart``: a small annotated corpus with its images, to try every stage on.

It is an excerpt of the corpus of ``mprm-lab``, a small visual world whose problems are solved by a small policy: 400
rollouts of 100 questions from ten sources, every step with 16 continuations.
"""

from __future__ import annotations

import io
import tarfile
from importlib.resources import files
from pathlib import Path

import zstandard

from mprm.data.output import atomic_write, check_overwrite

ARCHIVE = "quickstart.tar.zst"
"""Written by ``mprm-lab pack``."""


def quickstart(folder: str | Path = ".", *, force: bool = False) -> list[Path]:
    """Paths of the annotation files, after writing ``annotations/*.jsonl`` and ``images/`` into the folder."""
    root = Path(folder).expanduser()
    packed = (files("mprm.data") / ARCHIVE).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(packed))) as bundle:
        contents = {member.name: bundle.extractfile(member) for member in bundle.getmembers()}
        for name in contents:
            check_overwrite(str(root / name), force=force)
        for name in sorted(contents, reverse=True):  # images first: records are the sign that all is there
            with atomic_write(str(root / name), sync=False) as temporary:
                temporary.write_bytes(contents[name].read())  # type: ignore[union-attr]
    return [root / name for name in sorted(contents) if name.endswith(".jsonl")]

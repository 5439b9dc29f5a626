"""What a run with a policy writes: the output, and beside it the list of questions that failed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mprm.annotation.given_questions import is_in_memory
from mprm.annotation.journal import SUFFIX, Key
from mprm.errors import ConfigError
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.files import corpus_files, is_url
from mprm.rollouts.refuse_inputs import refuse_inputs
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX

PACKED = re.compile(r"\.(?:gz|zst|parquet)$")
MOST_NAME_BYTES = 220
"""Of a file's name; file systems take 255, and other files are named after it."""


def refuse_output(out: str, given: Any, *, force: bool) -> None:
    """Stop when nothing can be written to ``out``: to be called before a policy is loaded, too."""
    if is_url(out):
        raise ConfigError(f"{out}: answers are saved as they come, on this machine; name a local file")
    if PACKED.search(out) or out.endswith(("/", os.sep)):
        raise ConfigError(f"{out}: answers are written as plain JSON lines; name a file such as raw.jsonl")
    made = [out + SUFFIX, failed_path(out), out + MANIFEST_SUFFIX]
    if len(Path(out).name.encode()) > MOST_NAME_BYTES:
        raise ConfigError(f"{out}: the name is too long for the files beside it; take a shorter one")
    for path in made:
        if Path(path).expanduser().is_dir():
            raise ConfigError(f"{path} is a folder, and would be a file beside the output; choose another output")
    if given is not None and not is_in_memory(given):
        refuse_inputs([file.path for file in corpus_files(given)], [out, *made])
    refuse_existing(out, force=force)


def commonest(reasons: Mapping[Key, list[str]]) -> str:
    """The reason that most questions failed for."""
    [(reason, n)] = Counter(reason for some in reasons.values() for reason in set(some)).most_common(1)
    return f"{n:,} of them with: {reason}"


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as lines:
            first = msgspec.json.decode(lines.readline())
    except (OSError, ValueError, msgspec.MsgspecError):
        return False
    return isinstance(first, dict) and first.keys() == {"id", "source", "errors"}


def failed_path(out: str) -> str:
    """Where it lies."""
    return out + ".failed"


def write_failed(out: str, reasons: Mapping[Key, list[str]]) -> str | None:
    """List the questions that failed; a list of an earlier run goes when there are none."""
    path = failed_path(out)
    if not reasons:
        if _is_ours(Path(path).expanduser()):
            Path(path).expanduser().unlink()
        return None
    with atomic_write(path) as temporary, temporary.open("wb") as lines:
        for (source, id_), errors in reasons.items():
            lines.write(msgspec.json.encode({"id": id_, "source": source, "errors": errors}) + b"\n")
    return path

"""What a run with a policy writes: the output, and beside it the list of questions that failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mprm.annotation.given_questions import is_in_memory
from mprm.annotation.journal import SUFFIX, Key
from mprm.errors import ConfigError
from mprm.rollouts.atomic_write import atomic_write, refuse_existing
from mprm.rollouts.files import DATA_FILE, corpus_files, is_url
from mprm.rollouts.refuse_inputs import refuse_inputs
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX


def refuse_output(out: str, given: Any, *, force: bool) -> None:
    """Stop when nothing can be written to ``out``: to be called before a policy is loaded, too."""
    if is_url(out):
        raise ConfigError(f"{out}: answers are saved as they come, on this machine; name a local file")
    if given is not None and not is_in_memory(given):
        made = [out, out + SUFFIX, failed_path(out), out + MANIFEST_SUFFIX]
        refuse_inputs([file.path for file in corpus_files(given)], made)
    refuse_existing(out, force=force)


def failed_path(out: str) -> str:
    """Where it lies."""
    return DATA_FILE.sub("", out) + ".failed.jsonl"


def write_failed(out: str, reasons: Mapping[Key, list[str]]) -> str | None:
    """List the questions that failed; a list of an earlier run goes when there are none."""
    path = failed_path(out)
    if not reasons:
        Path(path).expanduser().unlink(missing_ok=True)
        return None
    with atomic_write(path) as temporary, temporary.open("wb") as lines:
        for (source, id_), errors in reasons.items():
            lines.write(msgspec.json.encode({"id": id_, "source": source, "errors": errors}) + b"\n")
    return path

"""The files that an evaluation writes, and whether they can be written."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from mprm.errors import ConfigError
from mprm.rollouts.atomic_write import refuse_existing
from mprm.rollouts.files import is_url
from mprm.rollouts.refuse_inputs import refuse_inputs
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX

OUTPUTS = ("scores.jsonl", "metrics.json", "metrics.md")
"""The first is only written when a model is scored."""


def output_path(out: str | Path, name: str) -> str:
    """A file of the output folder, which may be a URL."""
    return f"{str(out).rstrip('/')}/{name}"


def refuse_outputs(out: str | Path, *, inputs: Sequence[str | Path], has_scorer: bool, force: bool) -> None:
    """Stop when an output would replace an input, or another file without ``force``, or cannot be written."""
    outputs = [output_path(out, name) for name in (OUTPUTS if has_scorer else OUTPUTS[1:])]
    refuse_inputs(inputs, [*outputs, *(output + MANIFEST_SUFFIX for output in outputs)])
    if not is_url(str(out)):
        _refuse_no_folder(Path(out))
    for output in outputs:
        refuse_existing(output, force=force)


def _refuse_no_folder(out: Path) -> None:
    """Stop when the folder is a file, or when no file can be made in it or where it would be made."""
    try:
        folder = out.expanduser()
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise ConfigError(f"--out {out}: {folder} is a file; expected a folder")
        tempfile.TemporaryFile(dir=folder).close()  # tried, as permissions do not tell all
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written ({error}); choose another folder") from error

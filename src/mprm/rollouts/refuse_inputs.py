"""Keeping a command from replacing what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mprm.errors import ConfigError
from mprm.rollouts.files import is_url


def refuse_inputs(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> None:
    """Stop when an output is one of the inputs, whatever ``force`` says."""
    read = {_identity(path) for path in inputs}
    for out in outputs:
        if _identity(out) in read:
            raise ConfigError(f"{out} would be replaced, and is one of the inputs; choose another output")


def _identity(path: str | Path) -> str:
    """The same text for every way to name a local file."""
    local = str(path).removeprefix("file://")
    return local if is_url(local) else str(Path(local).expanduser().resolve())

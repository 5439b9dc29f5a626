"""The folder of a reranking: what it will hold, and whether it can."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mprm.annotation.journal import SUFFIX
from mprm.errors import ConfigError, OutputExistsError
from mprm.rollouts.atomic_write import refuse_existing
from mprm.rollouts.files import corpus_files, is_url
from mprm.rollouts.refuse_inputs import refuse_inputs
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX

SCORES = "scores.jsonl"
"""Written where a model scores."""
RESULTS = (
    *("chosen.jsonl", "metrics.md", "best_of_n.svg", "best_of_n.png"),
    *("metrics.json", "metrics.json" + MANIFEST_SUFFIX),
)
"""Written always, but for the figures, which need an extra."""


def output_folder(out: str | Path) -> Path:
    """The folder that was named."""
    if is_url(str(out)):
        raise ConfigError(f"{out}: scores are saved as they come, on this machine; name a local folder")
    return Path(out).expanduser()


def refuse_outputs(
    folder: Path, candidates: Any, scores: str | Path | None, *, saves_scores: bool, force: bool
) -> None:
    """Stop when an output would replace an input, whatever ``force`` says, or anything else without it."""
    inputs = [file.path for file in corpus_files(candidates)]
    saved = folder / SCORES
    names = [*RESULTS, SCORES, SCORES + SUFFIX] if saves_scores else RESULTS
    refuse_inputs(inputs if scores is None else [*inputs, scores], [folder / name for name in names])
    if saves_scores and saved.exists() and not force:
        raise OutputExistsError(
            f"{saved} holds scores already; use them with --scores {saved}, or score again with --force"
        )
    for name in names:
        refuse_existing(str(folder / name), force=force or name == SCORES + SUFFIX)


def make_folder(folder: Path) -> None:
    """Make the folder where it is not there; stop when nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror
        raise ConfigError(f"{folder}: nothing can be written there ({reason}); choose another --out") from error

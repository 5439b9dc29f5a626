"""How the MC scores of steps are spread: a second pass over the text, as label counts hold only their sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.engines.engine import Engine
from mprm.errors import DataError
from mprm.rollouts.chunks import Chunk, lines_of
from mprm.rollouts.format import Format
from mprm.rollouts.formats import FORMATS
from mprm.rollouts.read import read_line
from mprm.scores.count_labels import FAST
from mprm.scores.label_counts import ROLLOUT, LabelCounts, Part

N_PARTS = 16
"""Bins above 0, each of a sixteenth: with 16 continuations a step, a bin is one number of successes."""
ABSENT = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class ScoresTask:
    """A chunk, and what is known of its lines."""

    chunk: Chunk
    sources: bytes
    """The source's number of each line, as uint32; `ABSENT` for lines without a rollout."""


def step_score_counts(counts: LabelCounts, engine: Engine) -> NDArray[np.int64]:
    """Shape (sources, 17): steps whose score is 0, and those in (0, 1/16], (1/16, 2/16] and so on."""
    n_bins = N_PARTS + 1
    total = np.zeros((len(counts.sources), n_bins), np.int64)
    for found in engine.map(_count, (ScoresTask(part.chunk, _sources(counts, part)) for part in counts.parts)):
        for source, row in found.items():
            total[source] += np.frombuffer(row, np.int64)
    return total


def _sources(counts: LabelCounts, part: Part) -> bytes:
    rows = counts.rows[part.first_row : part.first_row + part.n_rows]
    return np.where(rows["kind"] == ROLLOUT, rows["source"], ABSENT).astype(np.uint32).tobytes()


def _count(task: ScoresTask) -> dict[int, bytes]:
    sources = np.frombuffer(task.sources, np.uint32)
    scores: dict[int, list[float]] = {}
    scores_of = _fast_scores if task.chunk.format in FAST else _any_scores
    try:
        for source, line in zip(sources.tolist(), lines_of(task.chunk), strict=True):
            if source != ABSENT:
                scores.setdefault(source, []).extend(scores_of(line, FORMATS[task.chunk.format]))
    except ValueError as error:
        raise DataError(f"{task.chunk.path}: the file changed while it was read; run again") from error
    return {source: np.bincount(_bin(values), minlength=N_PARTS + 1).tobytes() for source, values in scores.items()}


def _bin(scores: list[float]) -> NDArray[np.int64]:
    # rounded first: 0.0625 and what else k / 16 may have been written as stay in the bin that they end
    return np.ceil(np.round(np.array(scores) * N_PARTS, 6)).astype(np.int64)


def _fast_scores(line: bytes, fmt: Format) -> list[float]:
    try:
        return [step.score for step in _decoder().decode(line).steps_with_score]
    except msgspec.MsgspecError:  # a good record, written in an unusual way
        return _any_scores(line, fmt)


def _any_scores(line: bytes, fmt: Format) -> list[float]:
    return [score for rollout in read_line(line, fmt, None, _ignore) for score in rollout.scores]


class _Step(msgspec.Struct, gc=False):
    score: float


class _Record(msgspec.Struct, gc=False):
    steps_with_score: list[_Step]


@lru_cache
def _decoder() -> msgspec.json.Decoder[_Record]:
    """Decodes the scores alone: the record was judged when its labels were counted."""
    return msgspec.json.Decoder(_Record)


def _ignore(_kind: str, _text: str) -> Any:
    pass

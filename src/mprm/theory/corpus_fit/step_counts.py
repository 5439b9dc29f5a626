"""The counts behind every step's score, of a whole corpus; one pass over its text.

Scores of k/N take few values, so a step is kept as the number of its kind, (score, N). Whatever the fit needs
is then a look-up in a small table.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.engines.engine import Engine
from mprm.errors import DataError
from mprm.rollouts.chunks import Chunk, lines_of
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.dropped import Dropped
from mprm.rollouts.formats import FORMATS
from mprm.rollouts.problem import Problems
from mprm.rollouts.read import read_line
from mprm.rollouts.rollout import Count, Score
from mprm.rollouts.temporary import temporary_file
from mprm.scores.count_labels import FAST, Counted, CountTask, count_labels, count_tasks
from mprm.scores.label_counts import ROLLOUT, ROW_TYPE, LabelCounts, Rows, gather_counts

Codes = NDArray[np.uint32]

Kind = tuple[float, int | None]
"""A step's score, and how many continuations were sampled; None where the file does not say."""

MOST_KINDS = 1 << 20


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """The steps of a chunk's good rollouts."""

    counted: Counted
    kinds: list[Kind]
    codes: bytes
    """The number of each step's kind, uint32, in the order of the rows."""


class _FastStep(msgspec.Struct, gc=False):
    score: Score
    num_mc_correct: Count | None = None
    num_mc_total: Count | None = None


class _FastRecord(msgspec.Struct, gc=False):
    steps_with_score: list[_FastStep]


_decode = msgspec.json.Decoder(_FastRecord).decode


class _Numbers(dict[Kind, int]):
    """A number for each kind, given when it is first asked for."""

    def __missing__(self, kind: Kind) -> int:
        number = self[kind] = len(self)
        return number


def count_steps(task: CountTask) -> CountedSteps:
    """Count the labels of each rollout in the chunk, and tell each step's kind."""
    counted = count_labels(task)
    numbers, codes = _Numbers(), array("I")
    # a row a line; a count that stopped at a bad record has fewer, and its error is raised soon
    for kind, line in zip(np.frombuffer(counted.rows, ROW_TYPE)["kind"].tolist(), lines_of(task.chunk), strict=False):
        if kind == ROLLOUT:
            codes.extend([numbers[step] for step in _steps(line, task)])
    return CountedSteps(counted, list(numbers), codes.tobytes())


def _steps(line: bytes, task: CountTask) -> list[Kind]:
    """The kind of each step of a good record."""
    if task.chunk.format in FAST:
        try:
            return [(step.score, step.num_mc_total) for step in _decode(line).steps_with_score]
        except msgspec.MsgspecError:
            pass  # good all the same, such as one with a count that is no number
    (rollout,) = read_line(line, FORMATS[task.chunk.format], task.judgement, Problems())
    return [(step.score, step.n_total) for step in rollout.steps]


class StepCounts:
    """Label counts of each rollout and the kind of each step; owns the temporary file that the kinds lie in."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self.labels = LabelCounts()
        self._numbers = _Numbers()
        self._file = temporary_file(self)
        self._n_steps = 0

    def add(self, part: CountedSteps) -> None:
        """Append a chunk's steps."""
        renumber = np.array([self._numbers[kind] for kind in part.kinds], np.uint32)
        if len(self._numbers) > MOST_KINDS:
            raise DataError(
                f"the scores take more than {MOST_KINDS:,} values: they are no shares k/N of continuations,"
                " and the Beta-Binomial model says nothing of them"
            )
        codes = np.frombuffer(part.codes, np.uint32)
        self._file.write((renumber[codes] if len(renumber) else codes).tobytes())
        self._n_steps += len(codes)

    def finish(self, labels: LabelCounts) -> None:
        """All chunks are there, and so are the rollouts' label counts."""
        self.labels, self.kinds = labels, list(self._numbers)
        self._file.flush()

    def blocks(self) -> Iterator[tuple[int, Rows, Codes]]:
        """(number of the first row, rows, codes of their steps), some at a time."""
        place = 0
        codes = (
            np.memmap(self._file, np.uint32, "r", shape=(self._n_steps,)) if self._n_steps else np.empty(0, np.uint32)
        )
        for start, rows in self.labels.blocks():
            end = place + int(rows["n_steps"].sum(dtype=np.int64))
            yield start, rows, np.asarray(codes[place:end])
            place = end

    def histogram(self, is_kept: Callable[[int, int], NDArray[np.bool_]] | None = None) -> NDArray[np.int64]:
        """How many steps of each source are of each kind, of all rollouts or of some; shape (sources, kinds)."""
        found = np.zeros((len(self.labels.sources), len(self.kinds)), np.int64)
        for start, rows, codes in self.blocks():
            place = rows["source"].astype(np.int64)
            if is_kept is not None:
                place = np.where(is_kept(start, start + len(rows)), place, -1)
            place = np.repeat(place, rows["n_steps"])
            kept = place >= 0
            flat = np.bincount(place[kept] * len(self.kinds) + codes[kept], minlength=found.size)
            found += flat.reshape(found.shape)
        return found

    def where(self, kind: int) -> str:
        """File and line of the first rollout with a step of the kind."""
        for start, rows, codes in self.blocks():
            steps = np.flatnonzero(codes == kind)
            if len(steps):
                row = start + int(np.searchsorted(np.cumsum(rows["n_steps"], dtype=np.int64), steps[0], "right"))
                part = next(part for part in self.labels.parts if 0 <= row - part.first_row < part.n_rows)
                return f"{part.chunk.path}:{part.first_line + row - part.first_row}"
        raise ValueError(f"no step is of kind {kind}")

    def by_rollout(self, values: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float64]]]:
        """(source, sum over its steps) of each rollout, some at a time.

        Parameters
        ----------
        values : shape (sources, kinds, any)
            What a step of each source and kind adds.
        """
        for _, rows, codes in self.blocks():
            rows = rows[rows["kind"] == ROLLOUT]
            if not len(rows):
                continue
            lengths = rows["n_steps"].astype(np.int64)
            of_step = values[np.repeat(rows["source"], lengths), codes]
            yield rows["source"], np.add.reduceat(of_step, np.cumsum(lengths) - lengths, axis=0)


def count_corpus_steps(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float = 0.0,
    on_bad: Callable[[Dropped], Any] | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> StepCounts:
    """Read the corpus once; see `mprm.scores.label_counts.count_corpus`."""
    found = StepCounts()
    parts = engine.map(count_steps, count_tasks(corpus, tau=tau, stop_at_bad=on_bad is None))

    def counted() -> Iterator[Counted]:
        for part in parts:
            found.add(part)
            yield part.counted

    found.finish(gather_counts(corpus, counted(), on_bad=on_bad, on_chunk=on_chunk))
    return found

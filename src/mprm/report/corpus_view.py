"""The options of a report.

High-, medium- and low-MC sources: easy for the policy, in between, and hard.

How the MC scores of steps are spread: a second pass over the text, as label counts hold only their sums.

Rollouts of equal label counts as one cell: all that ranking can tell apart, and few of them.

How BIS, R and the mixture are spread, over all rollouts and over those that are kept.

Single rollouts to look at: the best, those around the cut, the worst, and the least reliable positives.

Everything that a report says of a corpus.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.corpus import Corpus, read_line
from mprm.data.engine import Engine
from mprm.data.format import Format
from mprm.data.output import DroppedRecords
from mprm.data.records import Chunk, lines_of
from mprm.data.rollout_formats import FORMATS
from mprm.data.types import Rollout
from mprm.errors import ConfigError, DataError
from mprm.selection.scan import FAST, ROLLOUT, LabelCounts, Part, Rows, count_corpus
from mprm.selection.stats import Statistics, statistics_by_source
from mprm.selection.strategies import (
    DEFAULT_RHO,
    STRATEGIES,
    FloatArray,
    R_of,
    SelectConfig,
    p_pos_of,
    rank_bis,
    rows_in_random_order,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What a report shows."""

    rho: float = DEFAULT_RHO
    """Fraction kept from each source, in (0, 1], where the page begins."""
    alpha: float = 0.05
    """BIS smoothing where the page begins."""
    tau: float = 0.0
    """A step is positive when its score is strictly above it."""
    seed: int = 0
    """Seed of the random order that decides between equal ranks."""
    cards: int = 1
    """Case studies of each kind from each source; 0 for none."""
    image_root: str | None = None
    """Folder that image paths are relative to; without it no image is opened."""

    def __post_init__(self) -> None:
        if self.cards < 0:
            raise ConfigError(f"cards must be 0 or more, got {self.cards}")
        _ = self.selection  # refuses what cannot be selected by

    @property
    def selection(self) -> SelectConfig:
        """The selection that the page shows first."""
        return SelectConfig(rho=(self.rho,), alpha=self.alpha, tau=self.tau, seed=self.seed)


Level = Literal["high", "medium", "low"]
HIGH, LOW = 0.90, 0.70
"""The paper tells the three apart by example; these bounds put every source that it names where it does."""
WORDS: dict[Level, tuple[str, str]] = {
    "high": (
        "High mean MC: easy for the policy",
        "Most rollouts are positive throughout, so a low BIS means little mixture, and the tail of high BIS is thin.",
    ),
    "medium": (
        "Medium mean MC",
        "Most mixed rollouts with reliable positives, and so most for BIS to choose from.",
    ),
    "low": (
        "Low mean MC: hard for the policy",
        "A low BIS means few and unreliable positive steps.",
    ),
}
"""A title and what to expect."""


def level_of(mean_mc: float) -> Level:
    """The level of a source with this mean score over steps.

    Examples
    --------
    >>> level_of(0.9723), level_of(0.8253), level_of(0.5720)
    ('high', 'medium', 'low')
    """
    return "high" if mean_mc >= HIGH else "low" if mean_mc < LOW else "medium"


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
    return [score for rollout in read_line(line, fmt, None, _step_scores_ignore) for score in rollout.scores]


class _Step(msgspec.Struct, gc=False):
    score: float


class _Record(msgspec.Struct, gc=False):
    steps_with_score: list[_Step]


@lru_cache
def _decoder() -> msgspec.json.Decoder[_Record]:
    """Decodes the scores alone: the record was judged when its labels were counted."""
    return msgspec.json.Decoder(_Record)


def _step_scores_ignore(_kind: str, _text: str) -> Any:
    pass


IntArray = NDArray[np.int64]

MOST_CELLS = 200_000
"""More make a page too large to open with pleasure: nothing can be moved in it then."""
MOST_ORDERED = 1_000_000
"""Rollouts; above, the page holds no random order, and shows tied cells kept in proportion."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceCells:
    """The cells of one source."""

    name: str
    rows: Rows
    """One rollout of each cell, C of them: all of a cell have its numbers of steps and its sums."""
    n_rollouts: IntArray
    """Shape (C,): rollouts of each cell."""
    order: IntArray
    """Shape (N,): the cell of each rollout, in random order."""
    numbers: IntArray
    """Shape (N,): the row of each rollout among the corpus's, in the same order."""

    def ranked(self, strategy: str, *, alpha: float) -> IntArray:
        """Shape (N,): places in `order`, the best rollout first."""
        rank = STRATEGIES[strategy].rank(self.rows, alpha=alpha)
        places: IntArray = np.argsort(-rank[self.order], kind="stable")
        return places

    def n_kept(self, strategy: str, *, alpha: float, n_keep: int) -> IntArray:
        """Shape (C,): rollouts of each cell that are kept."""
        kept = self.order[self.ranked(strategy, alpha=alpha)[:n_keep]]
        return np.bincount(kept, minlength=len(self.rows)).astype(np.int64)


def cells_of(counts: LabelCounts, source: int, *, seed: int) -> SourceCells:
    """The cells of a source, and its rollouts in the random order of the seed."""
    numbers = rows_in_random_order(counts, source, seed=seed)
    rows = counts.rows[numbers]
    keys = [rows[name] for name in ("sum_all", "sum_pos", "n_pos", "n_steps")]
    by_key = np.lexsort(keys)
    is_first = np.zeros(len(rows), np.bool_)
    is_first[:1] = True
    for key in keys:
        is_first[1:] |= key[by_key][1:] != key[by_key][:-1]
    order = np.empty(len(rows), np.int64)
    order[by_key] = np.cumsum(is_first) - 1
    return SourceCells(
        name=counts.sources[source],
        rows=rows[by_key[is_first]],
        n_rollouts=np.bincount(order, minlength=int(is_first.sum())).astype(np.int64),
        order=order,
        numbers=numbers,
    )


def why_not_live(sources: Sequence[SourceCells]) -> str | None:
    """Why a page cannot recompute the selection; None where it can."""
    n_cells = sum(len(cells.rows) for cells in sources)
    if n_cells <= MOST_CELLS:
        return None
    return (
        f"The scores of this corpus take so many values ({n_cells:,} different label counts; {MOST_CELLS:,} at most)"
        " that the page would grow too large: the figures show one selection, and nothing can be moved."
    )


def packed_cells(sources: Sequence[SourceCells]) -> dict[str, Any]:
    """The cells of all sources for a page: columns of numbers, compressed, as text."""
    columns = {
        "n_steps": np.concatenate([cells.rows["n_steps"] for cells in sources]),
        "n_pos": np.concatenate([cells.rows["n_pos"] for cells in sources]),
        "sum_pos": np.concatenate([cells.rows["sum_pos"] for cells in sources]),
        "sum_all": np.concatenate([cells.rows["sum_all"] for cells in sources]),
        "n_rollouts": np.concatenate([cells.n_rollouts for cells in sources]).astype(np.uint32),
    }
    is_ordered = sum(len(cells.order) for cells in sources) <= MOST_ORDERED
    order = np.concatenate([cells.order for cells in sources]).astype(np.uint32) if is_ordered else None
    return {
        "n_cells": [len(cells.rows) for cells in sources],
        "columns": {name: _packed(column) for name, column in columns.items()},
        "order": None if order is None else _packed(order),
    }


def _packed(numbers: NDArray[Any]) -> str:
    """The numbers, little-endian and byte by byte of equal weight, deflated, in base64."""
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    # all first bytes, then all second ones: the zeros and exponents stand together and shrink to nothing
    planes = little.view(np.uint8).reshape(-1, little.dtype.itemsize).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 9)).decode("ascii")


Quantity = Literal["bis", "R", "mixture"]
TITLES: dict[Quantity, str] = {
    "bis": "Balanced-Information Score",
    "R": "reliability R(x)",
    "mixture": "mixture p_pos (1 − p_pos)",
}
N_BINS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Numbers of rollouts in bins of equal width that begin at 0."""

    source: str | None
    """None for all sources together."""
    quantity: Quantity
    end: float
    """Where the last bin ends."""
    n_all: tuple[int, ...]
    n_kept: tuple[int, ...]

    @property
    def coverage(self) -> tuple[float | None, ...]:
        """Share of each bin's rollouts that is kept; None where there are none."""
        return tuple(kept / every if every else None for kept, every in zip(self.n_kept, self.n_all, strict=True))


def values_of(cells: SourceCells, quantity: Quantity, *, alpha: float) -> FloatArray:
    """The quantity of each cell, shape (C,)."""
    if quantity == "bis":
        return rank_bis(cells.rows, alpha=alpha)
    if quantity == "R":
        return R_of(cells.rows)
    p_pos = p_pos_of(cells.rows)
    mixture: FloatArray = p_pos * (1 - p_pos)
    return mixture


def end_of(quantity: Quantity, *, alpha: float) -> float:
    """The largest value that the quantity can take."""
    return {"bis": 0.25 + alpha, "R": 1.0, "mixture": 0.25}[quantity]


def histograms(sources: Sequence[SourceCells], kept: Sequence[IntArray], *, alpha: float) -> list[Histogram]:
    """For each quantity, the histogram of all sources together and that of each.

    Parameters
    ----------
    kept
        For each source, how many of each cell's rollouts are kept.
    """
    found = []
    for quantity in TITLES:
        end = end_of(quantity, alpha=alpha)
        counts = []
        for cells, n_kept in zip(sources, kept, strict=True):
            places = np.minimum(
                (values_of(cells, quantity, alpha=alpha) / (end / N_BINS)).astype(np.int64), N_BINS - 1
            )
            counts.append([np.bincount(places, weights, N_BINS) for weights in (cells.n_rollouts, n_kept)])
        table = np.array(counts).astype(np.int64)
        names: list[str | None] = [None, *(cells.name for cells in sources)]
        for name, (n_all, n_kept) in zip(names, [table.sum(0), *table], strict=True):
            found.append(
                Histogram(
                    source=name,
                    quantity=quantity,
                    end=end,
                    n_all=tuple(n_all.tolist()),
                    n_kept=tuple(n_kept.tolist()),
                )
            )
    return found


Kind = Literal["top", "last kept", "first left out", "bottom", "pseudo-positive"]
KINDS: dict[Kind, str] = {
    "top": "Highest BIS",
    "last kept": "Last kept",
    "first left out": "First left out",
    "bottom": "Lowest BIS",
    "pseudo-positive": "Likely pseudo-positives",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rollout, and why it is shown."""

    source: str
    kinds: tuple[Kind, ...]
    place: int
    """From 1: how good it is by BIS among its source's rollouts."""
    is_kept: bool
    row: int
    """Among the corpus's rows."""
    file: str = ""
    line: int = 0
    rollout: Rollout | None = None
    """None until it is read."""


def choose_cases(cells: SourceCells, *, alpha: float, n_keep: int, n_each: int) -> list[Case]:
    """Up to ``n_each`` rollouts of each kind from a source; one of several kinds is one case."""
    ranked = cells.ranked("bis", alpha=alpha)
    n = len(ranked)
    has_positive = cells.rows["n_pos"][cells.order[ranked]] > 0
    R = np.where(has_positive, R_of(cells.rows)[cells.order[ranked]], np.inf)  # noqa: N806 - the paper's symbol
    wanted: dict[Kind, Iterable[int]] = {
        "top": range(n_each),
        "last kept": range(n_keep - 1, n_keep - 1 - n_each, -1),
        "first left out": range(n_keep, n_keep + n_each),
        "bottom": range(n - 1, n - 1 - n_each, -1),
        "pseudo-positive": np.argsort(R, kind="stable")[: min(n_each, int(has_positive.sum()))].tolist(),
    }
    kinds: dict[int, list[Kind]] = {}
    for kind, places in wanted.items():
        for place in places:
            if 0 <= place < n:
                kinds.setdefault(place, []).append(kind)
    return [
        Case(
            source=cells.name,
            kinds=tuple(found),
            place=place + 1,
            is_kept=place < n_keep,
            row=int(cells.numbers[ranked[place]]),
        )
        for place, found in kinds.items()
    ]


def read_cases(counts: LabelCounts, cases: Sequence[Case]) -> list[Case]:
    """The cases with their rollouts and where these stand."""
    by_row = {case.row: case for case in cases}
    found: dict[int, Case] = {}
    path, offset = "", 0
    for part in counts.parts:
        if part.chunk.path != path:
            path, offset = part.chunk.path, 0
        wanted = [row for row in by_row if part.first_row <= row < part.first_row + part.n_rows]
        sizes = counts.rows["n_bytes"][part.first_row : part.first_row + part.n_rows]
        for row, line in _lines(part, sorted(wanted), sizes, offset):
            (rollout,) = read_line(line, FORMATS[part.chunk.format], None, _case_studies_ignore)
            line_number = part.first_line + row - part.first_row
            found[row] = replace(by_row[row], file=path, line=line_number, rollout=rollout)
        offset += int(sizes.sum())
    return [found[case.row] for case in cases]


def _lines(part: Part, rows: list[int], sizes: NDArray[np.uint64], offset: int) -> Iterator[tuple[int, bytes]]:
    """(row, line) of the wanted rows; looked up where the file is plain, else found by reading on."""
    if part.chunk.is_range:
        ends = offset + np.cumsum(sizes, dtype=np.int64)
        with open(part.chunk.path, "rb") as handle:  # noqa: PTH123
            for row in rows:
                n_bytes = int(sizes[row - part.first_row])
                handle.seek(int(ends[row - part.first_row]) - n_bytes)
                yield row, handle.read(n_bytes)
    elif rows:
        for number, line in enumerate(lines_of(part.chunk), part.first_row):
            if number in rows:
                yield number, line


def _case_studies_ignore(_kind: str, _text: str) -> None:
    """A good record has been judged before; its warnings are `mprm check`'s to tell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusView:
    """A corpus and the selection that the page shows first."""

    paths: tuple[str, ...]
    statistics: dict[str, Statistics]
    """Of every source that has a rollout."""
    cells: tuple[SourceCells, ...]
    """Of the same sources, in the same order."""
    n_kept: tuple[IntArray, ...]
    """Of each source's cells."""
    histograms: tuple[Histogram, ...]
    step_scores: NDArray[np.int64]
    """Shape (sources, 17); see `step_score_counts`."""
    cases: tuple[Case, ...]
    n_dropped: int


def view_corpus(
    corpus: Corpus,
    engine: Engine,
    config: ReportConfig,
    *,
    skip_bad: bool = False,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> CorpusView:
    """Count, rank and choose; the corpus is read twice, and the chosen rollouts once more."""
    dropped = DroppedRecords()
    counts = count_corpus(corpus, engine, tau=config.tau, on_bad=dropped if skip_bad else None, on_chunk=on_chunk)
    statistics = statistics_by_source(counts, alpha=config.alpha)
    present = [number for number, name in enumerate(counts.sources) if statistics[name].n_rollouts]
    if not present:
        raise DataError(
            f"there is nothing to report on: {len(dropped)} records were read and none is usable; mprm check says why"
        )
    step_scores = step_score_counts(counts, engine)[present]
    cells = tuple(cells_of(counts, number, seed=config.seed) for number in present)
    kept, cases = [], []
    for source in cells:
        n_keep = config.selection.n_keep(config.rho, source.name, len(source.order))
        kept.append(source.n_kept("bis", alpha=config.alpha, n_keep=n_keep))
        cases += choose_cases(source, alpha=config.alpha, n_keep=n_keep, n_each=config.cards)
    return CorpusView(
        paths=tuple(file.path for file in corpus.files),
        statistics={source.name: statistics[source.name] for source in cells},
        cells=cells,
        n_kept=tuple(kept),
        histograms=tuple(histograms(cells, kept, alpha=config.alpha)),
        step_scores=step_scores,
        cases=tuple(read_cases(counts, cases)),
        n_dropped=len(dropped),
    )

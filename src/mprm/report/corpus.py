"""What a report shows of a corpus: statistics, histograms, step scores and case studies.

Every strategy ranks a rollout by its label counts alone: steps, positive steps, and two sums of scores. Few of these
are distinct, so a page that holds them, and which of them each rollout has, can recompute any selection.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.config import StrategyName
from mprm.data.corpus import flattened, open_corpus, parse_line
from mprm.data.engine import Engine, make_engine
from mprm.data.output import MANIFEST_SUFFIX, DroppedRecords, InputHashes, check_not_inputs, check_unchanged
from mprm.data.records import Chunk, lines_of
from mprm.data.rollout_formats import ROLLOUT_FORMATS, RolloutFormat
from mprm.data.types import Issues, Rollout
from mprm.errors import DataError
from mprm.progress import Progress, silent
from mprm.report.report import ReportConfig
from mprm.selection.scan import COMPILED_FORMATS, ROLLOUT
from mprm.selection.stats import LabelCounts, R_of, Rows, Statistics, count_corpus, p_pos_of, statistics_by_source
from mprm.selection.strategies import STRATEGIES, rank_bis, tie_order

IntArray = NDArray[np.int64]
HIGH_MC, LOW_MC = 0.90, 0.70
"""The paper gives examples of the three levels and no bounds; these put every source that it names where it does."""
MAX_UNIQUE = 200_000
"""Distinct label counts; with more, the page would be slow to open, and shows one selection alone."""
MAX_ORDERED = 1_000_000
"""Rollouts; with more, the page holds no random order, and keeps a share of each tied label count."""
N_BINS = 30
N_SCORE_BINS = 17
"""Of step scores: 0, (0, 1/16], (1/16, 2/16] …; with 16 continuations a step, a bin is one number of successes."""


def mc_level(mean_mc: float) -> Literal["high", "medium", "low"]:
    """The level of a source with this mean MC score over steps.

    Examples
    --------
    >>> mc_level(0.9723), mc_level(0.8253), mc_level(0.5720)
    ('high', 'medium', 'low')
    """
    return "high" if mean_mc >= HIGH_MC else "low" if mean_mc < LOW_MC else "medium"


@dataclass(frozen=True, slots=True, eq=False)
class UniqueCounts:
    """The U distinct label counts of one source's N rollouts."""

    source: str
    unique: Rows
    """Shape (U,): for each label count, a rollout that has it."""
    n_rollouts: IntArray
    """Shape (U,): how many rollouts have it."""
    inverse: IntArray
    """Shape (N,): index into `unique` of each rollout, in random order."""
    rows: IntArray
    """Shape (N,): row of each rollout in the corpus, in the same order."""

    def ranked(self, strategy: StrategyName, *, alpha: float) -> IntArray:
        """Shape (N,): indices into `inverse`, the best rollout first."""
        rank = STRATEGIES[strategy].rank(self.unique, alpha=alpha)
        return np.argsort(-rank[self.inverse], kind="stable")

    def n_kept(self, strategy: StrategyName, *, alpha: float, n_keep: int) -> IntArray:
        """Shape (U,): how many rollouts of each label count are kept."""
        kept = self.inverse[self.ranked(strategy, alpha=alpha)[:n_keep]]
        return np.bincount(kept, minlength=len(self.unique)).astype(np.int64)


def unique_counts(counts: LabelCounts, source: int, *, seed: int) -> UniqueCounts:
    """The distinct label counts of a source, and its rollouts in the random order of the seed."""
    rows_in_order = counts.rollouts[source][np.argsort(tie_order(counts, source, seed=seed))]
    rows = counts.rows[rows_in_order]
    keys = [rows[name] for name in ("sum_all", "sum_pos", "n_pos", "n_steps")]
    by_key = np.lexsort(keys)
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = np.any([key[by_key][1:] != key[by_key][:-1] for key in keys], axis=0)
    inverse = np.empty(len(rows), np.int64)
    inverse[by_key] = np.cumsum(is_first) - 1
    n_rollouts = np.bincount(inverse, minlength=int(is_first.sum())).astype(np.int64)
    return UniqueCounts(counts.sources[source], rows[by_key[is_first]], n_rollouts, inverse, rows_in_order)


def packed_counts(sources: Sequence[UniqueCounts]) -> dict[str, Any] | None:
    """The distinct label counts of all sources for a page, as compressed columns; None where they are too many."""
    n_unique = [len(source.unique) for source in sources]
    if sum(n_unique) > MAX_UNIQUE:
        return None
    columns = {
        name: np.concatenate([source.unique[name] for source in sources])
        for name in ("n_steps", "n_pos", "sum_pos", "sum_all")
    }
    columns["n_rollouts"] = np.concatenate([source.n_rollouts for source in sources]).astype(np.uint32)
    order = np.concatenate([source.inverse for source in sources]).astype(np.uint32)
    return {
        "n_unique": n_unique,
        "columns": {name: _packed(column) for name, column in columns.items()},
        "order": _packed(order) if len(order) <= MAX_ORDERED else None,
    }


def _packed(numbers: NDArray[Any]) -> str:
    """The numbers as little-endian byte planes, deflated, in base64."""
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    # all first bytes, then all second ones: zeros and exponents stand together and compress best
    planes = little.view(np.uint8).reshape(-1, little.dtype.itemsize).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 9)).decode("ascii")


TITLES = {"bis": "Balanced-Information Score", "R": "reliability R(x)", "mixture": "mixture p_pos (1 − p_pos)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Numbers of rollouts in bins of equal width from 0 to ``end``."""

    source: str | None
    """None for all sources together."""
    quantity: str
    end: float
    n_all: tuple[int, ...]
    n_kept: tuple[int, ...]


def histograms(sources: Sequence[UniqueCounts], kept: Sequence[IntArray], *, alpha: float) -> list[Histogram]:
    """For each quantity, the histogram of all sources together and of each; ``kept``: their `UniqueCounts.n_kept`."""
    ends = {"bis": 0.25 + alpha, "R": 1.0, "mixture": 0.25}  # the largest possible values
    counts = np.zeros((len(ends), 1 + len(sources), 2, N_BINS), np.int64)
    for s, (source, n_kept) in enumerate(zip(sources, kept, strict=True), 1):
        rows, p_pos = source.unique, p_pos_of(source.unique)
        values = {"bis": rank_bis(rows, alpha=alpha), "R": R_of(rows), "mixture": p_pos * (1 - p_pos)}
        for q, (quantity, end) in enumerate(ends.items()):
            bins = np.minimum((values[quantity] / (end / N_BINS)).astype(np.int64), N_BINS - 1)
            counts[q, s] = [np.bincount(bins, weights, N_BINS) for weights in (source.n_rollouts, n_kept)]
    counts[:, 0] = counts.sum(1)
    return [
        Histogram(source=name, quantity=quantity, end=end, n_all=tuple(n_all.tolist()), n_kept=tuple(n_kept.tolist()))
        for (quantity, end), by_source in zip(ends.items(), counts, strict=True)
        for name, (n_all, n_kept) in zip([None, *(source.source for source in sources)], by_source, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rollout, and why it is shown."""

    source: str
    kinds: tuple[str, ...]
    rank: int
    """By BIS among its source's rollouts, from 1."""
    is_kept: bool
    row: int
    file: str = ""
    line: int = 0
    rollout: Rollout | None = None
    """None until it is read."""


def choose_cases(source: UniqueCounts, *, alpha: float, n_keep: int, n_each: int) -> list[Case]:
    """Up to ``n_each`` rollouts of each kind from a source; a rollout of several kinds is one case."""
    ranked = source.ranked("bis", alpha=alpha)
    n = len(ranked)
    has_positive = source.unique["n_pos"][source.inverse[ranked]] > 0
    R = np.where(has_positive, R_of(source.unique)[source.inverse[ranked]], np.inf)  # noqa: N806 - the paper's symbol
    ranks: dict[str, Iterable[int]] = {
        "Highest BIS": range(n_each),
        "Last kept": range(n_keep - 1, n_keep - 1 - n_each, -1),
        "First left out": range(n_keep, n_keep + n_each),
        "Lowest BIS": range(n - 1, n - 1 - n_each, -1),
        "Likely pseudo-positives": np.argsort(R, kind="stable")[: min(n_each, int(has_positive.sum()))].tolist(),
    }
    kinds: dict[int, list[str]] = {}
    for kind, ranks_of_kind in ranks.items():
        for rank in ranks_of_kind:
            if 0 <= rank < n:
                kinds.setdefault(rank, []).append(kind)
    return [
        Case(
            source=source.source,
            kinds=tuple(kinds_of_rank),
            rank=rank + 1,
            is_kept=rank < n_keep,
            row=int(source.rows[ranked[rank]]),
        )
        for rank, kinds_of_rank in kinds.items()
    ]


def read_scores_and_cases(
    counts: LabelCounts, engine: Engine, cases: Sequence[Case], *, progress: Progress = silent
) -> tuple[IntArray, tuple[Case, ...]]:
    """(steps by score, shape (sources, 17), cases with their rollouts), read again: label counts hold only sums."""
    tasks = []
    for part in counts.parts:
        rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        lines = {row - part.first_row for case in cases if 0 <= (row := case.row) - part.first_row < part.n_rows}
        tasks.append((part.chunk, np.where(rows["kind"] == ROLLOUT, rows["source"].astype(np.int32), -1), lines))
    n_steps = np.zeros((len(counts.sources), N_SCORE_BINS), np.int64)
    rollouts: dict[int, dict[str, Any]] = {}
    n_bytes = sum(part.chunk.n_bytes for part in counts.parts)
    with progress("reading step scores", n_bytes, "bytes") as advance:
        for part, (counted, lines_read) in zip(counts.parts, engine.map(_read, tasks), strict=True):
            for source, of_source in counted.items():
                n_steps[source] += of_source
            for number, line in lines_read.items():
                (rollout,) = parse_line(line, ROLLOUT_FORMATS[part.chunk.format], None, Issues())
                position = {"file": part.chunk.path, "line": part.first_line + number}
                rollouts[part.first_row + number] = {**position, "rollout": rollout}
            advance(part.chunk.n_bytes)
    return n_steps, tuple(replace(case, **rollouts[case.row]) for case in cases)


def _read(task: tuple[Chunk, NDArray[np.int32], set[int]]) -> tuple[dict[int, IntArray], dict[int, bytes]]:
    """(numbers of steps by source and score bin, lines by number) of a chunk."""
    chunk, sources, wanted = task  # the source of each line, -1 without a rollout; the lines to return, from 0
    scores: dict[int, list[float]] = {}
    lines: dict[int, bytes] = {}
    fmt = ROLLOUT_FORMATS[chunk.format]
    try:
        for number, (source, line) in enumerate(zip(sources.tolist(), lines_of(chunk), strict=True)):
            if source >= 0:
                scores.setdefault(source, []).extend(_scores(line, fmt))
            if number in wanted:
                lines[number] = line
    except ValueError as error:
        raise DataError(f"{chunk.path}: the file changed while it was read; run again") from error
    return {source: _binned(values) for source, values in scores.items()}, lines


def _binned(scores: list[float]) -> IntArray:
    # rounded first: 0.0625 and however else k / 16 may be written stay in the bin that they end
    bins = np.ceil(np.round(np.array(scores) * (N_SCORE_BINS - 1), 6)).astype(np.int64)
    return np.bincount(bins, minlength=N_SCORE_BINS).astype(np.int64)


class _Step(msgspec.Struct, gc=False):
    score: float


class _Record(msgspec.Struct, gc=False):
    steps_with_score: list[_Step]


_decode = msgspec.json.Decoder(_Record).decode
"""The scores alone: the record was validated when its labels were counted."""


def _scores(line: bytes, fmt: RolloutFormat) -> Iterable[float]:
    if fmt.name in COMPILED_FORMATS:
        try:
            return [step.score for step in _decode(line).steps_with_score]
        except msgspec.MsgspecError:
            pass  # a good record, written in an unusual way
    return [score for rollout in parse_line(line, fmt, None, Issues()) for score in rollout.scores]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusView:
    """A corpus and the selection that the page shows first."""

    inputs: list[dict[str, Any]]
    statistics: dict[str, Statistics]
    """Of every source that has a rollout."""
    unique: tuple[UniqueCounts, ...]
    """Of the same sources, in the same order."""
    histograms: tuple[Histogram, ...]
    step_scores: IntArray
    """Shape (sources, 17); see `read_scores_and_cases`."""
    cases: tuple[Case, ...]
    n_dropped: int


def view_corpus(paths: Any, config: ReportConfig, *, progress: Progress) -> CorpusView:
    """Count, rank and choose; the corpus is read twice."""
    corpus = open_corpus(paths, format=config.format, map=config.map, text_only=config.text_only)
    check_not_inputs([file.path for file in corpus.files], [config.page, config.page + MANIFEST_SUFFIX])
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    dropped = DroppedRecords()
    on_bad = dropped if config.skip_bad else None
    corpus = flattened(corpus, on_bad)
    counts = count_corpus(corpus, engine, tau=config.tau, on_bad=on_bad, progress=progress)
    statistics = statistics_by_source(counts, alpha=config.alpha)
    present = [number for number, name in enumerate(counts.sources) if statistics[name].n_rollouts]
    if not present:
        raise DataError(
            f"there is nothing to report on: {len(dropped)} records were read and none is usable; mprm check says why"
        )
    unique = tuple(unique_counts(counts, number, seed=config.seed) for number in present)
    kept, cases = [], []
    for source in unique:
        n_keep = max(1, int(len(source.inverse) * config.rho))  # as `mprm select` does
        kept.append(source.n_kept("bis", alpha=config.alpha, n_keep=n_keep))
        cases += choose_cases(source, alpha=config.alpha, n_keep=n_keep, n_each=config.cases)
    step_scores, read_cases = read_scores_and_cases(counts, engine, cases, progress=progress)
    inputs = corpus.manifest_entries(InputHashes(corpus.files, engine))
    check_unchanged(corpus.files)
    return CorpusView(
        inputs=inputs,
        statistics={source.source: statistics[source.source] for source in unique},
        unique=unique,
        histograms=tuple(histograms(unique, kept, alpha=config.alpha)),
        step_scores=step_scores[present],
        cases=tuple(
            replace(case, file=file, line=line)
            for case in read_cases
            for file, line in [corpus.origin(case.file, case.line)]
        ),
        n_dropped=len(dropped),
    )

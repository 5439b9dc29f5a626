"""What a report shows of a corpus: statistics, histograms, step scores and case studies.

Every strategy ranks a rollout by its label counts alone: steps, positive steps, and two sums of scores. Few of these
are distinct, so a page that holds them, and which of them each rollout has, can recompute any selection. The index of
the first negative step is held beside them, for its histogram.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.corpus import open_corpus, parse_line
from mprm.data.engine import Engine, make_engine
from mprm.data.output import MANIFEST_SUFFIX, check_not_inputs, unchanged
from mprm.data.records import Chunk, lines_of
from mprm.data.rollout_formats import ROLLOUT_FORMATS, RolloutFormat
from mprm.data.types import Issues, Rollout
from mprm.errors import DataError
from mprm.progress import Progress, silent
from mprm.report.report import ReportConfig
from mprm.selection.scan import COMPILED_FORMATS, ROLLOUT
from mprm.selection.select import SelectConfig
from mprm.selection.selection import Selection
from mprm.selection.stats import IntArray, LabelCounts, R_of, Rows, Statistics, bis_of, flat_counts, p_pos_of
from mprm.selection.strategies import STRATEGIES, Rollouts, tie_order

HIGH_MC, LOW_MC = 0.90, 0.70
"""The paper gives examples of the three levels and no bounds; these put every source that it names where it does."""
MAX_UNIQUE = 200_000
"""Distinct label counts; with more, the page would be slow to open, and shows one selection alone."""
MAX_ORDERED = 1_000_000
"""Rollouts; with more, the page holds no random order, and keeps a share of each tied label count."""
N_BINS = 30  # of a histogram; of a count, such as steps, at most so many
N_SCORE_BINS = 17
"""Of step scores: 0, (0, 1/16], (1/16, 2/16] …; with 16 continuations a step, a bin is one number of successes."""


def mc_level(mean_mc: float, *, is_binary: bool = False) -> str:
    """high, medium or low, by the mean MC score of a source's steps; binary for labels of people, which have none."""
    if is_binary:
        return "binary"
    return "high" if mean_mc >= HIGH_MC else "low" if mean_mc < LOW_MC else "medium"


@dataclass(frozen=True, slots=True, eq=False)
class UniqueCounts:
    """The U distinct label counts of one source's N rollouts."""

    source: str
    unique: Rows  # (U,): for each label count, a rollout that has it
    n_rollouts: IntArray  # (U,): how many rollouts have it
    inverse: IntArray  # (N,): index into `unique` of each rollout, in random order
    rows: IntArray  # (N,): row of each rollout in the corpus, in the same order

    @property
    def first_error(self) -> IntArray:
        """Shape (U,): index of the first negative step, from 1; 0 without one."""
        has_error = self.unique["n_pos"] < self.unique["n_steps"]
        return np.where(has_error, self.unique["n_leading"] + 1, 0).astype(np.int64)

    @property
    def is_binary(self) -> bool:
        """Whether every score is 0 or 1 without a number of continuations: labels of people, say, not Monte Carlo."""
        rows = self.unique
        return not rows["n_mc"].any() and all((rows[name] == rows["n_pos"]).all() for name in ("sum_pos", "sum_all"))

    def ranked(self, strategy: str, *, alpha: float) -> IntArray:
        """Shape (N,): indices into `inverse`, the best rollout first."""
        rank = STRATEGIES[strategy].rank(Rollouts(self.unique, alpha=alpha))
        return np.argsort(-rank[self.inverse], kind="stable")

    def n_kept(self, strategy: str, *, alpha: float, n_keep: int) -> IntArray:
        """Shape (U,): how many rollouts of each label count are kept."""
        kept = self.inverse[self.ranked(strategy, alpha=alpha)[:n_keep]]
        return np.bincount(kept, minlength=len(self.unique)).astype(np.int64)


def unique_counts(counts: LabelCounts, source: int, *, seed: int) -> UniqueCounts:
    """The distinct label counts of a source, and its rollouts in the random order of the seed."""
    rows_in_order = counts.rollouts[source][np.argsort(tie_order(counts, source, seed=seed))]
    rows = counts.rows[rows_in_order]
    keys = [rows[name] for name in ("n_leading", "sum_all", "sum_pos", "n_pos", "n_steps")]
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
    names = ("n_steps", "n_pos", "sum_pos", "sum_all")
    columns = {name: np.concatenate([source.unique[name] for source in sources]) for name in names}
    columns["first_error"] = np.concatenate([source.first_error for source in sources]).astype(np.uint32)
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


TITLES = {
    "bis": "Balanced-Information Score",
    "R": "reliability R(x)",
    "mixture": "mixture p_pos (1 − p_pos)",
    "n_steps": "steps in a rollout",
    "first_error": "index of the first negative step (0: none)",
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of rollouts in bins of equal width from ``start`` to ``end``; the last has all that is larger."""

    source: str | None  # None for all sources together
    quantity: str
    start: float
    end: float
    n_all: tuple[int, ...]
    n_kept: tuple[int, ...]


def bins_of(sources: Sequence[UniqueCounts], *, alpha: float) -> dict[str, tuple[float, float, int]]:
    """(start, end, number of bins) of each quantity; counts of steps reach to the 99th percentile, in whole steps."""
    n_steps = np.concatenate([source.unique["n_steps"] for source in sources])
    n_rollouts = np.concatenate([source.n_rollouts for source in sources])
    order = np.argsort(n_steps)
    most = int(n_steps[order][np.searchsorted(np.cumsum(n_rollouts[order]), 0.99 * n_rollouts.sum())])
    width = -(-most // N_BINS)
    n = -(-most // width)
    return {
        **{quantity: (0.0, end, N_BINS) for quantity, end in (("bis", 0.25 + alpha), ("R", 1.0), ("mixture", 0.25))},
        "n_steps": (0.5, n * width + 0.5, n),
        "first_error": (0.5 - width, n * width + 0.5, n + 1),  # the first bin is that of rollouts without one
    }


def histograms(sources: Sequence[UniqueCounts], kept: Sequence[IntArray], *, alpha: float) -> Iterator[Histogram]:
    """For each quantity, the histogram of all sources together and of each; ``kept``: their `UniqueCounts.n_kept`."""
    for quantity, (start, end, n) in bins_of(sources, alpha=alpha).items():
        counts = np.zeros((1 + len(sources), 2, n), np.int64)
        for s, (source, kept_of_source) in enumerate(zip(sources, kept, strict=True), 1):
            values = _values(source, quantity, alpha=alpha)
            bins = np.minimum(((values - start) / ((end - start) / n)).astype(np.int64), n - 1)
            counts[s] = [np.bincount(bins, weights, n) for weights in (source.n_rollouts, kept_of_source)]
        counts[0] = counts.sum(0)
        for name, numbers in zip([None, *(source.source for source in sources)], counts.tolist(), strict=True):
            n_all, n_kept = map(tuple, numbers)
            yield Histogram(name, quantity, start, end, n_all, n_kept)


def _values(source: UniqueCounts, quantity: str, *, alpha: float) -> NDArray[Any]:
    rows, p_pos = source.unique, p_pos_of(source.unique)
    values: dict[str, NDArray[Any]] = {
        "bis": bis_of(rows, alpha),
        "R": R_of(rows),
        "mixture": p_pos * (1 - p_pos),
        "n_steps": rows["n_steps"],
        "first_error": source.first_error,
    }
    return values[quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rollout, and why it is shown."""

    source: str
    kinds: tuple[str, ...]
    rank: int  # by BIS among its source's rollouts, from 1
    is_kept: bool
    row: int
    file: str = ""
    line: int = 0
    rollout: Rollout | None = None  # None until it is read


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
    }
    if not source.is_binary:
        least_reliable = np.argsort(R, kind="stable")[: min(n_each, int(has_positive.sum()))]
        ranks["Likely pseudo-positives"] = least_reliable.tolist()
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
    counts: LabelCounts,
    engine: Engine,
    cases: Sequence[Case],
    *,
    origin: Callable[[str, int], tuple[str, int]] = lambda path, line: (path, line),
    progress: Progress = silent,
) -> tuple[IntArray, list[Case]]:
    """Numbers of steps by source and score, shape (sources, 17), and the cases with their rollouts."""
    tasks = []
    for part in counts.parts:
        rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        lines = {row - part.first_row for case in cases if 0 <= (row := case.row) - part.first_row < part.n_rows}
        tasks.append((part.chunk, np.where(rows["kind"] == ROLLOUT, rows["source"].astype(np.int64), -1), lines))
    n_steps = np.zeros((len(counts.sources), N_SCORE_BINS), np.int64)
    rollouts: dict[int, dict[str, Any]] = {}
    n_bytes = sum(part.chunk.n_bytes for part in counts.parts)
    with progress("reading step scores", n_bytes, "bytes") as advance:
        for part, (counted, lines_read) in zip(counts.parts, engine.map(_read, tasks), strict=True):
            n_steps[: len(counted)] += counted
            for number, line in lines_read.items():
                (rollout,) = parse_line(line, ROLLOUT_FORMATS[part.chunk.format], None, Issues())
                file, at = origin(part.chunk.path, part.first_line + number)
                rollouts[part.first_row + number] = {"file": file, "line": at, "rollout": rollout}
            advance(part.chunk.n_bytes)
    return n_steps, [replace(case, **rollouts[case.row]) for case in cases]


def _read(task: tuple[Chunk, IntArray, set[int]]) -> tuple[IntArray, dict[int, bytes]]:
    """(numbers of steps by source and score bin, lines by number) of a chunk."""
    chunk, sources, wanted = task  # the source of each line, -1 without a rollout; the lines to return, from 0
    all_scores: list[float] = []
    n_steps, lines = [], {}
    fmt = ROLLOUT_FORMATS[chunk.format]
    for number, (source, line) in enumerate(zip(sources.tolist(), lines_of(chunk), strict=True)):
        if source >= 0:
            n_before = len(all_scores)
            all_scores += _scores(line, fmt)
            n_steps.append(len(all_scores) - n_before)
        if number in wanted:
            lines[number] = line
    # rounded first: 0.0625 and however else k / 16 may be written stay in the bin that they end
    bins = np.ceil(np.round(np.array(all_scores) * (N_SCORE_BINS - 1), 6)).astype(np.int64)
    keys = np.repeat(sources[sources >= 0], n_steps) * N_SCORE_BINS + bins
    counted = np.bincount(keys, minlength=N_SCORE_BINS * (int(sources.max(initial=-1)) + 1)).astype(np.int64)
    return counted.reshape(-1, N_SCORE_BINS), lines


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
    statistics: dict[str, Statistics]  # of every source that has a rollout
    unique: tuple[UniqueCounts, ...]  # of the same sources, in the same order
    histograms: tuple[Histogram, ...]
    levels: dict[str, str]  # `mc_level` of each
    step_scores: IntArray  # (sources, 17); see `read_scores_and_cases`
    cases: list[Case]
    n_dropped: int
    warnings: list[str]  # what is degenerate about the selection that the page shows first


def view_corpus(paths: Any, config: ReportConfig, *, progress: Progress) -> CorpusView:
    """Count, rank and choose; the corpus is read twice."""
    corpus = open_corpus(paths, **config.reading())
    check_not_inputs([file.path for file in corpus.files], [config.page, config.page + MANIFEST_SUFFIX])
    with unchanged(corpus.files):
        engine = make_engine(config, n_bytes=corpus.n_bytes)
        corpus, counts, dropped = flat_counts(corpus, engine, config, tau=config.tau, progress=progress)
        present = [number for number, members in enumerate(counts.rollouts) if len(members)]
        if not present:
            raise DataError(f"of {len(dropped)} records none is usable: nothing to report on; mprm check says why")
        unique = [unique_counts(counts, number, seed=config.seed) for number in present]
        options = SelectConfig(rho=(config.rho,), alpha=config.alpha, tau=config.tau, seed=config.seed)
        selection = Selection(corpus, counts, options, dropped, engine)
        statistics, [first] = selection.statistics, selection.subsets
        cases: list[Case] = []
        kept = []
        for source in unique:
            n = first.statistics[source.source].n_rollouts
            cases += choose_cases(source, alpha=config.alpha, n_keep=n, n_each=config.cases)
            kept.append(source.n_kept("bis", alpha=config.alpha, n_keep=n))
        step_scores, cases = read_scores_and_cases(counts, engine, cases, origin=corpus.origin, progress=progress)
        return CorpusView(
            inputs=corpus.manifest_entries(selection.hashes),
            statistics={source.source: statistics[source.source] for source in unique},
            unique=tuple(unique),
            histograms=tuple(histograms(unique, kept, alpha=config.alpha)),
            levels={s.source: mc_level(statistics[s.source].mean_mc, is_binary=s.is_binary) for s in unique},
            step_scores=step_scores[present],
            cases=cases,
            n_dropped=len(dropped),
            warnings=first.warnings,
        )

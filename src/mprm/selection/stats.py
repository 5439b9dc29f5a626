"""The label counts of a corpus as arrays; ``mprm stats``, the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.config import Alpha, CorpusOptions, ScanOptions, Tau, takes
from mprm.data.corpus import Corpus, drop_or_raise, flattened, open_corpus
from mprm.data.engine import Engine, make_engine
from mprm.data.output import (
    Dropped,
    DroppedRecords,
    unchanged,
)
from mprm.data.records import Chunk
from mprm.progress import Progress, silent
from mprm.selection.scan import BLANK, ROLLOUT, ROW, Counted, start_counting

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Rows = NDArray[np.void]
OnBad = Callable[[Dropped], Any] | None
"""Called with each bad record; None stops at the first one with a `DataError`."""
ROW_TYPE = np.dtype(
    [(name, np.uint32) for name in ("n_steps", "n_pos", "n_words", "n_unsampled")]
    + [(name, np.uint32) for name in ("source", "kind", "n_mc", "n_leading")]
    + [("sum_pos", np.float64), ("sum_all", np.float64), ("n_bytes", np.uint64), ("problem", np.uint64)]
)
"""`ROW` as numpy reads it."""
assert ROW_TYPE.itemsize == ROW.size


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one chunk."""

    chunk: Chunk
    first_row: int
    n_rows: int
    first_line: int
    """Line number, from 1, of the chunk's first line in its file."""


@dataclass(frozen=True)
class LabelCounts:
    """One row a line of the corpus, in canonical order."""

    rows: Rows
    parts: list[Part]
    sources: list[str]
    scores: FloatArray = field(default_factory=lambda: np.empty(0))
    """Of all steps of the rollouts, in their order, shape (M,); empty where the details were not asked for."""

    @cached_property
    def score_ends(self) -> IntArray:
        """Steps of the rollouts up to each row, and none before the first: shape (rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.rows["n_steps"], dtype=np.int64)])

    def of_steps(self, values_M: NDArray[Any], indices: NDArray[np.intp]) -> NDArray[Any]:
        """What ``values_M`` holds of all steps of the rows at ascending indices."""
        if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
            return values_M[self.score_ends[indices[0]] : self.score_ends[indices[-1] + 1]]
        n_steps = self.rows["n_steps"][indices].astype(np.int64)
        first = np.repeat(self.score_ends[indices] - (np.cumsum(n_steps) - n_steps), n_steps)
        return values_M[first + np.arange(len(first))]

    @cached_property
    def records(self) -> list[NDArray[np.intp]]:
        """Indices of the rows of each source, bad records included, blank lines left out; in canonical order."""
        is_record = np.flatnonzero(self.rows["kind"] != BLANK)
        numbers = self.rows["source"][is_record]
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(1, len(self.sources)))
        return np.split(is_record[order], ends)[: len(self.sources)]

    @cached_property
    def rollouts(self) -> list[NDArray[np.intp]]:
        """Indices of the rows of each source's usable rollouts."""
        kinds = np.ascontiguousarray(self.rows["kind"])
        return [records[kinds[records] == ROLLOUT] for records in self.records]

    @cached_property
    def line_ends(self) -> NDArray[np.int64]:
        """Bytes before each line and after the last, over all files: shape (rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.rows["n_bytes"], dtype=np.int64)])

    def taken(self, indices: NDArray[np.intp]) -> Rows:
        """The rows at ascending indices: a view where all are neighbours, which saves copying the corpus's rows."""
        if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
            return self.rows[indices[0] : indices[-1] + 1]
        return self.rows[indices]

    @property
    def n_rollouts(self) -> dict[str, int]:
        """Usable rollouts of each source."""
        return {name: len(members) for name, members in zip(self.sources, self.rollouts, strict=True)}


def gather_counts(corpus: Corpus, counting: Iterator[Counted], *, on_bad: OnBad, progress: Progress) -> LabelCounts:
    """The label counts of all chunks together, from those of each, which `start_counting` gives."""
    buffer, scores, parts = bytearray(), bytearray(), []
    numbers: dict[str, int] = {}
    path, line = "", 1
    with unchanged(corpus.files), progress("reading", corpus.n_bytes, "bytes") as advance:
        for chunk, counted in zip(corpus.chunks, counting, strict=True):
            if chunk.path != path:
                path, line = chunk.path, 1
            for bad in counted.bad:
                drop_or_raise(bad._replace(line=line + bad.line), on_bad)
            renumber = [numbers.setdefault(name, len(numbers)) for name in counted.sources]
            if renumber != list(range(len(renumber))):
                rows = np.frombuffer(counted.rows, ROW_TYPE)
                rows["source"] = np.array(renumber, np.uint32)[rows["source"]]
            n_rows = len(counted.rows) // ROW.size
            parts.append(Part(chunk, len(buffer) // ROW.size, n_rows, line))
            buffer += counted.rows  # while the workers read on
            scores += counted.scores
            line += n_rows
            advance(chunk.n_bytes)
    arrays = np.frombuffer(buffer, ROW_TYPE), np.frombuffer(scores)
    for array in arrays:  # strategies are others' functions too, and must not change what the next one sees
        array.flags.writeable = False
    return LabelCounts(arrays[0], parts, list(numbers), arrays[1])


def p_pos_of(rows: Rows) -> FloatArray:
    """Fraction of positive steps of each rollout, shape (N,)."""
    return np.asarray(rows["n_pos"] / rows["n_steps"])


def R_of(rows: Rows) -> FloatArray:  # noqa: N802 - the paper's symbol
    """Mean score of each rollout's positive steps, 1 where there are none; shape (N,)."""
    R: FloatArray = np.divide(rows["sum_pos"], rows["n_pos"], out=np.ones(len(rows)), where=rows["n_pos"] > 0)
    return R


def mean_mc_of(rows: Rows) -> FloatArray:
    """Mean score of each rollout's steps, shape (N,)."""
    return np.asarray(rows["sum_all"] / rows["n_steps"])


def is_mixed(rows: Rows) -> BoolArray:
    """Whether each rollout has positive and negative steps, shape (N,)."""
    return np.asarray((rows["n_pos"] > 0) & (rows["n_pos"] < rows["n_steps"]))


def bis_of(rows: Rows, alpha: float) -> FloatArray:
    """``(p_pos * (1 - p_pos) + alpha) * R`` of each rollout, shape (N,)."""
    p_pos = p_pos_of(rows)
    return (p_pos * (1 - p_pos) + alpha) * R_of(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Sums over rollouts, and the averages that the paper's tables show."""

    n_rollouts: int = 0
    n_steps: int = 0
    n_words: int = 0
    n_pos: int = 0
    sum_mc: float = 0.0
    n_mixed: int = 0
    n_tied: int = 0
    """Rollouts whose BIS is exactly alpha: all labels alike, and full reliability."""
    n_unsampled: int = 0
    """Steps that were never sampled."""
    n_mc: int = 0
    """Most continuations that were sampled for a step, the paper's N; 0 where the files do not say."""

    @property
    def steps_per_rollout(self) -> float:
        return _ratio(self.n_steps, self.n_rollouts)

    @property
    def words_per_step(self) -> float:
        """Average number of words a step, split at white space."""
        return _ratio(self.n_words, self.n_steps)

    @property
    def error_step_ratio(self) -> float:
        """Share of steps with a negative label."""
        return _ratio(self.n_steps - self.n_pos, self.n_steps)

    @property
    def mean_mc(self) -> float:
        return _ratio(self.sum_mc, self.n_steps)

    @property
    def mean_out_of_n(self) -> float | None:
        """Average number of continuations that succeed, out of N; None where N is unknown."""
        return self.mean_mc * self.n_mc if self.n_mc else None

    @property
    def mixed_share(self) -> float:
        return _ratio(self.n_mixed, self.n_rollouts)

    @property
    def tied_share(self) -> float:
        return _ratio(self.n_tied, self.n_rollouts)

    def __add__(self, other: Statistics) -> Statistics:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Statistics(**{**sums, "n_mc": max(self.n_mc, other.n_mc)})

    def as_dict(self) -> dict[str, Any]:
        averages = ("steps_per_rollout", "words_per_step", "error_step_ratio", "mean_mc", "mean_out_of_n")
        return asdict(self) | {name: getattr(self, name) for name in (*averages, "mixed_share", "tied_share")}


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def statistics_of(rows: Rows, *, alpha: float) -> Statistics:
    """The statistics of some rollouts."""
    names = ("n_steps", "n_words", "n_pos", "n_unsampled")
    return Statistics(
        n_rollouts=len(rows),
        sum_mc=float(rows["sum_all"].sum()),
        n_mixed=int(is_mixed(rows).sum()),
        n_tied=int((bis_of(rows, alpha) == alpha).sum()),
        n_mc=int(rows["n_mc"].max(initial=0)),
        **{name: int(rows[name].sum(dtype=np.int64)) for name in names},
    )


def statistics_by_source(
    counts: LabelCounts, *, alpha: float, is_kept: BoolArray | None = None
) -> dict[str, Statistics]:
    """Statistics of each source's rollouts, or of those that are kept."""
    statistics = {}
    for name, members in zip(counts.sources, counts.rollouts, strict=True):
        members = members if is_kept is None else members[is_kept[members]]
        statistics[name] = statistics_of(counts.taken(members), alpha=alpha)
    return statistics


def total(statistics: dict[str, Statistics]) -> Statistics:
    """The sum over sources."""
    return sum(statistics.values(), Statistics())


# Data on which a model learns something else than what a wrong step is. Each warning has its number and a way out.

FREQUENT_ERRORS = 0.1
"""Share of a source's steps above which its errors are frequent."""
MIN_ROLLOUTS = 50
"""A source, or a pattern of labels, is not spoken of with fewer."""
SHORT, ALWAYS_LAST, INDEX_AUC, MOSTLY_TIES, ALL_MIXED = 0.75, 0.90, 0.80, 0.50, 0.90
"""Where the warnings begin: share of the corpus's length; of rollouts whose one negative step is the last; AUC of a
step's index alone; share of what is kept that ties decide, and that is mixed."""


def label_warnings(
    counts: LabelCounts,
    corpus: dict[str, Statistics],
    *,
    kept: BoolArray | None = None,
    subset: dict[str, Statistics] | None = None,
    n_by_ties: int | None = 0,
    n_unqualified: int = 0,
) -> list[str]:
    """What is degenerate about a corpus, or about a subset of it that a strategy keeps.

    ``corpus`` and ``subset`` are statistics by source; ``kept``, ``n_by_ties``, ``n_unqualified`` what `keep_top`
    gives.
    """
    shown, what = (corpus, "") if subset is None else (subset, "kept ")
    every, full, warnings = total(shown), total(corpus), []

    def one_label(entry: Statistics) -> str | None:
        return {0: "negative", entry.n_steps: "positive"}.get(entry.n_pos) if entry.n_steps else None

    large = {name: entry for name, entry in shown.items() if entry.n_rollouts >= MIN_ROLLOUTS}
    single = [f"{name} (all {label})" for name, entry in large.items() if (label := one_label(entry))]
    if label := one_label(every):
        warnings.append(
            f"All {every.n_steps:,} {what}steps are {label}: a model learns one answer from them. Add rollouts with"
            " the other label, or choose another --tau."
        )
    elif single:
        warnings.append(
            f"In {len(single):,} of {len(shown):,} sources all {what}steps have one label: {', '.join(single[:3])}"
            f"{', …' * (len(single) > 3)}. A model can tell the label by the source. Leave them out, or choose"
            " another --tau."
        )
    is_hard = full.sum_mc == full.n_pos and (counts.rows["sum_pos"] == counts.rows["n_pos"]).all()
    if n_by_ties is not None and full.n_steps and is_hard and counts.rows["n_mc"].max(initial=0) <= 1:
        warnings.append(
            f"Every score is 0 or 1 ({full.n_steps:,} steps): these are hard labels, R is 1, and BIS ranks by the mix"
            " of labels alone. --strategy random and --stratify length keep rollouts as long as the corpus's."
        )
    n_expected = sum(corpus[name].steps_per_rollout * entry.n_rollouts for name, entry in shown.items())
    if every.n_steps < SHORT * n_expected:
        warnings.append(
            f"Kept rollouts are short: {every.steps_per_rollout:.1f} steps on average, where those of their sources"
            f" have {n_expected / every.n_rollouts:.1f}. --stratify length keeps all lengths."
        )
    if n_by_ties is not None and n_by_ties > MOSTLY_TIES * every.n_rollouts:
        warnings.append(
            f"Ties decide {n_by_ties / every.n_rollouts:.0%} of what is kept: {n_by_ties:,} of {every.n_rollouts:,}"
            " rollouts have the rank of others that are left out. Compare several --seed."
        )
    crowded = [
        name
        for name, entry in large.items()
        if subset is not None and corpus[name].error_step_ratio > FREQUENT_ERRORS and entry.mixed_share > ALL_MIXED
    ]
    if crowded and n_by_ties is not None:
        warnings.append(
            f"In {len(crowded):,} of {len(shown):,} sources nearly all kept rollouts are mixed, though over"
            f" {FREQUENT_ERRORS:.0%} of the steps are errors: {', '.join(crowded[:3])}{', …' * (len(crowded) > 3)}."
            " --strategy bis-adaptive keeps fewer, which was better in the lab."
        )
    if n_unqualified:
        warnings.append(
            f"{n_unqualified:,} of {every.n_rollouts:,} kept rollouts do not qualify by this strategy: too few do,"
            " and these fill up at random. Keep fewer: a lower --rho."
        )
    rows = np.flatnonzero(counts.rows["kind"] == ROLLOUT if kept is None else kept)
    columns = [counts.rows[name][rows].astype(np.int64) for name in ("n_steps", "n_pos", "n_leading")]
    return [*warnings, *_position_warnings(*columns, what=what)]


def _position_warnings(n_steps: IntArray, n_pos: IntArray, n_leading: IntArray, *, what: str) -> Iterator[str]:
    """Where the position of a step gives its label away."""
    has_negative = (n_pos < n_steps) & (n_steps > 1)
    n_negative, n_last = int(has_negative.sum()), int((has_negative & (n_leading == n_steps - 1)).sum())
    share = _ratio(n_last, n_negative)
    if n_negative >= MIN_ROLLOUTS and share >= ALWAYS_LAST:
        yield (
            f"In {n_last:,} of {n_negative:,} {what}rollouts of several steps with a negative one ({share:.1%}) it is"
            " the last step and the only one: they end at the first error. Add rollouts that go on after an error."
        )
    if len(n_steps) >= MIN_ROLLOUTS and (auc := index_auc(n_steps, n_pos, n_leading)) >= INDEX_AUC:
        yield (
            f"The index of a step alone predicts its label in the {what}rollouts with AUC {auc:.2f} (0.50 is chance)."
            " Judge models by a benchmark, and compare with --strategy random or --stratify length."
        )


def index_auc(n_steps: IntArray, n_pos: IntArray, n_leading: IntArray) -> float:
    """AUC of the label against the share of positive steps at each index; 0.5 with one label alone.

    Exact where all steps after the first negative one have the same label. Else the later positives count as spread
    evenly over them: label counts hold their number, not their order.

    >>> index_auc(np.array([2, 3]), np.array([1, 2]), np.array([1, 2]))  # + −, + + −
    0.9166666666666666
    """
    n, first = len(n_steps), n_leading
    length = int(n_steps.max(initial=0)) + 2
    share = (n_pos - first) / np.maximum(n_steps - first - 1, 1)
    later = np.bincount(first + 1, share, length) - np.bincount(n_steps, share, length)
    positive = n - np.cumsum(np.bincount(first, minlength=length)) + np.cumsum(later)
    every = n - np.cumsum(np.bincount(n_steps, minlength=length))
    order = np.argsort(positive / np.maximum(every, 1))
    positive, negative = positive[order], (every - positive)[order]
    n_pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative / 2  # half of those at the same index
    return float((positive * below).sum() / n_pairs) if n_pairs > 0 else 0.5


@dataclass(frozen=True, kw_only=True)
class StatsConfig(ScanOptions):
    """Show the paper's statistics tables for a corpus: per source and overall."""

    alpha: Alpha = 0.05
    tau: Tau = 0.0


def flat_counts(
    corpus: Corpus,
    engine: Engine,
    config: CorpusOptions,
    *,
    tau: float,
    progress: Progress,
    with_details: bool = False,
) -> tuple[Corpus, LabelCounts, DroppedRecords]:
    """The corpus with one rollout a line, its label counts, and the bad records that were left out.

    It is read once; a step is positive when its score is above tau.
    """
    dropped = DroppedRecords()
    on_bad = dropped if config.skip_bad else None
    corpus = flattened(corpus, on_bad)
    counting = start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None, with_details=with_details)
    return corpus, gather_counts(corpus, counting, on_bad=on_bad, progress=progress), dropped


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Statistics of a corpus."""

    sources: dict[str, Statistics]
    total: Statistics
    n_dropped: int
    """Bad records that were left out."""
    warnings: list[str]
    """What is degenerate about the labels; see `label_warnings`."""


@takes(StatsConfig)
def stats(
    paths: Any, config: StatsConfig | None = None, *, progress: Progress = silent, **options: Any
) -> CorpusStatistics:
    """Statistics of a corpus, whatever `mprm.open_corpus` takes: of each source, and of all together.

    >>> stats([{"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}]).total.error_step_ratio
    0.5
    """
    config = StatsConfig.of(config, options)
    corpus = open_corpus(paths, **config.reading())
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    _, counts, dropped = flat_counts(corpus, engine, config, tau=config.tau, progress=progress)
    by_source = statistics_by_source(counts, alpha=config.alpha)
    return CorpusStatistics(by_source, total(by_source), len(dropped), label_warnings(counts, by_source))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a statistics table."""

    head: str
    attribute: str
    form: str = "{:,}"

    def cell(self, statistics: Statistics) -> str:
        value = getattr(statistics, self.attribute)
        return "–" if value is None else self.form.format(value)


STATISTICS = (
    Column("rollouts", "n_rollouts"),
    Column("steps", "n_steps"),
    Column("steps/rollout", "steps_per_rollout", "{:.2f}"),
    Column("words/step", "words_per_step", "{:.1f}"),
    Column("error steps", "error_step_ratio", "{:.2%}"),
    Column("avg MC", "mean_mc", "{:.4f}"),
    Column("avg out of N", "mean_out_of_n", "{:.4f}"),
    Column("mixed", "mixed_share", "{:.2%}"),
    Column("tied at α", "tied_share", "{:.2%}"),
    Column("never sampled", "n_unsampled"),
)

"""Everything that a report says of a corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mprm.engines.engine import Engine
from mprm.errors import DataError
from mprm.report.case_studies import Case, choose_cases, read_cases
from mprm.report.config import ReportConfig
from mprm.report.histograms import Histogram, histograms
from mprm.report.label_cells import IntArray, SourceCells, cells_of
from mprm.report.step_scores import step_score_counts
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.corpus import Corpus
from mprm.rollouts.dropped import DroppedRecords
from mprm.scores.label_counts import count_corpus
from mprm.scores.statistics import Statistics, statistics_by_source


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

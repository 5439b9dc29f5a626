"""Whether a reward model looks at what a step says, or only at what kind of problem it is of and how far along.

A step's place is its source and its number in the solution.

"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from mprm.evaluation import IntArray, StepTable, rank_steps, ranking_metrics


def auc_at_same_place(table: StepTable) -> float | None:
    """AUC among steps of one source that stand at the same place of their solutions, the mean over all such places.

    A place counts by its correct or incorrect steps, whichever are fewer. None where no place has both.
    """
    index = _index(table)
    place = table.source[table.solution] * (index.max() + 1) + index
    values, weights = [], []
    for one in np.unique(place[table.is_counted]):
        is_here = (place == one) & table.is_counted
        is_correct = table.labels[is_here] == 1
        n_fewer = min(int(is_correct.sum()), int((~is_correct).sum()))
        if n_fewer:
            steps = rank_steps(table.scores[is_here], is_correct)
            values.append(ranking_metrics(steps, np.ones((1, len(is_correct))))["auc"][0])
            weights.append(n_fewer)
    return float(np.average(values, weights=weights)) if values else None


def scored_by_place(table: StepTable, corpus: Iterable[tuple[str, Sequence[float]]]) -> StepTable:
    """The table with scores that no model has given: the share of positive steps at the same place of the corpus.

    Parameters
    ----------
    corpus
        Source and scores of each rollout. A place that it does not have is scored as the source's steps altogether,
        and a source that it does not have as all steps.
    """
    counts: dict[tuple[str, ...] | tuple[str, int], list[int]] = {}
    for source, scores in corpus:
        for number, score in enumerate(scores):
            for key in ((source, number), (source,), ()):
                found = counts.setdefault(key, [0, 0])
                found[0] += score > 0
                found[1] += 1
    shares = {key: positive / n for key, (positive, n) in counts.items()}
    sources = [table.sources[number] for number in table.source[table.solution]]
    told = [
        shares.get((source, int(number)), shares.get((source,), shares.get((), 0.0)))
        for source, number in zip(sources, _index(table), strict=True)
    ]
    return replace(table, scores=np.array(told))


def _index(table: StepTable) -> IntArray:
    """Number of each step in its solution, from 0; shape (S,)."""
    starts = np.searchsorted(table.solution, np.arange(len(table.source)))
    index: IntArray = np.arange(len(table.solution)) - starts[table.solution]
    return index

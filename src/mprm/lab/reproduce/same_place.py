"""Whether a reward model looks at what a step says, or only at what kind of problem it is of and how far along."""

from __future__ import annotations

import numpy as np

from mprm.evaluation.ranking import ranked, ranking_metrics
from mprm.evaluation.step_table import StepTable


def auc_at_same_place(table: StepTable) -> float | None:
    """AUC among steps of one source that stand at the same place of their solutions, the mean over all such places.

    A place counts by its correct or incorrect steps, whichever are fewer. None where no place has both.
    """
    starts = np.searchsorted(table.solution, np.arange(len(table.source)))
    index = np.arange(len(table.solution)) - starts[table.solution]
    place = table.source[table.solution] * (index.max() + 1) + index
    values, weights = [], []
    for one in np.unique(place[table.is_counted]):
        is_here = (place == one) & table.is_counted
        is_correct = table.labels[is_here] == 1
        n_fewer = min(int(is_correct.sum()), int((~is_correct).sum()))
        if n_fewer:
            steps = ranked(table.scores[is_here], is_correct)
            values.append(ranking_metrics(steps, np.ones((1, len(is_correct))))["auc"][0])
            weights.append(n_fewer)
    return float(np.average(values, weights=weights)) if values else None

"""What a reward model is worth when every source has a threshold of its own.

With one threshold for all, scores of different sources must also lie on one scale; here only steps of one source are
compared with each other.

"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mprm.errors import ConfigError
from mprm.evaluation import StepTable, bootstrap_metrics, choose_thresholds
from mprm_lab.reproduce.measure_cell import FOLDS, SEED

METRICS = {"overall": "macro_f1", "auc": "auc"}
"""Of all sources, and what of each."""


def own_thresholds(table: StepTable) -> dict[str, float] | None:
    """Overall value, and AUC within sources: means over sources, weighted by their steps as the paper's value is.

    A source's threshold is chosen on its other problems, fold by fold. None where a source has too few of them, or
    no step of either kind.
    """
    values, weights = [], []
    for number in range(len(table.sources)):
        one = of_source(table, number)
        try:
            thresholds = choose_thresholds(one, "held-out", folds=FOLDS, seed=SEED)
        except ConfigError:
            return None
        result = bootstrap_metrics(one, thresholds)
        values.append([result.value(name) for name in METRICS.values()])
        weights.append(int(one.is_counted.sum()))
    means = np.average(np.array(values, dtype=np.float64), axis=0, weights=weights)
    return None if np.isnan(means).any() else dict(zip(METRICS, np.round(means, 6).tolist(), strict=True))


def of_source(table: StepTable, number: int) -> StepTable:
    """The solutions of one source."""
    is_here = table.source == number
    of_steps = is_here[table.solution]
    problems, problem = np.unique(table.problem[is_here], return_inverse=True)
    return replace(
        table,
        scores=table.scores[of_steps],
        labels=table.labels[of_steps],
        solution=(np.cumsum(is_here) - 1)[table.solution[of_steps]],
        first_error=table.first_error[is_here],
        source=np.zeros(int(is_here.sum()), np.int64),
        problem=problem,
        sources=(table.sources[number],),
        problems=tuple(table.problems[one] for one in problems),
    )

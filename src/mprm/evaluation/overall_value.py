"""The two numbers to watch while a model is trained, without intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mprm.errors import DataError
from mprm.evaluation.ranking import ranked, ranking_metrics
from mprm.evaluation.step_metrics import macro_f1, step_weighted_mean
from mprm.evaluation.step_table import FloatArray, refuse_nothing_to_measure
from mprm.evaluation.threshold import best_step_threshold, folds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallValue:
    """How good a model is at the moment."""

    overall: float
    """Per-source macro-F1 weighted by steps, each problem cut at a threshold chosen on the others."""
    auc: float | None
    """None where the steps are of one class only."""
    n_counted: int
    n_unscored: int
    """Labelled steps without a score."""
    macro_f1: dict[str, float] = field(default_factory=dict)
    """Of each source, at the same thresholds: the overall value is their mean, weighted by steps."""


def overall_value(
    scores: Sequence[float] | FloatArray,
    labels: Sequence[int],
    sources: Sequence[str],
    problems: Sequence[str],
    *,
    folds: int = 5,
    seed: int = 0,
) -> OverallValue:
    """The held-out overall value and the AUC of some steps; the same as `evaluate` gives.

    Parameters
    ----------
    scores, labels, sources, problems : length S
        Of each step: its score, nan where it has none; 1, -1 or 0 for ignored; where it comes from;
        the key of its problem.

    Examples
    --------
    >>> overall_value([0.9, 0.2, 0.8, 0.1], [1, -1, 1, -1], ["math"] * 4, ["a", "a", "b", "b"], folds=2).auc
    1.0
    """
    if not len(scores) == len(labels) == len(sources) == len(problems):
        raise DataError(
            f"{len(scores)} scores, {len(labels)} labels, {len(sources)} sources and {len(problems)} problems;"
            " expected as many of each"
        )
    all_scores, all_labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    refuse_nothing_to_measure(all_scores, all_labels)
    keys = tuple(dict.fromkeys(problems))
    fold_of = dict(zip(keys, folds_of(keys, folds=folds, seed=seed), strict=True))
    is_counted = (all_labels != 0) & ~np.isnan(all_scores)
    score, label = all_scores[is_counted], all_labels[is_counted]
    names, numbers = np.unique(np.asarray(sources, dtype=str), return_inverse=True)
    source = numbers.reshape(-1)[is_counted]
    fold = np.array([fold_of[key] for key in problems])[is_counted]
    cuts = np.empty(len(score))
    for number in np.unique(fold):
        others = fold != number
        if not others.any():
            raise DataError("one fold holds every labelled step; give more problems, or fewer folds")
        cuts[fold == number] = best_step_threshold(score[others], label[others], source[others])
    cell = np.where(label == 1, np.where(score >= cuts, 0, 2), np.where(score >= cuts, 1, 3))
    n_sources = len(names)
    confusion = np.bincount(source * 4 + cell, minlength=n_sources * 4).reshape(n_sources, 4).astype(np.float64)
    steps = ranked(score, label == 1)
    auc = float(ranking_metrics(steps, np.ones((1, len(score))))["auc"][0])
    by_source = macro_f1(confusion)
    counted = confusion.sum(-1) > 0
    return OverallValue(
        overall=float(step_weighted_mean(by_source, confusion.sum(-1))),
        macro_f1={str(name): float(f1) for name, f1, any_ in zip(names, by_source, counted, strict=True) if any_},
        auc=None if np.isnan(auc) else auc,
        n_counted=len(score),
        n_unscored=int(((all_labels != 0) & np.isnan(all_scores)).sum()),
    )

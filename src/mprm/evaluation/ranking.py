"""AUC and average precision of steps under any weights, for many draws of weights at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mprm.evaluation.defined_ratio import defined_ratio
from mprm.evaluation.step_table import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """Steps sorted by score, once, for every draw."""

    order: IntArray
    """Shape (S,): the steps from the lowest to the highest score."""
    is_correct: BoolArray
    """Shape (S,): label of each, in that order."""
    starts: IntArray
    """Shape (G,): where each run of equal scores begins."""


def ranked(scores: FloatArray, is_correct: BoolArray) -> Ranked:
    """Steps in the order of their scores."""
    order = np.argsort(scores, kind="stable")
    sorted_scores = scores[order]
    is_new = np.concatenate([[True], sorted_scores[1:] != sorted_scores[:-1]]) if len(scores) else np.zeros(0, bool)
    return Ranked(order=order, is_correct=is_correct[order], starts=np.flatnonzero(is_new))


def ranking_metrics(steps: Ranked, weights_D_S: FloatArray) -> dict[str, FloatArray]:
    """AUC, and the average precision of both classes; nan in draws that lack a class.

    ``auc``: probability that a correct step scores above an incorrect one, ties counting half.
    ``ap_error``, ``ap_correct``: mean precision over the recall of the class, steps of equal score
    taken together.

    Parameters
    ----------
    weights_D_S : shape (D, S)
        How often each draw holds each step, in the order of ``steps``.
    """
    if not len(steps.starts):
        return dict.fromkeys(("auc", "ap_error", "ap_correct"), np.full(len(weights_D_S), np.nan))
    correct = _per_run(weights_D_S * steps.is_correct, steps.starts)
    wrong = _per_run(weights_D_S * ~steps.is_correct, steps.starts)
    correct_up_to, wrong_up_to = correct.cumsum(axis=1), wrong.cumsum(axis=1)
    n_correct, n_wrong = correct_up_to[:, -1:], wrong_up_to[:, -1:]
    won = (correct * (wrong_up_to - wrong / 2)).sum(axis=1)
    correct_from, wrong_from = n_correct - correct_up_to + correct, n_wrong - wrong_up_to + wrong
    return {
        "auc": defined_ratio(won, n_correct[:, 0] * n_wrong[:, 0]),
        # errors are found from the lowest score upwards, correct steps from the highest downwards
        "ap_error": _average_precision(wrong, wrong_up_to, correct_up_to, n_wrong[:, 0], n_correct[:, 0]),
        "ap_correct": _average_precision(correct, correct_from, wrong_from, n_correct[:, 0], n_wrong[:, 0]),
    }


def _average_precision(
    new: FloatArray, hits: FloatArray, misses: FloatArray, n_class: FloatArray, n_other: FloatArray
) -> FloatArray:
    taken = hits + misses
    precision = np.divide(hits, taken, out=np.zeros_like(taken), where=taken > 0)
    # undefined too when only this class is there: any order would be perfect
    return defined_ratio((new * precision).sum(axis=1), np.where(n_other > 0, n_class, 0))


def _per_run(weights: FloatArray, starts: IntArray) -> FloatArray:
    return weights if len(starts) == weights.shape[1] else np.add.reduceat(weights, starts, axis=1)

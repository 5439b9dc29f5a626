"""Counts of simulated corpora with a known prior."""

from __future__ import annotations

from array import array

import numpy as np
from scipy import special, stats

from mprm.data.records import Chunk
from mprm.selection.scan import ROW_TYPE, LabelCounts
from mprm.theory.fit_corpus import CountedSteps, StepCounts


def correlated_counts(
    rng: np.random.Generator, n_rollouts: int, n_steps: int, *, a: float, b: float, n: int, correlation: float
) -> np.ndarray:
    """Successes of n of each step, shape (rollouts, steps): every r is Beta(a, b), those of a rollout alike."""
    shared, own = rng.normal(size=(n_rollouts, 1)), rng.normal(size=(n_rollouts, n_steps))
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    return rng.binomial(n, special.betaincinv(a, b, stats.norm.cdf(z)))


def step_counts(k: np.ndarray, n: int, *, is_told: bool = True) -> StepCounts:
    """What reading a corpus with these counts of n gives, one source; the file tells n, or not."""
    rows = np.zeros(len(k), ROW_TYPE)
    rows["n_steps"], rows["n_pos"] = k.shape[1], (k > 0).sum(axis=1)
    rows["sum_all"] = rows["sum_pos"] = (k / n).sum(axis=1)
    labels = LabelCounts()
    labels.add(Chunk("simulated", "plain", "simulated", 0, 0, "visualprm-raw"), rows, 1, [0])
    labels.sources = ["simulated"]
    found = StepCounts()
    kinds = [(value / n, n if is_told else None) for value in range(n + 1)]
    found.add(CountedSteps(None, kinds, array("I", k.ravel().tolist()).tobytes()))  # type: ignore[arg-type]
    found.finish(labels)
    return found

"""The scores and labels of a benchmark's steps as arrays: what every metric is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mprm.errors import DataError
from mprm.evaluation.scored_solution import ScoredSolution

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """S steps of N solutions to P problems from K sources."""

    scores: FloatArray
    """Shape (S,): probability that the step is correct; nan where truncation cut it off."""
    labels: IntArray
    """Shape (S,): 1, -1, or 0 for ignored."""
    solution: IntArray
    """Shape (S,): number of each step's solution; does not decrease."""
    first_error: IntArray
    """Shape (N,): step of the first error, -1 for none."""
    source: IntArray
    """Shape (N,): number of the source."""
    problem: IntArray
    """Shape (N,): number of the problem."""
    sources: tuple[str, ...]
    """Names, in order of first appearance."""
    problems: tuple[str, ...]
    """Keys, in order of first appearance."""

    @property
    def is_counted(self) -> BoolArray:
        """Shape (S,): whether step metrics count the step: it has a label and a score."""
        is_counted: BoolArray = (self.labels != 0) & ~np.isnan(self.scores)
        return is_counted

    @property
    def is_whole(self) -> BoolArray:
        """Shape (N,): whether every step of the solution has a score, so that its first error can be told."""
        n_lost = np.bincount(self.solution[np.isnan(self.scores)], minlength=len(self.source))
        is_whole: BoolArray = n_lost == 0
        return is_whole


def step_table(solutions: Sequence[ScoredSolution]) -> StepTable:
    """The table of some scored solutions."""
    sources = {name: number for number, name in enumerate(dict.fromkeys(s.source for s in solutions))}
    problems = {key: number for number, key in enumerate(dict.fromkeys(s.problem for s in solutions))}
    scores = [np.nan if score is None else score for s in solutions for score in s.scores]
    table = StepTable(
        scores=np.array(scores, dtype=np.float64),
        labels=np.array([label for s in solutions for label in s.labels], dtype=np.int64),
        solution=np.repeat(np.arange(len(solutions)), [len(s.labels) for s in solutions]),
        first_error=np.array([-1 if s.first_error is None else s.first_error for s in solutions], dtype=np.int64),
        source=np.array([sources[s.source] for s in solutions], dtype=np.int64),
        problem=np.array([problems[s.problem] for s in solutions], dtype=np.int64),
        sources=tuple(sources),
        problems=tuple(problems),
    )
    refuse_nothing_to_measure(table.scores, table.labels)
    return table


def refuse_nothing_to_measure(scores: FloatArray, labels: IntArray) -> None:
    """Stop when no step has both a label and a score."""
    if not np.any(labels != 0):
        raise DataError("no step is labelled correct or incorrect; there is nothing to measure a model by")
    if np.all(np.isnan(scores[labels != 0])):
        raise DataError(
            "no labelled step could be scored: the model gives no number (nan), or every question is longer than"
            " its maximum length; look at the model's weights, and allow longer sequences"
        )

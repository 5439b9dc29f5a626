"""What evaluate and rerank ask of a process reward model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mprm.rollouts.chain import Chain


class StepScorer(Protocol):
    """Scores the steps of chains. `mprm.PRM` is one."""

    def score_many(
        self, chains: Sequence[Chain], *, on_scored: Callable[[int], None] | None = None
    ) -> list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for a step that truncation cut off.

        ``on_scored`` is called with the number of chains done since the last call.
        """
        ...

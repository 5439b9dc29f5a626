"""Step scores that need no training: of the position alone, and of the policy's own probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mprm.data import Chain
from mprm.models import STEP_FEATURES, StepLogProbs, step_features
from mprm_lab.world import problem_named


def problem_of(chain: Chain) -> Any:
    """The problem whose picture the chain is about."""
    return problem_named("/".join(str(chain.images[0]).split("/")[-2:]))


class PositionScorer:
    """Reads nothing: the share of positive steps of the corpus with the same source and index.

    The corpus gives source and scores of each rollout. A position that it does not have is scored as all steps of the
    source, and a source that it does not have as all steps.
    """

    def __init__(self, corpus: Iterable[tuple[str, Sequence[float]]]) -> None:
        self._n_positive: Counter[tuple[Any, ...]] = Counter()
        self._n_steps: Counter[tuple[Any, ...]] = Counter()
        for source, scores in corpus:
            for index, score in enumerate(scores):
                for key in ((source, index), (source,), ()):
                    self._n_positive[key] += score > 0
                    self._n_steps[key] += 1

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        return [
            [self._score(problem_of(chain).source, index) for index in range(len(chain.steps))] for chain in chains
        ]

    def _score(self, source: str, index: int) -> float:
        key = next((key for key in ((source, index), (source,)) if key in self._n_steps), ())
        return self._n_positive[key] / max(1, self._n_steps[key])


class LogProbScorer:
    """The policy's probability of a step's tokens where it would have written them itself.

    Their geometric mean; or the lowest of them, and of all steps before it.
    """

    def __init__(self, policy: StepLogProbs, *, is_running_minimum: bool) -> None:
        self._policy, self._column = policy, "running_minimum" if is_running_minimum else "mean"

    def score_many(self, chains: Sequence[Chain], **_: Any) -> list[list[float]]:
        column = STEP_FEATURES.index(self._column)
        return [np.exp(step_features(steps)[:, column]).tolist() for steps in self._policy.of_tokens(chains)]

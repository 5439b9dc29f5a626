"""Step scores that need no training: of the position alone, and of the policy's own probabilities."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from mprm.data import Chain, atomic_write
from mprm.evaluation import FloatArray, hash_chain
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


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The file, written by the first of several processes that wants it; the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            make(path)
    return path


class CachedLogProbs:
    """What a policy gives for benchmark and candidates, kept in files: no run changes the policy."""

    def __init__(self, policy: StepLogProbs, folder: Path) -> None:
        self._policy, self._folder = policy, folder
        self.name, self.fingerprint = policy.name, policy.fingerprint

    def of_tokens(self, chains: Sequence[Chain]) -> list[list[FloatArray]]:
        def read(path: Path) -> None:
            flat = [[step.tolist() for step in steps] for steps in self._policy.of_tokens(chains)]
            with atomic_write(str(path)) as temporary:
                temporary.write_bytes(msgspec.msgpack.encode(flat))

        key = xxhash.xxh3_64_hexdigest(" ".join([self.fingerprint, *map(hash_chain, chains)]).encode())
        path = made_once(self._folder / f"{key}.msgpack", read)
        kept = msgspec.msgpack.decode(path.read_bytes(), type=list[list[list[float]]])
        return [[np.array(step) for step in steps] for steps in kept]

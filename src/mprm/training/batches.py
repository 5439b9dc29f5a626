"""Which rollouts make a global batch, and how it is dealt out to micro-batches and devices.

A global batch is drawn by the seed alone. Only then is it ordered by length and cut into micro-batches,
so that padding is saved, and the same rollouts share an update whatever the number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mprm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How N rollouts are trained on: T = ⌈N/B⌉ updates a pass, the last of which may be smaller."""

    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Tokens of each rollout, shape (N,)."""
    batch_size: int
    """B, rollouts in a global batch."""
    per_device: int
    """Rollouts in a micro-batch, on average."""
    world: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "per_device", "world"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not len(self.lengths):
            raise ConfigError("there are no rollouts to train on")

    @property
    def n_updates(self) -> int:
        """T = ⌈N/B⌉."""
        return math.ceil(len(self.lengths) / self.batch_size)

    @property
    def accumulation(self) -> int:
        """Micro-batches of each device in a full global batch."""
        return math.ceil(min(self.batch_size, len(self.lengths)) / (self.per_device * self.world))

    def global_batches(self, epoch: int = 0) -> list[list[int]]:
        """The rollouts of each update, as indices; every rollout once."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths)).tolist()
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]

    def dealt(self, batch: list[int]) -> list[list[list[int]]]:
        """The global batch as micro-batches by round and rank: of like length in a round, the longest first.

        There are as many rounds as with ``per_device`` rollouts each, but long rollouts go in small groups
        and short ones in large, so that no micro-batch has more tokens, padding included, than it must.
        A rank that gets none in a round gets the complement ``~i`` of one index: it runs along, and its
        steps are ignored.
        """
        by_length = sorted(batch, key=lambda index: (-self.lengths[index], index))
        n_rounds = math.ceil(len(by_length) / (self.per_device * self.world))
        ends = _even_cuts([int(self.lengths[index]) for index in by_length], n_rounds, self.world)
        rounds = []
        for start, end in pairwise([0, *ends]):
            group = by_length[start:end]
            rounds.append([group[rank :: self.world] or [~group[-1]] for rank in range(self.world)])
        return rounds

    def most_tokens(self, batch: list[int]) -> int:
        """Tokens of the global batch's largest micro-batch, padding counted."""
        real = [[index for index in some if index >= 0] for ranks in self.dealt(batch) for some in ranks]
        return max(len(some) * int(self.lengths[some].max()) for some in real if some)

    def of_rank(self, rank: int, epoch: int = 0) -> Iterator[list[int]]:
        """The micro-batches of one rank, in order."""
        for batch in self.global_batches(epoch):
            for ranks in self.dealt(batch):
                yield ranks[rank]

    def n_micro_batches(self) -> int:
        """Micro-batches of each rank in one pass."""
        share = self.per_device * self.world
        full, rest = divmod(len(self.lengths), self.batch_size)
        return full * math.ceil(self.batch_size / share) + math.ceil(rest / share)


def _even_cuts(lengths: list[int], n_groups: int, world: int) -> list[int]:
    """Where to end each of ``n_groups`` groups of falling lengths, the largest micro-batch as small as can be."""

    def ends_under(most_tokens: int) -> list[int]:
        ends = [0]
        while ends[-1] < len(lengths):
            longest = max(1, lengths[ends[-1]])
            ends.append(min(len(lengths), ends[-1] + most_tokens // longest * world))
        return ends[1:]

    low, high = max(1, lengths[0]), max(1, lengths[0]) * len(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(ends_under(middle)) <= n_groups else (middle + 1, high)
    ends = ends_under(low)
    while len(ends) < n_groups:  # fewer would do: the group with the most rollouts is halved
        start, end = max(pairwise([0, *ends]), key=lambda group: group[1] - group[0])
        ends = sorted([*ends, (start + end) // 2])
    return ends


class RankBatches:
    """The batch sampler of one rank, for a DataLoader."""

    def __init__(self, plan: BatchPlan, rank: int) -> None:
        self.plan, self.rank, self.epoch = plan, rank, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of that pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return self.plan.of_rank(self.rank, self.epoch)

    def __len__(self) -> int:
        return self.plan.n_micro_batches()

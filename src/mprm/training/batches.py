"""Which rollouts make a global batch, and how it is dealt out to micro-batches and devices.

How a global batch is dealt out when rollouts are packed: by tokens, the rollouts of a problem together.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from mprm.errors import ConfigError
from mprm.models.prefix_tree import MIN_SHARED


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


Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Rollouts of one problem that stay together."""

    rollouts: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Puts rollouts into packs."""

    lengths: Counts
    """Tokens of each rollout, shape (N,)."""
    problems: Counts
    """Rollouts with the same number have the same question and images, shape (N,)."""
    n_shared: Counts
    """Tokens of each rollout that the others of its problem have too, shape (N,)."""
    most_tokens: int
    """Of a pack, unless it is a single rollout."""

    def units(self, batch: Sequence[int]) -> list[Unit]:
        """The rollouts by problem, as many together as fit into a pack; the largest units first."""
        by_problem: defaultdict[int, list[int]] = defaultdict(list)
        for index in sorted(batch, key=lambda index: (-self.lengths[index], index)):
            by_problem[int(self.problems[index])].append(index)
        units = []
        for rollouts in by_problem.values():
            unit = Unit((), 0)
            for index in rollouts:
                length = int(self.lengths[index])
                n_more = length - int(self.n_shared[index])
                if not unit.rollouts:
                    unit = Unit((index,), length)
                elif unit.n_tokens + n_more <= self.most_tokens:
                    unit = Unit((*unit.rollouts, index), unit.n_tokens + n_more)
                else:
                    units.append(unit)
                    unit = Unit((index,), length)
            units.append(unit)
        return sorted(units, key=lambda unit: (-unit.n_tokens, unit.rollouts))

    def packs(self, units: Sequence[Unit], n_packs: int) -> list[Unit]:
        """So many packs, the largest first: each next unit goes where the fewest tokens are."""
        bins: list[tuple[int, int, tuple[int, ...]]] = [(0, number, ()) for number in range(n_packs)]
        for unit in units:
            n_tokens, number, rollouts = bins[0]
            heapq.heapreplace(bins, (n_tokens + unit.n_tokens, number, (*rollouts, *unit.rollouts)))
        return [Unit(rollouts, n) for n, _, rollouts in sorted(bins, key=lambda pack: (-pack[0], pack[1]))]

    def n_rounds(self, batches: Sequence[Sequence[int]], world: int, *, least: int = 1) -> int:
        """The fewest packs for each of ``world`` devices that hold any of these batches."""
        all_units = [self.units(batch) for batch in batches]
        most = max((sum(unit.n_tokens for unit in units) for units in all_units), default=0)
        n_rounds = max(least, math.ceil(most / (self.most_tokens * world)))
        # it ends: with a pack for each unit none is too large
        while any(self.packs(units, n_rounds * world)[0].n_tokens > self.most_tokens for units in all_units):
            n_rounds += 1
        return n_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPlan(BatchPlan):
    """`BatchPlan` with packs for micro-batches; see `packed_plan`."""

    packer: Packer
    full_rounds: int
    """Packs of each device in a full global batch."""
    last_rounds: int
    """Packs of each device in a global batch that is not full."""

    @property
    def accumulation(self) -> int:
        """Packs of each device in a full global batch, or in the only one."""
        return self._n_rounds(min(self.batch_size, len(self.lengths)))

    def _n_rounds(self, n_rollouts: int) -> int:
        return self.full_rounds if n_rollouts == self.batch_size else self.last_rounds

    def dealt(self, batch: list[int]) -> list[list[list[int]]]:
        """The global batch as packs by round and rank, those of like size in a round, the largest first.

        A rank that gets none in a round gets the complement ``~i`` of one index: it runs along, and its
        steps are ignored.
        """
        packs = self.packer.packs(self.packer.units(batch), self._n_rounds(len(batch)) * self.world)
        shortest = min(batch, key=lambda index: (self.lengths[index], index))
        dealt = [list(pack.rollouts) or [~shortest] for pack in packs]
        return [dealt[start : start + self.world] for start in range(0, len(dealt), self.world)]

    def n_micro_batches(self) -> int:
        """Packs of each rank in one pass."""
        n_full, rest = divmod(len(self.lengths), self.batch_size)
        return n_full * self.full_rounds + (self.last_rounds if rest else 0)


def packed_plan(plan: BatchPlan, problems: Counts, n_prompt: Counts, *, epochs: int = 1) -> PackedPlan:
    """The plan with packs: as few as hold every global batch of the run.

    Parameters
    ----------
    problems : shape (N,)
        See `Packer`.
    n_prompt : shape (N,)
        Tokens before the first step of each rollout.
    epochs
        Passes over the data; in all of them the global batches have as many packs.
    """
    batches = [batch for epoch in range(epochs) for batch in plan.global_batches(epoch)]
    packer = Packer(
        lengths=plan.lengths,
        problems=problems,
        n_shared=np.where(n_prompt >= MIN_SHARED, n_prompt, 0),
        most_tokens=max(plan.most_tokens(batch) for batch in batches),
    )
    full, last = ([b for b in batches if (len(b) == plan.batch_size) == is_full] for is_full in (True, False))
    last_rounds = packer.n_rounds(last, plan.world)
    return PackedPlan(
        **{field.name: getattr(plan, field.name) for field in fields(BatchPlan)},
        packer=packer,
        # Trainer takes the rounds of a full batch for the most that there are
        full_rounds=packer.n_rounds(full, plan.world, least=last_rounds),
        last_rounds=last_rounds,
    )

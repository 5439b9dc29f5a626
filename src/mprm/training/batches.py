"""Which rollouts make a global batch, and how it is split into micro-batches and over devices.

Padded micro-batches hold rollouts of similar length; packed ones those of the same problem, which share a prompt.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np

from mprm.models.prefix_tree import MIN_SHARED

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How N rollouts are trained on: T = ⌈N/B⌉ optimizer steps an epoch, the last of which may be smaller."""

    lengths: IntArray
    """Tokens of each rollout, shape (N,)."""
    batch_size: int
    """B, rollouts in a global batch."""
    per_device: int
    """Rollouts in a micro-batch, on average."""
    world_size: int = 1
    seed: int = 0

    @property
    def n_optimizer_steps(self) -> int:
        return math.ceil(len(self.lengths) / self.batch_size)

    @property
    def accumulation(self) -> int:
        """Micro-batches of each device in a full global batch, or in the only one."""
        return self.n_rounds_of(min(self.batch_size, len(self.lengths)))

    def n_rounds_of(self, n_rollouts: int) -> int:
        """Micro-batches of each device in a global batch of so many rollouts."""
        return math.ceil(n_rollouts / (self.per_device * self.world_size))

    def global_batches(self, epoch: int = 0) -> list[list[int]]:
        """The rollouts of each optimizer step, as indices; every rollout once."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths)).tolist()
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]

    def micro_batches(self, batch: list[int]) -> list[list[list[int]]]:
        """The global batch as micro-batches by round and rank: of similar length in a round, the longest first.

        There are as many rounds as with ``per_device`` rollouts each, but long rollouts go in small groups and short
        ones in large, so that no micro-batch has more tokens, padding included, than it must. A rank that gets none
        in a round gets the complement ``~i`` of an index: it runs along, and its steps are ignored.
        """
        by_length = sorted(batch, key=lambda index: (-self.lengths[index], index))
        lengths = [int(self.lengths[index]) for index in by_length]
        ends = _even_cuts(lengths, self.n_rounds_of(len(batch)), self.world_size)
        groups = (by_length[start:end] for start, end in pairwise([0, *ends]))
        ranks = range(self.world_size)
        return [[group[rank :: self.world_size] or [~group[-1]] for rank in ranks] for group in groups]

    def max_tokens(self, batch: list[int]) -> int:
        """Tokens of the global batch's largest micro-batch, padding counted."""
        filled = [some for ranks in self.micro_batches(batch) for some in ranks if some[0] >= 0]
        return max(len(some) * int(self.lengths[some].max()) for some in filled)


def _even_cuts(lengths: list[int], n_groups: int, world_size: int) -> list[int]:
    """Where to end each of ``n_groups`` groups of falling lengths, so that the largest micro-batch is smallest."""

    def ends_under(max_tokens: int) -> list[int]:
        ends = [0]
        while ends[-1] < len(lengths):
            longest = max(1, lengths[ends[-1]])
            ends.append(min(len(lengths), ends[-1] + max_tokens // longest * world_size))
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
    """The batch sampler of one rank, for a DataLoader: its micro-batches, in order."""

    def __init__(self, plan: BatchPlan, rank: int, epoch: int = 0) -> None:
        self.plan, self.rank, self.epoch = plan, rank, epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.plan.global_batches(self.epoch):
            for ranks in self.plan.micro_batches(batch):
                yield ranks[self.rank]

    def __len__(self) -> int:
        return sum(self.plan.n_rounds_of(len(batch)) for batch in self.plan.global_batches())


@dataclass(slots=True)
class Pack:
    """Rollouts in one sequence, and its tokens."""

    n_tokens: int
    rollouts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPlan(BatchPlan):
    """`BatchPlan` with packs for micro-batches: no padding, rollouts of a problem together; see `packed_plan`."""

    problems: IntArray
    """Rollouts with the same number have the same question and images, shape (N,)."""
    n_shared: IntArray
    """Tokens of each rollout that the others of its problem have too, shape (N,)."""
    pack_tokens: int
    """Most tokens of a pack, unless it is a single rollout."""
    n_rounds: dict[int, int] = field(default_factory=dict)
    """Packs of each device in a global batch, by its number of rollouts."""

    def n_rounds_of(self, n_rollouts: int) -> int:
        return self.n_rounds[n_rollouts]

    def micro_batches(self, batch: list[int]) -> list[list[list[int]]]:
        """The global batch as packs by round and rank, those of similar size in a round, the largest first."""
        packs = _packed(self.by_problem(batch), self.n_rounds_of(len(batch)) * self.world_size)
        shortest = min(batch, key=lambda index: (self.lengths[index], index))
        filled = [pack.rollouts or [~shortest] for pack in packs]
        return [filled[start : start + self.world_size] for start in range(0, len(filled), self.world_size)]

    def by_problem(self, batch: Sequence[int]) -> list[Pack]:
        """The rollouts of each problem, as many together as fit into a pack; the largest first."""
        packs: list[Pack] = []
        last: dict[int, Pack] = {}  # the pack that a problem's next rollout may join
        for index in sorted(batch, key=lambda index: (-self.lengths[index], index)):
            problem, length = int(self.problems[index]), int(self.lengths[index])
            n_own = length - int(self.n_shared[index])
            if problem in last and last[problem].n_tokens + n_own <= self.pack_tokens:
                last[problem].n_tokens += n_own
                last[problem].rollouts.append(index)
            else:
                last[problem] = Pack(length, [index])
                packs.append(last[problem])
        return sorted(packs, key=lambda pack: (-pack.n_tokens, pack.rollouts))

    def fewest_rounds(self, batches: Sequence[Sequence[int]], *, at_least: int) -> int:
        """The fewest packs of each device that hold any of these batches."""
        grouped = [self.by_problem(batch) for batch in batches]
        most = max(sum(group.n_tokens for group in groups) for groups in grouped)
        n_rounds = max(at_least, math.ceil(most / (self.pack_tokens * self.world_size)))
        # it ends: with a pack for each group none is too large
        while any(_packed(groups, n_rounds * self.world_size)[0].n_tokens > self.pack_tokens for groups in grouped):
            n_rounds += 1
        return n_rounds


def _packed(groups: Sequence[Pack], n_packs: int) -> list[Pack]:
    """So many packs, the largest first: each next group goes where the fewest tokens are."""
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(n_packs)]
    for group in groups:
        n_tokens, number, rollouts = bins[0]
        heapq.heapreplace(bins, (n_tokens + group.n_tokens, number, rollouts + group.rollouts))
    return [Pack(n_tokens, rollouts) for n_tokens, _, rollouts in sorted(bins, key=lambda pack: (-pack[0], pack[1]))]


def packed_plan(plan: BatchPlan, problems: IntArray, n_prompt: IntArray, *, epochs: int = 1) -> PackedPlan:
    """The plan with as few packs as hold every global batch; ``n_prompt``, shape (N,): tokens before the steps."""
    batches = [batch for epoch in range(epochs) for batch in plan.global_batches(epoch)]
    packed = PackedPlan(
        **{entry.name: getattr(plan, entry.name) for entry in fields(BatchPlan)},
        problems=problems,
        n_shared=np.where(n_prompt >= MIN_SHARED, n_prompt, 0),
        pack_tokens=max(plan.max_tokens(batch) for batch in batches),
    )
    n_rounds: dict[int, int] = {}
    for size in sorted({len(batch) for batch in batches}):
        # Trainer takes the rounds of a full batch, the last size, for the most that there are
        at_least = max(n_rounds.values(), default=1)
        n_rounds[size] = packed.fewest_rounds([batch for batch in batches if len(batch) == size], at_least=at_least)
    return replace(packed, n_rounds=n_rounds)

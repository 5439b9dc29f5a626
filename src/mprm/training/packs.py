"""How a global batch is dealt out when rollouts are packed: by tokens, the rollouts of a problem together.

The global batches are those of `BatchPlan`, rollout for rollout. A pack may have as many tokens as the largest
micro-batch of the plain way, padding counted, so that packing needs no more memory; as nothing is padded or
computed twice, fewer packs do.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from mprm.backbones.prefix_tree import MIN_SHARED
from mprm.training.batches import BatchPlan

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

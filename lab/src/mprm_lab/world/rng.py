"""Random choices that come out the same on every version of Python."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Literal, TypeVar

from mprm.errors import ConfigError

Item = TypeVar("Item")
Stream = Literal["problem", "picture", "solution"]
STREAMS: dict[Stream, int] = {"problem": 0, "picture": 1, "solution": 2}
N_SEEDS = 1 << 32
"""Seeds are whole numbers below this."""


class Rng:
    """A seeded stream of choices, all made from ``random.Random.random``, whose values Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random
        """A number in [0, 1)."""

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.uniform() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self.uniform() * len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """All items, in random order."""
        left = list(items)
        return [left.pop(int(self.uniform() * len(left))) for _ in items]


def rng_of(source: str, seed: int, stream: Stream, number: int = 0) -> Rng:
    """The choices of a problem, of its picture, or of one of its solutions; they depend on nothing else."""
    for name, value in (("seed", seed), ("number", number)):
        if not 0 <= value < N_SEEDS:
            raise ConfigError(f"{source}: the {name} is {value}; expected a whole number from 0 to {N_SEEDS - 1}")
    return Rng((((zlib.crc32(source.encode()) << 32 | seed) << 32 | number) << 2) | STREAMS[stream])

"""Random choices that come out the same on every version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Draws:
    """A seeded stream of choices, all made from ``random.Random.random``, whose values Python keeps fixed.

    Examples
    --------
    >>> Draws(0).between(1, 6) == Draws(0).between(1, 6)
    True
    """

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random
        """Draws a number in [0, 1)."""

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

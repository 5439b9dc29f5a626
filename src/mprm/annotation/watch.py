"""How long work lets others see how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
"""Called with the number of things done since the last call."""
Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""``with watch("scoring", 160) as advance``: a piece of work, and of how many things it is made."""


@contextmanager
def unwatched(_title: str, _total: int) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _n: None

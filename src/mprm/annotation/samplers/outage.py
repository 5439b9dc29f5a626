"""A server that is away for a while."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable

from mprm.errors import MprmError

KNOCK_AT_MOST_EVERY_S = 10.0
TELL_AFTER_S = 3.0
"""A server that is away for longer is worth a word."""


class Outage:
    """Whether the server is there; while it is not, one of those who wait for it knocks, at growing intervals.

    Parameters
    ----------
    knock
        Asks the server for something small within so many seconds; whether it answered.
    name
        The server, for the error.
    patience_s
        How long a server that answered before may be away; then `MprmError` is raised.
    backoff_s
        The first wait; doubled at each knock, up to ten seconds.
    """

    def __init__(
        self, knock: Callable[[float], Awaitable[bool]], *, name: str, patience_s: float, backoff_s: float
    ) -> None:
        self._knock = knock
        self._name = name
        self._patience_s = patience_s
        self._backoff_s = backoff_s
        self._is_here = asyncio.Event()
        self._is_here.set()
        self._knocking = asyncio.Lock()
        self._answered_at: float | None = None
        self._away_since = 0.0
        self._problem = ""
        self._is_told = False

    @property
    def has_answered(self) -> bool:
        """Whether the server ever answered; one that never did is not waited for."""
        return self._answered_at is not None

    def answered(self) -> None:
        """The server said something."""
        self._answered_at = time.monotonic()
        self._is_here.set()

    def lost(self, problem: str, *, asked_at: float) -> None:
        """A request got no answer."""
        self._problem = problem
        if self._is_here.is_set():
            # a server that nobody asked anything for long may have been there until now
            self._away_since = max(asked_at, self._answered_at or asked_at)
            self._is_here.clear()

    async def until_back(self) -> None:
        """Return at once while the server is there, else when it is back."""
        while not self._is_here.is_set():
            if self._knocking.locked():
                await self._is_here.wait()
            else:
                async with self._knocking:
                    await self._look_out()

    async def _look_out(self) -> None:
        wait_s = max(self._backoff_s, 0.01)
        while True:
            left_s = self._away_since + self._patience_s - time.monotonic()
            if not self._is_told and self._patience_s - left_s > TELL_AFTER_S:
                self._is_told = True
                told = f"{self._name} does not answer ({self._problem}); waiting for it, up to {self._patience_s:g} s"
                print(told, file=sys.stderr)
            if left_s <= 0:
                raise MprmError(
                    f"{self._name} has not answered for {self._patience_s:g} s, the last try ended with"
                    f" {self._problem}. What is done is saved; the same command continues when the server is up again"
                )
            try:
                # another request, sent before, may still be answered
                pause_s = min(random.uniform(0.5, 1.0) * wait_s, KNOCK_AT_MOST_EVERY_S, left_s)
                await asyncio.wait_for(self._is_here.wait(), pause_s)
            except TimeoutError:
                wait_s *= 2
            else:
                return
            if await self._knock(left_s):
                if self._is_told:
                    print(f"{self._name} is back", file=sys.stderr)
                    self._is_told = False
                self.answered()
                return

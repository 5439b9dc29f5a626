"""A session for policies that answer one request at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mprm.annotation.samplers.sampler import Answered, Completion, Request


class OneByOne:
    """See `Session`; answers come in the order of the requests."""

    def __init__(self, answer: Callable[[Request], list[Completion]]) -> None:
        self._answer = answer
        self._asked: deque[tuple[int, Request]] = deque()

    @property
    def room(self) -> int:
        """See `Session.room`."""
        return int(not self._asked)

    def submit(self, number: int, request: Request) -> None:
        """See `Session.submit`."""
        self._asked.append((number, request))

    def wait(self) -> list[Answered]:
        """See `Session.wait`."""
        if not self._asked:
            return []
        number, request = self._asked.popleft()
        return [(number, self._answer(request))]

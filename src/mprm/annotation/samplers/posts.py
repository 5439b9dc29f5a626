"""Posts to a chat server, sent again where a try fails."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from mprm.annotation.samplers.chat_reply import (
    GaveUpError,
    MalformedError,
    RefusedError,
    Reply,
    chat_reply,
    retry_after_s,
    said,
)
from mprm.annotation.samplers.outage import Outage
from mprm.annotation.samplers.server_settings import ServerSettings
from mprm.annotation.samplers.transformers_serve import UNKNOWN_FIELDS, for_transformers_serve
from mprm.errors import ConfigError, MprmError

if TYPE_CHECKING:
    import httpx

WAIT_AT_MOST_S = 60.0
TRIES_TO_CONNECT = 3
"""Before the first answer: a server that is not there is not waited for as one that is busy."""
LOST_AT_MOST = 8
"""A request that stays without a reply so often, while the server answers others, is at fault itself."""
PASSING = frozenset({408, 409, 425, 429})
"""Refusals that another try may mend; so may any of 500 and above."""
AWAY = frozenset({502, 503, 504})
"""Said in the server's place while the server is away."""
HOPELESS = frozenset({401, 403, 404, 405})
"""Refusals that every other request would get as well."""


class _FailedError(Exception):
    """A try failed; the server asks to be left alone for ``asked_s`` seconds."""

    def __init__(self, problem: str, asked_s: float = 0.0) -> None:
        super().__init__(problem)
        self.asked_s = asked_s


class _LostError(_FailedError):
    """No answer came: the server is away, or was for a moment."""


class _UnreachableError(_LostError):
    """Not even a connection."""


class Posts:
    """Posts to one server, at most ``concurrency`` in flight.

    Once the server has answered, a post without an answer (connection refused or dropped, time-out, 502,
    503, 504) waits until the server is back: see `Outage`. All other failures, and all before the first
    answer, are tried again ``retries`` times; a server that was never there is given up after three tries.
    """

    def __init__(self, settings: ServerSettings, client: httpx.AsyncClient) -> None:
        self.url = f"{settings.base_url}/chat/completions"
        self.n_open = 0
        """Posts in flight, or waiting for their turn."""
        self._settings = settings
        self._client = client
        self._in_flight = asyncio.Semaphore(settings.concurrency)
        self._is_transformers_serve = False
        self._outage = Outage(
            self._knock, name=self.url, patience_s=settings.patience_s, backoff_s=settings.backoff_s
        )

    async def post(self, body: dict[str, Any]) -> Reply:
        """The reply; `RefusedError` and `GaveUpError` concern this post, `MprmError` all."""
        self.n_open += 1
        try:
            return await self._tried(body)
        finally:
            self.n_open -= 1

    async def _tried(self, body: dict[str, Any]) -> Reply:
        n_failed = n_lost = 0
        while True:
            try:
                async with self._in_flight:
                    await self._outage.until_back()
                    asked_at = time.monotonic()
                    return await self._once(body)
            except _FailedError as error:
                if isinstance(error, _LostError) and self._outage.has_answered:
                    self._outage.lost(str(error), asked_at=asked_at)
                    n_lost += 1
                    self._give_up_lost(n_lost, error)
                    wait_s = self._settings.backoff_s * (2 ** (n_lost - 1) - 1)  # the outage has waits of its own
                else:
                    n_failed += 1
                    self._give_up_failed(n_failed, error)
                    wait_s = self._settings.backoff_s * 2 ** (n_failed - 1)
                asked_s = error.asked_s
            # a random part, so that requests that failed together do not come back together
            await asyncio.sleep(min(max(wait_s * random.uniform(0.5, 1.0), asked_s), WAIT_AT_MOST_S))

    def _give_up_lost(self, n_lost: int, error: _FailedError) -> None:
        if n_lost > max(self._settings.retries, LOST_AT_MOST):
            raise GaveUpError(
                f"{n_lost} tries got no answer, though others did; the last ended with {error}"
            ) from None

    def _give_up_failed(self, n_failed: int, error: _FailedError) -> None:
        if isinstance(error, _UnreachableError) and n_failed >= TRIES_TO_CONNECT:
            raise MprmError(f"no server answers at {self.url} ({error}); is it up?") from None
        if n_failed > self._settings.retries:
            raise GaveUpError(f"{n_failed} tries failed, the last with {error}") from None

    async def _once(self, body: dict[str, Any]) -> Reply:
        sent = self._spoken(body)
        response = await self._sent(sent)
        problem = f"HTTP {response.status_code}: {said(response)}"
        if response.status_code in AWAY:
            raise _LostError(problem, retry_after_s(response))
        self._outage.answered()
        if response.status_code == 200:
            try:
                return chat_reply(response)
            except MalformedError as error:
                raise _FailedError(f"a reply that is no chat completion: {error}") from None
        if response.status_code == 422 and UNKNOWN_FIELDS in problem:
            self._is_transformers_serve = True
            if self._spoken(body) != sent:
                return await self._once(body)
        self._refuse(response.status_code, problem)
        raise _FailedError(problem, retry_after_s(response))

    async def _sent(self, body: dict[str, Any], **how: Any) -> httpx.Response:
        import httpx

        try:
            return await self._client.post(self.url, json=body, **how)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _UnreachableError(f"no connection: {error or type(error).__name__}") from None
        except httpx.DecodingError as error:
            raise _FailedError(f"a reply that cannot be read: {error}") from None
        except httpx.TransportError as error:
            raise _LostError(f"{type(error).__name__}: {error}") from None

    async def _knock(self, left_s: float) -> bool:
        """Whether the server answers the shortest of requests."""
        body: dict[str, Any] = {"model": self._settings.model, "messages": [{"role": "user", "content": "."}]}
        body |= {"max_tokens": 1, "temperature": 0, "seed": 0}
        try:
            response = await self._sent(body, timeout=min(self._settings.timeout_s, left_s))
        except _LostError:
            return False
        return response.status_code not in AWAY

    def _spoken(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as this server takes it."""
        return for_transformers_serve(body) if self._is_transformers_serve else body

    def _refuse(self, status: int, problem: str) -> None:
        """Raise where another try is of no use."""
        if status in HOPELESS:
            raise ConfigError(f"{self.url} refuses: {problem}. See --server, --model and --api-key-env")
        if "top_k" in problem and status in (400, 422):
            raise ConfigError(f"{self.url} takes no top_k ({problem}); leave it out with --top-k 0")
        if status < 500 and status not in PASSING:
            raise RefusedError(problem)

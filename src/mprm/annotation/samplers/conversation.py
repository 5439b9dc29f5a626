"""Requests to a chat server, and what is learnt of it on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mprm.annotation.samplers.chat_messages import chat_messages
from mprm.annotation.samplers.chat_reply import GaveUpError, RefusedError, Reply, failed
from mprm.annotation.samplers.continuation import Continuation, find_continuation
from mprm.annotation.samplers.posts import Posts
from mprm.annotation.samplers.sampler import Completion, Request, derived_seed
from mprm.annotation.samplers.server_settings import ServerSettings
from mprm.errors import DataError

CONNECT_AT_MOST_S = 30.0
KEEP_ALIVE_S = 2.0
"""Servers close idle connections after five seconds; one that is closed as it is used looks like a crash."""


@asynccontextmanager
async def conversation(settings: ServerSettings) -> AsyncIterator[Conversation]:
    """A conversation whose connections are closed at the end of the block."""
    import httpx

    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    # one more: who knocks at a server that is away does so while the others keep their places
    limits = httpx.Limits(max_connections=settings.concurrency + 1, keepalive_expiry=KEEP_ALIVE_S)
    timeout = httpx.Timeout(settings.timeout_s, connect=min(settings.timeout_s, CONNECT_AT_MOST_S))
    async with httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits) as client:
        yield Conversation(settings, Posts(settings, client))


class Conversation:
    """Answers requests, each with as many posts as it takes."""

    def __init__(self, settings: ServerSettings, posts: Posts) -> None:
        self._settings = settings
        self._posts = posts
        self._takes_n = True
        self._way: Continuation | None = None
        self._finding_out = asyncio.Lock()

    @property
    def n_posts(self) -> int:
        """Posts in flight, or waiting for their turn."""
        return self._posts.n_open

    async def answer(self, request: Request) -> list[Completion]:
        """All completions of a request."""
        way = await self._continuation() if request.prefix else None
        try:
            body = self._body(request, way)
        except DataError as error:  # an image that is not there
            return [failed(str(error))] * request.n
        found = await self._completions(body, request)
        return found if way is None else [way.own_part(completion, request.prefix) for completion in found]

    async def _continuation(self) -> Continuation:
        """How the server continues an answer; the first request that needs it finds out."""
        async with self._finding_out:
            if self._way is None:
                template = self._settings.chat_template
                self._way = await find_continuation(self._ask, url=self._posts.url, template=template)
            return self._way

    async def _ask(self, request: Request, way: Continuation) -> Reply:
        return await self._posts.post(self._body(request, way) | {"seed": request.seed})

    def _body(self, request: Request, way: Continuation | None) -> dict[str, Any]:
        decoding = request.decoding
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": chat_messages(request, end_mark=way.end_mark if way else ""),
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
        }
        if decoding.top_k:
            body["top_k"] = decoding.top_k
        fields, extra = way.fields if way else {}, dict(self._settings.extra_body)
        if (name := "chat_template_kwargs") in fields and name in extra:
            extra[name] = extra[name] | fields[name]
        return body | fields | extra

    async def _completions(self, body: dict[str, Any], request: Request) -> list[Completion]:
        found: list[Completion] = []
        asked_at_once = request.n > 1 and self._takes_n
        if asked_at_once:
            try:
                reply = await self._posts.post(body | {"n": request.n, "seed": request.seed})
                found = list(reply.completions[: request.n])
            except RefusedError:
                pass  # perhaps for n alone: the first answer by itself will tell
            except GaveUpError as error:
                return [failed(str(error))] * request.n
        if not found:
            found = [await self._one(body, request.seed)]
            if found[0].finish_reason == "error":
                return found * request.n
        if asked_at_once and len(found) < request.n:
            self._takes_n = False
        # the first seed is the request's own, whether asked alone or with others: the same question
        # gets the same answers before and after it was learnt that the server takes no n
        seeds = [derived_seed(request.seed, number) for number in range(len(found), request.n)]
        return found + await asyncio.gather(*(self._one(body, seed) for seed in seeds))

    async def _one(self, body: dict[str, Any], seed: int) -> Completion:
        try:
            return (await self._posts.post(body | {"seed": seed})).completions[0]
        except (RefusedError, GaveUpError) as error:
            return failed(str(error))

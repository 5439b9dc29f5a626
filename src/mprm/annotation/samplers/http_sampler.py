"""Policies behind a server that speaks the OpenAI protocol: vLLM, SGLang, transformers serve and others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mprm.annotation.samplers.chat_messages import chat_messages
from mprm.annotation.samplers.sampler import Completion, FinishReason, Request, derived_seed
from mprm.annotation.samplers.stream import stream
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError
from mprm.rollouts.printable import printable

if TYPE_CHECKING:
    import httpx

WAIT_AT_MOST_S = 60.0
TRIES_TO_CONNECT = 3
"""Before the first answer: a server that is not there is not waited for as one that is busy."""
PASSING = frozenset({408, 409, 425, 429})
"""Refusals that another try may mend; so may any of 500 and above."""
HOPELESS = frozenset({401, 403, 404, 405})
"""Refusals that every other request would get as well."""
FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
}


class _RefusedError(Exception):
    """The server does not take this request, however often it is asked."""


class _MalformedError(Exception):
    """The reply is no chat completion."""


class _GaveUpError(Exception):
    """All tries failed."""


def refuse_limits(*, concurrency: int, timeout_s: float, retries: int) -> None:
    """Stop at limits that make no sense."""
    if concurrency < 1:
        raise ConfigError(f"concurrency must be 1 or more, got {concurrency}")
    if not 0 < timeout_s < float("inf"):
        raise ConfigError(f"timeout_s must be a number of seconds above 0, got {timeout_s}")
    if retries < 0:
        raise ConfigError(f"retries must be 0 or more, got {retries}")


class HTTPSampler:
    """Asks a chat server, many requests at a time, again where a try fails.

    The seed goes with each request, so the answers are as reproducible as the server makes them. All
    ``n`` answers are asked for at once; the rest one by one from a server that gives fewer or none so.

    Parameters
    ----------
    url
        ``http://localhost:8000`` or ``…/v1``; ``/chat/completions`` is added.
    model
        The name under which the server knows the policy.
    concurrency
        Most requests in flight.
    timeout_s
        Longest wait for one reply.
    retries, backoff_s
        How often a request is sent again; the first wait, doubled at each try up to a minute.
    extra_body
        More fields for every request, for what a server takes beyond the protocol.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout_s: float = 600.0,
        retries: int = 6,
        backoff_s: float = 1.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingDependencyError(
                "sampling from a server needs httpx: pip install httpx, or install mprm with its extra [annotate]"
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{url!r} is no server; expected something like http://localhost:8000/v1")
        refuse_limits(concurrency=concurrency, timeout_s=timeout_s, retries=retries)
        if not 0 <= backoff_s < float("inf"):
            raise ConfigError(f"backoff_s must be 0 or more, got {backoff_s}")
        self._httpx = httpx
        self._base = url.rstrip("/") if parts.path.strip("/") else url.rstrip("/") + "/v1"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._extra = dict(extra_body or {})

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return self._model

    @property
    def settings(self) -> dict[str, Any]:
        """See `Sampler.settings`."""
        return {"extra_body": self._extra}

    def sample(
        self, requests: Sequence[Request], *, on_done: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, Completion]]:
        """See `Sampler.sample`; completions of one request come together, requests in any order."""

        async def work(put: Callable[[tuple[int, list[Completion]]], None]) -> None:
            limits = self._httpx.Limits(max_connections=self._concurrency)
            async with self._httpx.AsyncClient(
                headers=self._headers, timeout=self._timeout_s, limits=limits
            ) as client:
                await _Conversation(self, client).answer_all(requests, put)

        for number, completions in stream(work):
            for completion in completions:
                yield number, completion
            if on_done is not None:
                on_done(len(completions))

    def _body(self, request: Request) -> dict[str, Any]:
        decoding = request.decoding
        body: dict[str, Any] = {
            "model": self._model,
            "messages": chat_messages(request),
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
        }
        if decoding.top_k:
            body["top_k"] = decoding.top_k
        if request.prefix:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body | self._extra


class _Conversation:
    """What is known of the server while a set of requests is answered."""

    def __init__(self, sampler: HTTPSampler, client: httpx.AsyncClient) -> None:
        self._sampler = sampler
        self._client = client
        self._url = f"{sampler._base}/chat/completions"
        self._in_flight = asyncio.Semaphore(sampler._concurrency)
        self._takes_n = True
        self._has_answered = False

    async def answer_all(
        self, requests: Sequence[Request], put: Callable[[tuple[int, list[Completion]]], None]
    ) -> None:
        todo = iter(enumerate(requests))

        async def work() -> None:
            for number, request in todo:
                put((number, await self._answer(request)))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._sampler._concurrency, len(requests))):
                    group.create_task(work())
        except* MprmError as errors:
            raise errors.exceptions[0] from None

    async def _answer(self, request: Request) -> list[Completion]:
        """All completions of a request."""
        try:
            body = self._sampler._body(request)
        except DataError as error:  # an image that is not there
            return [_failed(str(error))] * request.n
        found: list[Completion] = []
        asked_at_once = request.n > 1 and self._takes_n
        if asked_at_once:
            try:
                found = await self._post(body | {"n": request.n, "seed": request.seed})
            except _RefusedError:
                pass  # perhaps for n alone: the first answer by itself will tell
            except _GaveUpError as error:
                return [_failed(str(error))] * request.n
            found = found[: request.n]
        if not found:
            found = await self._one(body, request.seed)
            if found[0].finish_reason == "error":
                return found * request.n
        if asked_at_once and len(found) < request.n:
            self._takes_n = False
        # the first seed is the request's own, whether asked alone or with others: the same question
        # gets the same answers before and after it was learnt that the server takes no n
        seeds = [derived_seed(request.seed, number) for number in range(len(found), request.n)]
        rest = await asyncio.gather(*(self._one(body, seed) for seed in seeds))
        return found + [completion for one in rest for completion in one]

    async def _one(self, body: dict[str, Any], seed: int) -> list[Completion]:
        try:
            return (await self._post(body | {"seed": seed}))[:1]
        except (_RefusedError, _GaveUpError) as error:
            return [_failed(str(error))]

    async def _post(self, body: dict[str, Any]) -> list[Completion]:
        """The completions of one reply, at least one; tries again while there is hope."""
        sampler = self._sampler
        tries, wait_s = 0, sampler._backoff_s
        while True:
            tries += 1
            asked_s = 0.0
            try:
                async with self._in_flight:
                    reply = await self._client.post(self._url, json=body)
                if reply.status_code == 200:
                    found = _completions(reply)
                    self._has_answered = True
                    return found
                problem = f"HTTP {reply.status_code}: {_said(reply)}"
                self._refuse(reply.status_code, problem)
                asked_s = _retry_after_s(reply)
            except _MalformedError as error:
                problem = f"a reply that is no chat completion: {error}"
            except sampler._httpx.ConnectError as error:
                problem = f"no connection: {error}"
                if not self._has_answered and tries >= TRIES_TO_CONNECT:
                    raise MprmError(f"no server answers at {self._url} ({error}); is it up?") from None
            except sampler._httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            if tries > sampler._retries:
                raise _GaveUpError(f"{tries} tries failed, the last with {problem}")
            # a random part, so that requests that failed together do not come back together
            await asyncio.sleep(min(max(wait_s * random.uniform(0.5, 1.0), asked_s), WAIT_AT_MOST_S))
            wait_s *= 2

    def _refuse(self, status: int, problem: str) -> None:
        """Raise where another try is of no use."""
        if status in HOPELESS:
            raise ConfigError(f"{self._url} refuses: {problem}. See --server, --model and --api-key-env")
        if "top_k" in problem and status in (400, 422):
            raise ConfigError(f"{self._url} takes no top_k ({problem}); leave it out with --top-k 0")
        if status < 500 and status not in PASSING:
            raise _RefusedError(problem)


def _completions(reply: httpx.Response) -> list[Completion]:
    """The reply's choices, at least one."""
    try:
        record = reply.json()
        choices = record["choices"]
        n_tokens = (record.get("usage") or {}).get("completion_tokens") if len(choices) == 1 else None
        found = [_completion(choice, n_tokens) for choice in choices]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _MalformedError(f"{type(error).__name__} {error}") from error
    if not found:
        raise _MalformedError("it holds no choices")
    return found


def _completion(choice: Any, n_tokens: int | None) -> Completion:
    text, reason = choice["message"]["content"], choice.get("finish_reason")
    if reason not in FINISH_REASONS:
        return _failed(f"the server ended the answer with finish_reason {reason!r}; expected stop or length")
    if not isinstance(text, str):
        return _failed(f"the server's message has content {text!r}; expected text")
    return Completion(text=text, finish_reason=FINISH_REASONS[reason], n_tokens=n_tokens)


def _failed(error: str) -> Completion:
    return Completion(text="", finish_reason="error", error=error)


def _said(reply: httpx.Response) -> str:
    text = printable(" ".join(reply.text.split()))
    return text if len(text) <= 300 else text[:299] + "…"


def _retry_after_s(reply: httpx.Response) -> float:
    try:
        return max(0.0, float(reply.headers.get("retry-after", 0)))
    except ValueError:  # a date: our own wait will do
        return 0.0

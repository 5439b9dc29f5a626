"""A server that is away for a while.

Posts to a chat server, sent again where a try fails.

Requests to a chat server, and what is learnt of it on the way.

A session with a server: requests are answered in a thread of their own, many at a time.

Policies behind a server that speaks the OpenAI protocol: vLLM, SGLang, transformers serve and others.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mprm.annotation.samplers.chat_api import (
    UNKNOWN_FIELDS,
    Continuation,
    GaveUpError,
    MalformedError,
    RefusedError,
    Reply,
    ServerSettings,
    chat_messages,
    chat_reply,
    failed,
    find_continuation,
    for_transformers_serve,
    read_chat_template,
    retry_after_s,
    said,
)
from mprm.annotation.samplers.sampler import Answered, Completion, Request, Session, derived_seed
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError

if TYPE_CHECKING:
    import httpx


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
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": chat_messages(request, end_mark=way.end_mark if way else ""),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
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


class _End:
    """The thread is done, because of this error unless the session was closed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class HTTPSession:
    """See `Session`; requests are answered in any order.

    There is room for as many posts as may be in flight and some more, which are sent as soon as a place is
    free. A request counts once, or as often as the server has to be asked for its answers one by one.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._places = settings.concurrency + 1 + settings.concurrency // 8
        self._settings = settings
        self._asked: asyncio.Queue[tuple[int, Request]] = asyncio.Queue()
        self._done: SimpleQueue[Answered | _End] = SimpleQueue()
        self._conversation: Conversation | None = None
        self._n_open = 0
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._work())
        self._thread = Thread(target=self._run, name="mprm-http", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        """See `Session.room`."""
        n_unanswered = self._n_open - self._done.qsize()
        n_posts = self._conversation.n_posts if self._conversation is not None else 0
        return max(0, self._places - max(n_unanswered, n_posts))

    def submit(self, number: int, request: Request) -> None:
        """See `Session.submit`; raises what `wait` will raise next."""
        if self._error is not None:
            raise self._error
        self._n_open += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next wait tells why
            self._loop.call_soon_threadsafe(self._asked.put_nowait, (number, request))

    def wait(self) -> list[Answered]:
        """See `Session.wait`; an error is raised after all that was answered before it is handed out."""
        if self._error is not None:
            raise self._error
        if not self._n_open:
            return []
        found = [self._next()]
        while not self._done.empty():
            found.append(self._done.get())
        answered = []
        for item in found:
            if isinstance(item, _End):
                self._error = item.error or RuntimeError("the session is closed")
            else:
                answered.append(item)
        self._n_open -= len(answered)
        if not answered and self._error is not None:
            raise self._error
        return answered

    def _next(self) -> Answered | _End:
        while True:
            try:
                # not for ever: Ctrl-C does not wake this thread where another one gets the signal
                return self._done.get(timeout=0.2)
            except Empty:
                continue

    def close(self) -> None:
        """Give up what is under way, and wait until the connections are closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to cancel
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as raised:
            error = raised
        finally:
            self._loop.run_until_complete(_cancel(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._done.put(_End(error))

    async def _work(self) -> None:
        try:
            async with conversation(self._settings) as self._conversation, asyncio.TaskGroup() as group:
                while True:
                    number, request = await self._asked.get()
                    group.create_task(self._answer(self._conversation, number, request))
        except* Exception as errors:
            raise errors.exceptions[0] from None

    async def _answer(self, server: Conversation, number: int, request: Request) -> None:
        self._done.put((number, await server.answer(request)))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def check_limits(*, concurrency: int, timeout_s: float, retries: int, patience_s: float = 900.0) -> None:
    """Stop at limits that make no sense."""
    if concurrency < 1:
        raise ConfigError(f"concurrency must be 1 or more, got {concurrency}")
    if not 0 < timeout_s < float("inf"):
        raise ConfigError(f"timeout_s must be a number of seconds above 0, got {timeout_s}")
    if retries < 0:
        raise ConfigError(f"retries must be 0 or more, got {retries}")
    if not 0 <= patience_s < float("inf"):
        raise ConfigError(f"patience_s must be a number of seconds, 0 or more, got {patience_s}")


class HTTPSampler:
    """Asks a chat server, many requests at a time, again where a try fails.

    The seed goes with each request, so the answers are as reproducible as the server makes them
    (``transformers serve``, with one generator for all requests, at a concurrency of 1 only). All ``n``
    answers are asked for at once; the rest one by one from a server that gives fewer or none so.

    **A server that dies and comes back.** Once it has answered, requests that get no answer (connection
    refused or dropped, time-out, 502, 503, 504) wait until it is back. Meanwhile one small request at a time
    looks out for it, at most every ten seconds. After ``patience_s`` without any answer `MprmError` is
    raised. A request that gets no answer 9 times (or ``retries`` + 1, if that is more), while others do,
    fails alone.

    **transformers serve** knows ``top_k`` in a generation config only, and draws tokens only where that or the
    checkpoint's own says ``do_sample``. It is told both as soon as it is recognised, by its refusal of a
    field: at ``top_k`` 0, and with no answer begun, it is not, and the checkpoint's own setting holds.

    **An answer that is begun** is continued in place, with ``continue_final_message`` (vLLM, SGLang) or with
    a chat template that leaves the last turn open (``transformers serve``). Which of them works is tried
    out before the first such request; a server that would open a new turn is refused with `ConfigError`.
    Completions never repeat the beginning, even where the server does. What the policy reads may differ from
    what it reads in this process in these points: text that looks like a control token is one to the server;
    tokens may be joined across the seam between chat template and beginning; and where a chat template trims
    messages, vLLM loses the white space at the end of the beginning, of which a warning tells.

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
    patience_s
        How long a server that has answered before may be away.
    extra_body
        More fields for every request, for what a server takes beyond the protocol.
    chat_template
        A checkpoint's folder, or a file with its chat template; needed only to continue answers on
        ``transformers serve``, and not even there where ``model`` is such a folder on this machine.
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
        patience_s: float = 900.0,
        extra_body: Mapping[str, Any] | None = None,
        chat_template: str | Path | None = None,
    ) -> None:
        try:
            import httpx  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "sampling from a server needs httpx: pip install httpx, or install mprm with its extra [annotate]"
            ) from error
        _check_url(url)
        parts = urlsplit(url)
        if api_key is not None and not api_key.isascii():
            raise ConfigError(
                "the API key holds letters beyond ASCII, which no HTTP header can; is it the right one?"
            )
        check_limits(concurrency=concurrency, timeout_s=timeout_s, retries=retries, patience_s=patience_s)
        if not 0 <= backoff_s < float("inf"):
            raise ConfigError(f"backoff_s must be 0 or more, got {backoff_s}")
        self._server = ServerSettings(
            base_url=url.rstrip("/") if parts.path.strip("/") else url.rstrip("/") + "/v1",
            model=model,
            api_key=api_key,
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            patience_s=patience_s,
            extra_body=dict(extra_body or {}),
            chat_template=_template(model, chat_template),
        )

    @property
    def name(self) -> str:
        """See `Sampler.name`."""
        return self._server.model

    @property
    def settings(self) -> dict[str, Any]:
        """See `Sampler.settings`."""
        return {"extra_body": dict(self._server.extra_body)}

    @contextmanager
    def session(self) -> Iterator[Session]:
        """See `Sampler.session`; connections are closed at the end of the block."""
        session = HTTPSession(self._server)
        try:
            yield session
        finally:
            session.close()


def _check_url(url: str) -> None:
    """Stop at what is no address of a server."""
    import httpx

    try:
        is_server = urlsplit(url).scheme in ("http", "https") and bool(httpx.URL(url).host)
        httpx.Request("POST", httpx.URL(url))
        port = urlsplit(url).port
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"{url!r} is no server: {error}; expected something like http://localhost:8000/v1"
        ) from error
    if not is_server or (port is not None and not 0 < port < 65536):
        raise ConfigError(f"{url!r} is no server; expected something like http://localhost:8000/v1")


def _template(model: str, given: str | Path | None) -> str | None:
    """The policy's chat template, where it can be known."""
    if given is not None:
        return read_chat_template(given)
    if (Path(model) / "config.json").is_file():
        try:
            return read_chat_template(model)
        except ConfigError:  # the server may do without
            return None
    return None

"""Policies behind a server that speaks the OpenAI protocol: vLLM, SGLang, transformers serve and others.

The openai client does retries, time-outs and connections. Here stands what it does not do: continue a prefix in
place, wait for a server that stopped answering, make up for a server without ``n``, turn failures into completions.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from mprm.annotation.samplers.continuation import (
    Continuation,
    Reply,
    RequestError,
    find_continuation,
    read_chat_template,
)
from mprm.annotation.samplers.sampler import (
    Answered,
    Completion,
    FinishReason,
    Request,
    ServerOptions,
    derived_seed,
    failed,
    numbered,
)
from mprm.config import takes
from mprm.data.images import place_images
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError, printable

try:
    import httpx2
    import openai
    from anyio.from_thread import start_blocking_portal
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    raise MissingDependencyError(
        f"sampling from a server needs {error.name}: install mprm with its extra [annotate]"
    ) from error

KEEP_ALIVE_S = 2.0
"""Servers close idle connections after five seconds; one that is closed as it is used looks like a crash."""
UNREACHABLE_AFTER_S = 2.0
"""A server that never answered is not waited for."""
HEALTH_CHECK_S = 1.0
MAX_HEALTH_CHECK_S = 10.0
"""First and longest wait before a server that stopped answering is asked again."""
ANNOUNCE_AFTER_S = 3.0
UNAVAILABLE = frozenset({502, 503, 504})
"""Said in the server's place while the server is away."""
HOPELESS = frozenset({401, 403, 404, 405})
"""Rejections that every other request would get as well."""
FINISH_REASONS: dict[str, FinishReason]
FINISH_REASONS = {"stop": "stop", "eos_token": "stop", "stop_sequence": "stop", "length": "length"}
UNKNOWN_FIELDS = "Unexpected fields in the request"
"""How transformers serve rejects fields that it does not know; other servers ignore them, or use other words."""


class RejectedError(RequestError):
    """The server does not take this request, however often it is sent."""


class HTTPSampler:
    """Samples from a chat server, many requests at a time; see docs/annotation.md for what differs between servers.

    The seed goes with each request, so the answers are as reproducible as the server makes them (``transformers
    serve``, with one generator for all requests, at a concurrency of 1 only). Before the first request with a prefix,
    the server is probed; one that would open a new turn instead is refused with `ConfigError`.

    Once the server has answered, requests without an answer (connection refused or dropped, time-out, 502, 503, 504)
    wait until it is back, while small requests check for it, at least every ten seconds. Each outage costs them one
    retry. After ``patience_s`` without any answer `MprmError` is raised.

    Parameters
    ----------
    url
        ``http://localhost:8000`` or ``…/v1``; ``/chat/completions`` is added.
    model
        The name under which the server knows the policy.
    extra_body
        More fields for every request, for what a server takes beyond the protocol.
    options
        See `ServerOptions`. ``chat_template`` is needed only to continue answers on ``transformers serve``, and not
        even there where ``model`` is the checkpoint's folder on this machine.
    """

    @takes(ServerOptions)
    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        try:
            parsed = httpx2.URL(url)
            is_server = parsed.scheme in ("http", "https") and parsed.host and 0 < (parsed.port or 80) < 65536
        except (ValueError, httpx2.InvalidURL):
            is_server = False
        if not is_server:
            raise ConfigError(f"{url!r} is no server; expected something like http://localhost:8000/v1")
        if api_key is not None and not api_key.isascii():
            raise ConfigError(
                "the API key holds letters beyond ASCII, which no HTTP header can; is it the right one?"
            )
        self.base_url = url.rstrip("/") if parsed.path.strip("/") else url.rstrip("/") + "/v1"
        self.name = model
        self.options = ServerOptions.of(None, options)
        self.template: str | None = None
        if self.options.chat_template is not None:
            self.template = read_chat_template(self.options.chat_template)
        elif (Path(model) / "config.json").is_file():
            with contextlib.suppress(ConfigError):  # the server may do without
                self.template = read_chat_template(model)
        self.settings = {"extra_body": dict(extra_body or {})}
        self._api_key = api_key

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        """See `Sampler.sample`; an error is raised after all that was answered before it.

        Requests are taken for all of ``concurrency`` and some more, which are sent as soon as others are answered.
        """
        todo, session = numbered(requests), _Session(self, self._api_key)
        n_ahead = self.options.concurrency + 1 + self.options.concurrency // 8
        pending: set[Future[Answered]] = set()
        with (
            start_blocking_portal(name="mprm-server") as portal,
            portal.wrap_async_context_manager(session.client),
        ):
            try:
                while True:
                    while max(len(pending), session.n_posts) < n_ahead and (item := next(todo, None)) is not None:
                        pending.add(portal.start_task_soon(session.answer, *item))
                    if not pending:
                        return
                    done: set[Future[Answered]] = set()
                    while not done:  # not for ever: Ctrl-C does not wake this thread where another gets the signal
                        done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    answered = [future.result() for future in done if future.exception() is None]
                    if answered:
                        yield answered
                    for future in done:
                        future.result()  # raises the first error
            finally:
                for future in pending:
                    future.cancel()


class _Session:
    """Answers requests, each with as many posts as it takes, and remembers what it learns of the server."""

    def __init__(self, sampler: HTTPSampler, api_key: str | None) -> None:
        self.n_posts = 0
        """Posts in flight, or waiting for their turn."""
        self._sampler, self._options = sampler, sampler.options
        self._url = f"{sampler.base_url}/chat/completions"
        self.client = openai.AsyncOpenAI(
            base_url=sampler.base_url,
            api_key="in the headers of http_client",  # where there is none, not even that of the environment is sent
            max_retries=self._options.retries,
            http_client=_PatientClient(self._url, sampler.name, self._options, api_key),
        )
        self._slots = asyncio.Semaphore(self._options.concurrency)
        self._takes_n = True
        self._is_transformers_serve = False
        self._continuation: Continuation | None = None
        self._probing = asyncio.Lock()

    async def answer(self, index: int, request: Request) -> Answered:
        """All completions of a request."""
        continuation = await self._probed() if request.prefix else None
        try:
            body = self._body(request, continuation)
        except DataError as error:  # an image that is not there
            return index, [failed(error)] * request.n
        completions = await self._completions(body, request)
        if continuation is not None:
            completions = [continuation.without_prefix(completion, request.prefix) for completion in completions]
        return index, completions

    async def _probed(self) -> Continuation:
        """How the server continues an answer; the first request that needs it finds out."""

        async def ask(request: Request, continuation: Continuation) -> Reply:
            return await self._post(self._body(request, continuation), request.seed)

        async with self._probing:
            if self._continuation is None:
                self._continuation = await find_continuation(ask, url=self._url, template=self._sampler.template)
            return self._continuation

    def _body(self, request: Request, continuation: Continuation | None) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._sampler.name,
            "messages": chat_messages(request, end_mark=continuation.end_mark if continuation else ""),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        fields, extra = continuation.fields if continuation else {}, dict(self._sampler.settings["extra_body"])
        if (name := "chat_template_kwargs") in fields and name in extra:
            extra[name] = extra[name] | fields[name]
        return body | fields | extra

    async def _completions(self, body: dict[str, Any], request: Request) -> list[Completion]:
        completions: list[Completion] = []
        is_batched = request.n > 1 and self._takes_n
        if is_batched:
            try:
                reply = await self._post(body | {"n": request.n}, request.seed)
                completions = reply.completions[: request.n]
            except RejectedError:
                pass  # perhaps for n alone: the first answer by itself will tell
            except RequestError as error:
                return [failed(error)] * request.n
        if not completions:
            completions = [await self._completion(body, request.seed)]
            if completions[0].finish_reason == "error":
                return completions * request.n
        if is_batched and len(completions) < request.n:
            self._takes_n = False
        # the first seed is the request's own, whether sent alone or with n: the same request gets the same answers
        # before and after it was learnt that the server takes no n
        seeds = [derived_seed(request.seed, number) for number in range(len(completions), request.n)]
        return completions + await asyncio.gather(*(self._completion(body, seed) for seed in seeds))

    async def _completion(self, body: dict[str, Any], seed: int) -> Completion:
        try:
            return (await self._post(body, seed)).completions[0]
        except RequestError as error:
            return failed(error)

    async def _post(self, body: dict[str, Any], seed: int) -> Reply:
        """The reply; `RequestError` concerns this post, `MprmError` all."""
        self.n_posts += 1
        try:
            async with self._slots:
                return await self._replied(body | {"seed": seed})
        finally:
            self.n_posts -= 1

    async def _replied(self, body: dict[str, Any]) -> Reply:
        sent = for_transformers_serve(body) if self._is_transformers_serve else body
        n_tries = self._options.retries + 1
        problem = ""
        for number in range(n_tries):
            await asyncio.sleep(HEALTH_CHECK_S * number)
            try:
                reply = await self.client.post(
                    "/chat/completions",
                    body=sent,
                    cast_to=ChatCompletion,
                    options={"headers": {"Authorization": openai.Omit()}},
                )
                return _reply(reply)
            except openai.APIStatusError as error:
                status, text = error.status_code, f"HTTP {error.status_code}: {_said(error.response)}"
                if status == 422 and UNKNOWN_FIELDS in text and for_transformers_serve(body) != sent:
                    self._is_transformers_serve = True
                    return await self._replied(body)
                if status in HOPELESS:
                    hint = "See --server, --served-model and --api-key-env"
                    raise ConfigError(f"{self._url} refuses: {text}. {hint}") from None
                if "top_k" in text and status in (400, 422):
                    raise ConfigError(f"{self._url} takes no top_k ({text}); leave it out with --top-k 0") from None
                if status < 500 and status not in (408, 409, 429):  # which the openai client retries
                    raise RejectedError(text) from None
                raise RequestError(f"{n_tries} tries failed, the last with {text}") from None
            except openai.APIConnectionError as error:
                raise RequestError(f"{n_tries} tries failed, the last with {_problem(error.__cause__)}") from None
            except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                problem = f"a reply that is no chat completion: {type(error).__name__} {error}"
        raise RequestError(f"{n_tries} tries failed, the last with {problem}")


class _PatientClient(httpx2.AsyncClient):
    """Waits for a server that stopped answering before it sends a request; the openai client above it retries."""

    def __init__(self, url: str, model: str, options: ServerOptions, api_key: str | None) -> None:
        super().__init__(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(options.timeout_s, connect=min(options.timeout_s, 30.0)),
            # one more for health checks, which run while all others wait
            limits=httpx2.Limits(max_connections=options.concurrency + 1, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._url, self._model, self._options = url, model, options
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._outage: asyncio.Task[None] | None = None
        self._first_sent_at = self._answered_at = 0.0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The response; `MprmError` where the server stays away."""
        if self._outage is not None:
            await asyncio.shield(self._outage)
        sent_at = time.monotonic()
        self._first_sent_at = self._first_sent_at or sent_at
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            is_refused = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            is_late = time.monotonic() - self._first_sent_at > UNREACHABLE_AFTER_S
            if is_refused and is_late and not self._answered_at:
                raise MprmError(f"no server answers at {self._url} ({_problem(error)}); is it up?") from None
            self._lost(_problem(error), sent_at)
            raise
        if response.status_code in UNAVAILABLE:
            self._lost(f"HTTP {response.status_code}: {_said(response)}", sent_at)
        else:
            self._answered()
        return response

    def _answered(self) -> None:
        self._answered_at = time.monotonic()
        self._is_up.set()

    def _lost(self, problem: str, sent_at: float) -> None:
        if self._answered_at and self._is_up.is_set():
            self._is_up.clear()
            # a server that nobody asked anything for long may have been there until now
            since = max(sent_at, self._answered_at)
            self._outage = asyncio.create_task(self._until_up(since, problem))

    async def _until_up(self, since: float, problem: str) -> None:
        patience_s, pause_s, is_announced = self._options.patience_s, HEALTH_CHECK_S, False
        while (left_s := since + patience_s - time.monotonic()) > 0:
            if not is_announced and patience_s - left_s > ANNOUNCE_AFTER_S:
                is_announced = True
                waiting = f"waiting for it, up to {patience_s:g} s"
                print(f"{self._url} does not answer ({problem}); {waiting}", file=sys.stderr)
            with contextlib.suppress(TimeoutError):
                # another request, sent before, may still be answered
                await asyncio.wait_for(self._is_up.wait(), min(random.uniform(0.5, 1.0) * pause_s, left_s))
            if self._is_up.is_set() or await self._is_healthy(left_s):
                if is_announced:
                    print(f"{self._url} is back", file=sys.stderr)
                return self._answered()
            pause_s = min(2 * pause_s, MAX_HEALTH_CHECK_S)
        raise MprmError(
            f"{self._url} has not answered for {patience_s:g} s ({problem}). What is done is saved; the same command"
            " continues when the server is up again"
        )

    async def _is_healthy(self, left_s: float) -> bool:
        """Whether the server answers the shortest of requests."""
        body: dict[str, Any] = {"model": self._model, "messages": [{"role": "user", "content": "."}]}
        body |= {"max_tokens": 1, "temperature": 0, "seed": 0}
        timeout_s = min(self._options.timeout_s, left_s)
        try:
            response = await super().send(self.build_request("POST", self._url, json=body, timeout=timeout_s))
        except httpx2.TransportError:
            return False
        return response.status_code not in UNAVAILABLE


def _problem(error: BaseException | None) -> str:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"no connection: {error or type(error).__name__}"
    return f"{type(error).__name__}: {error}"


def _said(response: httpx2.Response) -> str:
    """The text of a response that is no answer, in one line."""
    text = printable(" ".join(response.text.split()))
    return text if len(text) <= 300 else text[:299] + "…"


def for_transformers_serve(body: dict[str, Any]) -> dict[str, Any]:
    """The request with ``top_k``, and whether tokens are sampled at all, in a generation config.

    ``transformers serve`` reads them nowhere else, and decodes greedily, at any temperature, where neither the
    request nor the checkpoint's ``generation_config.json`` says ``do_sample``.
    """
    settings = {"do_sample": body["temperature"] > 0, "top_k": body.get("top_k", 0)}
    given = json.loads(body.get("generation_config") or "{}")
    rest = {name: value for name, value in body.items() if name != "top_k"}
    return rest | {"generation_config": json.dumps(settings | given)}


def _reply(reply: ChatCompletion) -> Reply:
    """The completions of a reply; the client does not validate it, so any error of a lookup may be raised."""
    n_tokens, n_prompt_tokens = None, None
    if reply.usage is not None:
        n_tokens, n_prompt_tokens = reply.usage.completion_tokens, reply.usage.prompt_tokens
    n = len(reply.choices)
    shares: list[int | None] = [None] * n
    if isinstance(n_tokens, int) and n_tokens >= 0:  # a server tells the sum of all answers
        shares = [n_tokens // n + (number < n_tokens % n) for number in range(n)]
    completions = [_completion(choice, share) for choice, share in zip(reply.choices, shares, strict=True)]
    if not completions:
        raise ValueError("it holds no choices")
    return Reply(completions, n_prompt_tokens if isinstance(n_prompt_tokens, int) else None)


def _completion(choice: Choice, n_tokens: int | None) -> Completion:
    text, reason = choice.message.content, choice.finish_reason
    if reason not in FINISH_REASONS:
        return failed(f"the server ended the answer with finish_reason {reason!r}; expected stop or length")
    if not isinstance(text, str):
        return failed(f"the server's message has content {text!r}; expected text")
    return Completion(text=text, finish_reason=FINISH_REASONS[reason], n_tokens=n_tokens)


def chat_messages(request: Request, *, end_mark: str = "") -> list[dict[str, Any]]:
    """The user's turn, with each image at its mark in the prompt, and the prefix where there is one."""
    content: str | list[dict[str, Any]] = request.prompt
    if request.images:
        content = []
        for piece in place_images(request.prompt, len(request.images)):
            if isinstance(piece, int):
                content.append({"type": "image_url", "image_url": {"url": _data_url(request.images[piece])}})
            elif text := piece.strip():
                content.append({"type": "text", "text": text})
    messages = [{"role": "user", "content": content}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix + end_mark})
    return messages


def _data_url(image: Any) -> str:
    """A ``data:`` URL with the bytes of an image file, or with a PIL image as PNG."""
    buffer = io.BytesIO()
    if isinstance(image, str | Path):
        try:
            buffer = io.BytesIO(Path(image).read_bytes())
            with Image.open(buffer, formats=("PNG", "JPEG", "WEBP", "GIF", "BMP")) as opened:
                mime = opened.get_format_mimetype()  # names often lie about it
        except UnidentifiedImageError:
            raise DataError(f"image {str(image)!r} is no PNG, JPEG, WebP, GIF or BMP file") from None
        except OSError as error:
            raise DataError(f"image {str(image)!r} cannot be read: {error.strerror}; see --image-root") from error
    else:
        image.save(buffer, format="PNG")
        mime = "image/png"
    return f"data:{mime};base64,{base64.b64encode(buffer.getvalue()).decode()}"

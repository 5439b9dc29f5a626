"""Policies behind a server that speaks the OpenAI protocol: vLLM, SGLang, transformers serve and others.

The openai client does retries, time-outs and connections; this adds what it does not: continue a prefix in place,
wait for a server that stopped answering, make up for one without ``n``, turn failures into completions. A server that
opened a new turn instead of continuing an answer would give wrong labels in silence: probes, answers of one token,
show by their number of prompt tokens what it does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import io
import json
import random
import sys
import time
import warnings
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mprm.annotation.samplers.sampler import (
    Answered,
    Completion,
    FinishReason,
    Request,
    SamplingParams,
    ServerOptions,
    derived_seed,
    failed,
    numbered,
)
from mprm.config import ConnectionOptions, takes
from mprm.data.images import place_images
from mprm.data.output import printable
from mprm.errors import ConfigError, DataError, MissingDependencyError, MprmError, shown

try:
    import httpx2
    import openai
    from anyio.from_thread import start_blocking_portal
    from openai.types.chat import ChatCompletion
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    raise MissingDependencyError(f"a server needs {error.name}: install mprm with its extra [annotate]") from error

KEEP_ALIVE_S = 2.0  # servers close idle connections after five seconds; one closed as it is used looks like a crash
UNREACHABLE_AFTER_S = 2.0  # a server that never answered is not waited for
HEALTH_CHECK_S, MAX_HEALTH_CHECK_S = 1.0, 10.0  # first and longest wait before a silent server is asked again
ANNOUNCE_AFTER_S = 3.0
MIN_REPLY_BYTES, BYTES_PER_TOKEN = 1 << 18, 16  # a reply has at most the first, and the second a token
MAX_ERROR_BYTES = 1 << 16  # what is read of a response that is no answer
MAX_TOKENS = 2**31  # a server that counts more is not believed
max_reply_bytes = contextvars.ContextVar("max_reply_bytes", default=MIN_REPLY_BYTES)  # of the request that is sent
UNAVAILABLE = frozenset({502, 503, 504})  # said in the server's place while the server is away
RETRY_HEADERS = ("Retry-After", "Retry-After-Ms", "X-Should-Retry")  # what the openai client reads besides the type
HOPELESS = frozenset({401, 403, 404, 405})  # rejections that every other request would get as well
STOP_REASONS = ("stop", "eos_token", "stop_sequence")
STOP_FIELDS = ("stop_reason", "matched_stop")  # where vLLM and SGLang tell which stop string an answer came to
UNKNOWN_FIELDS = "Unexpected fields in the request"  # so says transformers serve; other servers use other words
END_MARK = "<mprm: the answer goes on here>"
"""Follows the prefix; what the chat template renders from here on is cut off."""
# ends in a letter, which no tokenizer merges with the line ends that follow
PROBE = Request(
    prompt="How long is the bar?",
    prefix="The bar on the left is seven units long",
    sampling=SamplingParams(temperature=0, top_k=0, max_new_tokens=1),
)


class RequestError(Exception):
    """One request has no reply: the server rejects it, or all retries failed."""


class RejectedError(RequestError):
    """The server does not take this request, however often it is sent."""


class UntoldStopError(Exception):
    """The server does not tell whether an answer ended or came to a stop string."""


# at least one answer, and the number of prompt tokens, which servers need not tell
Reply = tuple[list[Completion], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What goes with a request that has a prefix, and what the server does to the prefix."""

    name: str
    fields: dict[str, Any]
    end_mark: str = ""
    is_echoed: bool = False
    is_trimmed: bool = False  # white space at the end of the prefix is lost

    def without_prefix(self, completion: Completion, prefix: str) -> Completion:
        text = completion.text
        if self.is_echoed and completion.finish_reason != "error":
            # transformers serve strips white space from both ends of what it echoes
            echo = next((echo for echo in (prefix, prefix.lstrip()) if text.startswith(echo)), None)
            if echo is None and text != prefix.strip():
                return failed("the server repeats the prefix of answers, but not of this one; is it another server?")
            text = "" if echo is None else text[len(echo) :]
        if self.is_trimmed:
            text = text.removeprefix(prefix[len(prefix.rstrip()) :])
        return replace(completion, text=text)


NOTHING = Continuation(name="nothing", fields={})
CLOSED = replace(NOTHING, fields={"add_generation_prompt": False})
BY_FIELD = Continuation(name="continue_final_message", fields=CLOSED.fields | {"continue_final_message": True})
"""vLLM and SGLang."""


class HTTPSampler:
    """Samples from a chat server, many requests at a time; docs/annotation.md says what differs between servers.

    Before the first request with a prefix, the server is probed; one that would open a new turn instead of continuing
    it is refused with `ConfigError`. A server that stopped answering (connection refused or dropped, time-out, 502,
    503, 504) is waited for; after ``patience_s`` `MprmError` is raised. Each outage costs a request one retry.

    ``url`` is ``http://localhost:8000`` or ``…/v1``; ``extra_body`` are more fields for every request. Of the
    `ServerOptions`, ``chat_template`` is needed only to continue answers on ``transformers serve``, and not even
    there where ``model`` is the checkpoint's folder on this machine.
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
        check_server(url, api_key)
        self.base_url = url.rstrip("/") if httpx2.URL(url).path.strip("/") else url.rstrip("/") + "/v1"
        self.name, self.api_key, self.options = model, api_key, ServerOptions.of(None, options)
        self.template: str | None = None
        if self.options.chat_template is not None:
            self.template = read_chat_template(self.options.chat_template)
        elif (Path(model) / "config.json").is_file():
            with contextlib.suppress(ConfigError):  # the server may do without
                self.template = read_chat_template(model)
        self.settings = {"extra_body": dict(extra_body or {})}

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        todo, session = numbered(requests), _Session(self)
        # some more than are in flight, which are sent as soon as others are answered
        n_ahead = self.options.concurrency + 1 + self.options.concurrency // 8
        pending: set[Future[Answered]] = set()
        with start_blocking_portal(name="mprm-server") as portal, portal.wrap_async_context_manager(session.client):
            try:
                while True:
                    while max(len(pending), session.n_posts) < n_ahead and (item := next(todo, None)) is not None:
                        pending.add(portal.start_task_soon(session.answer, *item))
                    if not pending:
                        return
                    done: set[Future[Answered]] = set()
                    while not done:  # not for ever: Ctrl-C does not wake this thread where another gets the signal
                        done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    if answered := [future.result() for future in done if future.exception() is None]:
                        yield answered
                    for future in done:
                        future.result()  # raises the first error, after all that was answered before it
            finally:
                for future in pending:
                    future.cancel()


def check_server(url: str, api_key: str | None) -> None:
    """Raise an error where this can be no server's URL, or no API key."""
    try:
        parsed = httpx2.URL(url)
        is_server = parsed.scheme in ("http", "https") and parsed.host and 0 < (parsed.port or 80) < 65536
    except (ValueError, httpx2.InvalidURL):
        is_server = False
    if not is_server:
        raise ConfigError(f"{url!r} is no server; expected something like http://localhost:8000/v1")
    if api_key is not None and not api_key.isascii():
        raise ConfigError("the API key holds letters beyond ASCII, which no HTTP header can; is it right?")


class _Session:
    """Answers requests, each with as many posts as it takes, and remembers what it learns of the server."""

    def __init__(self, sampler: HTTPSampler) -> None:
        self.n_posts = 0  # posts in flight, or waiting for their turn
        self._sampler, self._n_tries = sampler, sampler.options.retries + 1
        self._url = f"{sampler.base_url}/chat/completions"
        self.client = openai.AsyncOpenAI(
            base_url=sampler.base_url,
            api_key="in the headers of http_client",  # where there is none, not even that of the environment is sent
            max_retries=sampler.options.retries,
            http_client=PatientClient(self._url, sampler.options, sampler.api_key, health_check(sampler.name)),
        )
        self._slots, self._probing = asyncio.Semaphore(sampler.options.concurrency), asyncio.Lock()
        self._takes_n, self._takes_stop, self._is_transformers_serve = True, True, False
        self._continuation: Continuation | None = None

    async def answer(self, index: int, request: Request) -> Answered:
        continuation = NOTHING
        max_reply_bytes.set(MIN_REPLY_BYTES + BYTES_PER_TOKEN * request.n * request.sampling.max_new_tokens)
        if request.prefix:
            async with self._probing:  # the first request that needs it finds out
                self._continuation = self._continuation or await self._find_continuation()
            continuation = self._continuation
        try:
            try:
                completions = await self._completions(self._body(request, continuation), request)
            except UntoldStopError:
                if self._takes_stop:
                    self._takes_stop = False
                    untold = "does not tell whether an answer ended or came to a stop string"
                    warnings.warn(f"{self._url} {untold}: it samples whole answers, which are cut here", stacklevel=2)
                completions = await self._completions(self._body(request, continuation), request)
        except (DataError, RequestError) as error:  # an image that is not there; no reply
            return index, [failed(error)] * request.n
        completions = [continuation.without_prefix(completion, request.prefix) for completion in completions]
        return index, [cut_at(completion, request.stop) for completion in completions]

    async def _find_continuation(self) -> Continuation:
        """The field is tried first, then the policy's chat template, changed so that it leaves the last turn open."""
        template = self._sampler.template
        try:
            return await self._working(BY_FIELD, CLOSED)
        except RequestError as error:
            problem = f"{self._url} cannot continue an answer: {error}"
        if template is None:
            raise ConfigError(
                f"{problem}. vLLM and SGLang can; transformers serve can with the policy's chat template: name the"
                " checkpoint's folder, or the template's file, with --chat-template (in Python: chat_template)"
            )
        fields = {"chat_template_kwargs": {"chat_template": open_template(template)}}
        by_template = Continuation(name="a chat template of its own", fields=fields, end_mark=END_MARK)
        given = replace(NOTHING, fields={"chat_template_kwargs": {"chat_template": template}})
        try:
            continuation = await self._working(by_template, NOTHING)
            (_, n_own), (_, n_given) = [await self._probe(PROBE, way) for way in (NOTHING, given)]
        except RequestError as error:
            raise ConfigError(f"{problem}, and {error}; use vLLM or SGLang") from None
        if n_own != n_given:
            raise ConfigError(
                f"the chat template is not the one that {self._url} uses: a chat has {n_given} tokens with it and"
                f" {n_own} with the server's own; name that of the served checkpoint with --chat-template"
            )
        return continuation

    async def _working(self, way: Continuation, closed: Continuation) -> Continuation:
        """The way, with what the server does to the prefix; `RequestError` where it does not continue it."""
        [answer, *_], n_open = await self._probe(PROBE, way)
        _, n_closed = await self._probe(PROBE, closed)
        if n_open is None or n_closed is None:
            raise RequestError(f"it does not tell usage.prompt_tokens, so whether {way.name} works cannot be known")
        if n_open >= n_closed:
            counts = f"{n_open} prompt tokens with it, {n_closed} without"
            raise RequestError(f"it ignores {way.name} and would open a new turn ({counts})")
        _, n_longer = await self._probe(replace(PROBE, prefix=PROBE.prefix + "\n\n"), way)
        if n_longer == n_open:
            warnings.warn(
                "the server cuts white space off the end of a prefix, as chat templates that trim messages do:"
                " answers go on from the last word before it, not from the blank line after a step",
                stacklevel=2,
            )
        # one token is too short to repeat the prefix by chance
        return replace(way, is_echoed=answer.text.startswith(PROBE.prefix), is_trimmed=n_longer == n_open)

    async def _probe(self, request: Request, way: Continuation) -> Reply:
        try:
            return await self._post(self._body(request, way), request.seed)
        except RequestError as error:
            raise RequestError(f"it refuses {way.name} ({error})") from None

    def _body(self, request: Request, continuation: Continuation) -> dict[str, Any]:
        sampling = request.sampling
        # where the end of the prefix is cut off, answers begin with the stop string
        is_stopped = request.stop and self._takes_stop and not continuation.is_trimmed
        body = {
            "model": self._sampler.name,
            "messages": chat_messages(request, end_mark=continuation.end_mark),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **({"stop": [request.stop]} if is_stopped else {}),
        }
        fields, extra = continuation.fields, dict(self._sampler.settings["extra_body"])
        if (name := "chat_template_kwargs") in fields and name in extra:
            extra[name] = extra[name] | fields[name]
        return body | fields | extra

    async def _completions(self, body: dict[str, Any], request: Request) -> list[Completion]:
        completions: list[Completion] = []
        is_batched = request.n > 1 and self._takes_n
        if is_batched:
            with contextlib.suppress(RejectedError):  # perhaps for n alone: the first answer by itself will tell
                completions, _ = await self._post(body | {"n": request.n}, request.seed)
        if not completions:
            completions = (await self._post(body, request.seed))[0][:1]
        if completions[0].finish_reason == "error" and len(completions) < request.n:
            return [completions[0]] * request.n  # the question fails: the others would be for nothing
        if is_batched and len(completions) < request.n:
            self._takes_n = False
        # the first seed is the request's own, whether sent alone or with n: the same request gets the same answers
        # before and after it was learnt that the server takes no n
        seeds = [derived_seed(request.seed, number) for number in range(len(completions), request.n)]
        return completions[: request.n] + await asyncio.gather(*(self._completion(body, seed) for seed in seeds))

    async def _completion(self, body: dict[str, Any], seed: int) -> Completion:
        try:
            return (await self._post(body, seed))[0][0]
        except RequestError as error:
            return failed(error)

    async def _post(self, body: dict[str, Any], seed: int) -> Reply:
        """The reply; `RequestError` concerns this post, `MprmError` all."""
        problem = ""
        self.n_posts += 1
        try:
            async with self._slots:
                for number in range(self._n_tries):
                    await asyncio.sleep(HEALTH_CHECK_S * number)
                    try:
                        return _reply(await self._sent(body | {"seed": seed}), body.get("stop"))
                    except MprmError:
                        raise
                    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                        problem = f"a reply that is no chat completion: {describe(error)}"
                raise RequestError(f"{self._n_tries} tries failed, the last with {problem}")
        finally:
            self.n_posts -= 1

    async def _sent(self, body: dict[str, Any]) -> ChatCompletion:
        sent = for_transformers_serve(body) if self._is_transformers_serve else body
        options: Any = {"headers": {"Authorization": openai.Omit()}}
        failure = f"{self._n_tries} tries failed, the last with"
        try:
            return await self.client.post("/chat/completions", body=sent, cast_to=ChatCompletion, options=options)
        except openai.APIConnectionError as error:
            raise RequestError(f"{failure} {describe(error.__cause__)}") from None
        except openai.APIStatusError as error:
            status, text = error.status_code, response_text(error.response)
        if status == 422 and UNKNOWN_FIELDS in text and for_transformers_serve(body) != sent:
            self._is_transformers_serve = True
            return await self._sent(body)
        if status in HOPELESS:
            raise ConfigError(f"{self._url} refuses: {text}. See --server, --served-model and --api-key-env")
        if "top_k" in text and status in (400, 422):
            raise ConfigError(f"{self._url} takes no top_k ({text}); leave it out with --top-k 0")
        if status < 500 and status not in (408, 409, 429):  # which the openai client retries
            raise RejectedError(text)
        raise RequestError(f"{failure} {text}")


def health_check(model: str) -> dict[str, Any]:
    """The body of a request that a chat server answers with one token."""
    return {"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}


class PatientClient(httpx2.AsyncClient):
    """Waits for a server that stopped answering before it sends a request; the openai client above it retries.

    While it waits it posts ``health_check`` to ``url``. One that never answered, and is not known, is not waited for.
    """

    def __init__(
        self,
        url: str,
        options: ConnectionOptions,
        api_key: str | None,
        health_check: Mapping[str, Any],
        *,
        is_known: bool = False,
    ) -> None:
        super().__init__(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(options.timeout_s, connect=min(options.timeout_s, 30.0)),
            # one more for health checks, which run while all others wait
            limits=httpx2.Limits(max_connections=options.concurrency + 1, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._url, self._health_check, self._options = url, health_check, options
        self._outage: asyncio.Task[None] | None = None
        self._first_sent_at, self._answered_at = 0.0, time.monotonic() if is_known else 0.0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._outage is not None:
            await asyncio.shield(self._outage)
        sent_at = time.monotonic()
        self._first_sent_at = self._first_sent_at or sent_at
        try:
            response = await self._received(request, self._options.timeout_s, **options)
        except httpx2.TransportError as error:
            is_refused = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            is_late = time.monotonic() - self._first_sent_at > UNREACHABLE_AFTER_S
            if is_refused and is_late and not self._answered_at:
                raise MprmError(f"no server answers at {self._url} ({describe(error)}); is it up?") from None
            self._lost(describe(error), sent_at)
            raise
        if response.status_code in UNAVAILABLE:
            self._lost(response_text(response), sent_at)
        else:
            self._answered_at = time.monotonic()
        return response

    async def _received(self, request: httpx2.Request, timeout_s: float, **options: Any) -> httpx2.Response:
        """The response with all of its body, for which httpx itself has no limit of size nor one of total time."""
        body, deadline = bytearray(), time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                response = await super().send(request, **options | {"stream": True})
                limit = max_reply_bytes.get() if response.is_success else MAX_ERROR_BYTES
                try:
                    if "," in response.headers.get("Content-Encoding", ""):
                        raise RejectedError("the reply is compressed more than once")
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > limit:
                            break
                        if time.monotonic() > deadline:  # many small pieces come at once, without a pause between
                            raise TimeoutError
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole reply within {timeout_s:g} s", request=request) from None
        self.cookies.clear()  # they would pile up
        if response.is_success and len(body) > limit:
            raise RejectedError(f"the reply is over {limit / 2**20:.1f} MiB, more than such a reply can need")
        # without a charset, which need not be one of text
        headers = {name: response.headers[name] for name in RETRY_HEADERS if name in response.headers}
        headers["Content-Type"] = response.headers.get("Content-Type", "").split(";")[0]
        return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    async def aclose(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
            await asyncio.wait([self._outage])
        await super().aclose()

    def _lost(self, problem: str, sent_at: float) -> None:
        if self._answered_at and (self._outage is None or self._outage.done()):
            # a server that nobody asked anything for long may have been there until now
            self._outage = asyncio.create_task(self._until_up(max(sent_at, self._answered_at), problem))

    async def _until_up(self, since: float, problem: str) -> None:
        """Return when the server answers a health check; these come at growing intervals."""
        patience_s, pause_s, is_announced = self._options.patience_s, HEALTH_CHECK_S, False
        while (left_s := since + patience_s - time.monotonic()) > 0:
            timeout_s = min(self._options.timeout_s, left_s)
            with contextlib.suppress(httpx2.RequestError, RequestError):
                response = await self._received(
                    self.build_request("POST", self._url, json=self._health_check), timeout_s
                )
                if response.status_code not in UNAVAILABLE:
                    if is_announced:
                        print(f"{self._url} is back", file=sys.stderr)
                    return
            if not is_announced and patience_s - left_s > ANNOUNCE_AFTER_S:
                is_announced = True
                waiting = f"{self._url} does not answer ({problem}); waiting for it, up to {patience_s:g} s"
                print(waiting, file=sys.stderr)
            await asyncio.sleep(min(random.uniform(0.5, 1.0) * pause_s, left_s))
            pause_s = min(2 * pause_s, MAX_HEALTH_CHECK_S)
        text = f"{self._url} has not answered for {patience_s:g} s ({problem}). What is done is saved"
        raise MprmError(f"{text}; the same command continues when the server is up again")


def describe(error: BaseException | None) -> str:
    """Kind and text of an error, safe to print."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"no connection: {error or type(error).__name__}"
    return f"{type(error).__name__}: {_one_line(str(error))}"


def response_text(response: httpx2.Response) -> str:
    """Status and text of a response that is no answer."""
    return f"HTTP {response.status_code}: {_one_line(response.text)}"


def _one_line(text: str) -> str:
    """The beginning of what a server said, safe to print; cut first, as escapes of 50 MB take half a minute."""
    text = printable(" ".join(text[:1000].split()))
    return text if len(text) <= 300 else text[:299] + "…"


def for_transformers_serve(body: dict[str, Any]) -> dict[str, Any]:
    """The request with ``top_k`` and ``do_sample`` in a generation config.

    ``transformers serve`` reads them nowhere else, and decodes greedily, at any temperature, where nothing says so.
    """
    settings = {"do_sample": body["temperature"] > 0, "top_k": body.get("top_k", 0)}
    given = json.loads(body.get("generation_config") or "{}")
    rest = {name: value for name, value in body.items() if name != "top_k"}
    return rest | {"generation_config": json.dumps(settings | given)}


def cut_at(completion: Completion, stop: str) -> Completion:
    """The completion up to the stop string, where it holds that."""
    text, found, _ = completion.text.partition(stop) if stop else (completion.text, "", "")
    return replace(completion, text=text, finish_reason="stop_string") if found else completion


def _reply(reply: ChatCompletion, stop: list[str] | None = None) -> Reply:
    """The completions of a reply; the client does not validate it, so any error of a lookup may be raised."""
    n_tokens, n_prompt_tokens = (_count(reply.usage, name) for name in ("completion_tokens", "prompt_tokens"))
    n, completions = len(reply.choices), []
    for number, choice in enumerate(reply.choices):
        text, reason = choice.message.content, choice.finish_reason
        if reason not in (*STOP_REASONS, "length"):
            completion = failed(f"the server's answer has finish_reason {shown(reason)}; expected stop or length")
        elif not isinstance(text, str):
            completion = failed(f"the server's message has content {shown(text)}; expected text")
        else:
            text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be written
            told = choice.model_extra or {}
            if stop and reason != "length" and not told.keys() & set(STOP_FIELDS):
                raise UntoldStopError
            is_cut = any(told.get(name) in (stop or ()) for name in STOP_FIELDS)
            ended: FinishReason = "length" if reason == "length" else "stop_string" if is_cut else "stop"
            # a server tells the sum of all answers
            share = None if n_tokens is None else n_tokens // n + (number < n_tokens % n)
            completion = Completion(text=text, finish_reason=ended, n_tokens=share)
        completions.append(completion)
    if not completions:
        raise ValueError("it holds no choices")
    return completions, n_prompt_tokens


def _count(usage: object, name: str) -> int | None:
    """A number of tokens, where the server tells one that can be."""
    n = getattr(usage, name, None)
    return n if isinstance(n, int) and 0 <= n < MAX_TOKENS else None


def chat_messages(request: Request, *, end_mark: str = "") -> list[dict[str, Any]]:
    """The user's turn, with each image at its mark in the prompt, and the prefix where there is one."""
    content: list[dict[str, Any]] = []
    for piece in place_images(request.prompt, len(request.images)):
        if isinstance(piece, int):
            content.append({"type": "image_url", "image_url": {"url": data_url(request.images[piece])}})
        elif text := piece.strip():
            content.append({"type": "text", "text": text})
    messages: list[dict[str, Any]] = [{"role": "user", "content": content if request.images else request.prompt}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix + end_mark})
    return messages


def data_url(image: Any) -> str:
    """A ``data:`` URL with the bytes of an image file, or with a PIL image as PNG."""
    buffer, mime = io.BytesIO(), "image/png"
    if not isinstance(image, str | Path):
        image.save(buffer, format="PNG")
    else:
        try:
            buffer = io.BytesIO(Path(image).read_bytes())
            with Image.open(buffer, formats=("PNG", "JPEG", "WEBP", "GIF", "BMP")) as opened:
                mime = opened.get_format_mimetype() or mime  # names often lie about it
        except UnidentifiedImageError:
            raise DataError(f"image {str(image)!r} is no PNG, JPEG, WebP, GIF or BMP file") from None
        except OSError as error:
            raise DataError(f"image {str(image)!r} cannot be read: {error.strerror}; see --image-root") from error
    return f"data:{mime};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def open_template(template: str) -> str:
    """The template, cut where the last message is marked with `END_MARK`, so that its turn stays open.

    The whole chat is rendered first, without the opening of a new turn. White space before the mark stays even where
    the template trims messages: the mark is their end then.
    """
    # the line end belongs to the tag before it, so that the template starts at the start of a line as before
    before = "{%- set add_generation_prompt = false %}{%- set mprm_chat %}\n"
    return before + template + "{%- endset %}{{- mprm_chat.rsplit('" + END_MARK + "', 1)[0] -}}"


def read_chat_template(path: str | Path) -> str:
    """The chat template of a checkpoint's folder, or that in a file: Jinja, or JSON with a ``chat_template``."""
    path = Path(path).expanduser()
    if not path.exists():
        raise ConfigError(f"{path}: no such file; expected a chat template, or a checkpoint that has one")
    names = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
    for file in [path / name for name in names] if path.is_dir() else [path]:
        template: Any = file.read_text(encoding="utf-8") if file.is_file() else None
        if template and file.suffix == ".json":
            try:
                template = json.loads(template).get("chat_template")
            except (ValueError, AttributeError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if isinstance(template, str) and template:
            return template
    raise ConfigError(f"{path} has no chat template: looked for chat_template.jinja and in tokenizer_config.json")

"""Images as text, for servers.

The messages that a chat server is sent.

What a chat server replies.

Chat templates: where a checkpoint keeps its own, and how one is made to leave the last turn open.

How a server is brought to continue an answer in place.

What ``transformers serve`` wants otherwise.

Where a chat server is, and how it is spoken to.
"""

from __future__ import annotations

import base64
import io
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.annotation.samplers.sampler import Completion, FinishReason, Request, SamplingParams
from mprm.data.images import place_images
from mprm.errors import ConfigError, DataError, printable

if TYPE_CHECKING:
    import httpx


MIME = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"BM": "image/bmp"}
"""Kinds of image by their first bytes: names often lie about it."""


def data_url(image: Any) -> str:
    """A ``data:`` URL with the bytes of an image file, or with a PIL image as PNG."""
    if isinstance(image, str | Path):
        try:
            data = Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"image {str(image)!r} cannot be read: {error.strerror}; see --image-root") from error
        kind = _kind(data)
        if kind is None:
            raise DataError(f"image {str(image)!r} is no PNG, JPEG, WebP, GIF or BMP file")
    else:
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        data, kind = buffer.getvalue(), "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in MIME.items() if data.startswith(start)), None)


def chat_messages(request: Request, *, end_mark: str = "") -> list[dict[str, Any]]:
    """One user turn, and the beginning of the answer where there is one, to the letter; a mark may follow it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(request.prompt, request.images)}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix + end_mark})
    return messages


def _content(prompt: str, images: tuple[Any, ...]) -> str | list[dict[str, Any]]:
    """Text, or text and images: each at its mark, or all before the text where the marks do not fit one to one."""
    if not images:
        return prompt
    parts: list[dict[str, Any]] = []
    for piece in place_images(prompt, len(images)):
        parts += _text(piece) if isinstance(piece, str) else [_image(images[piece])]
    return parts


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text.strip()}] if text.strip() else []


def _image(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
}


class RefusedError(Exception):
    """The server does not take this request, however often it is asked."""


class MalformedError(Exception):
    """The reply is no chat completion."""


class GaveUpError(Exception):
    """All tries failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A chat completion."""

    completions: tuple[Completion, ...]
    """At least one."""
    n_prompt_tokens: int | None
    """None where the server does not say."""


def chat_reply(response: httpx.Response) -> Reply:
    """The completions of a response with status 200."""
    try:
        record = response.json()
        choices, usage = record["choices"], record.get("usage") or {}
        tokens = _shared(usage.get("completion_tokens"), len(choices))
        completions = tuple(_completion(choice, n) for choice, n in zip(choices, tokens, strict=True))
        n_prompt_tokens = usage.get("prompt_tokens")
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MalformedError(f"{type(error).__name__} {error}") from error
    if not completions:
        raise MalformedError("it holds no choices")
    return Reply(
        completions=completions, n_prompt_tokens=n_prompt_tokens if isinstance(n_prompt_tokens, int) else None
    )


def _shared(n_tokens: Any, n: int) -> list[int | None]:
    """The tokens of all answers, shared out among them: a server tells their sum alone."""
    if not isinstance(n_tokens, int) or n_tokens < 0 or not n:
        return [None] * n
    return [n_tokens // n + (place < n_tokens % n) for place in range(n)]


def _completion(choice: Any, n_tokens: int | None) -> Completion:
    text, reason = choice["message"]["content"], choice.get("finish_reason")
    if reason not in FINISH_REASONS:
        return failed(f"the server ended the answer with finish_reason {reason!r}; expected stop or length")
    if not isinstance(text, str):
        return failed(f"the server's message has content {text!r}; expected text")
    return Completion(text=text, finish_reason=FINISH_REASONS[reason], n_tokens=n_tokens)


def failed(error: str) -> Completion:
    """No answer, and why."""
    return Completion(text="", finish_reason="error", error=error)


def said(response: httpx.Response) -> str:
    """The words of a response that is no answer, in one line."""
    text = printable(" ".join(response.text.split()))
    return text if len(text) <= 300 else text[:299] + "…"


def retry_after_s(response: httpx.Response) -> float:
    """How long the server asks to be left alone."""
    try:
        return max(0.0, float(response.headers.get("retry-after", 0)))
    except ValueError:  # a date: our own wait will do
        return 0.0


END_MARK = "<mprm: the answer goes on here>"
"""Follows the beginning of an answer; what the template renders from here on is cut off."""


def open_template(template: str) -> str:
    """The template, cut where the last message is marked with `END_MARK`, so that its turn stays open.

    The whole chat is rendered first, without the opening of a new turn. White space before the mark stays
    even where the template trims messages: the mark is their end then.
    """
    # the line end belongs to the tag before it, so that the template begins at the beginning of a line as before
    return (
        "{%- set add_generation_prompt = false %}{%- set mprm_chat %}\n"
        f"{template}"
        "{%- endset %}{{- mprm_chat.rsplit('" + END_MARK + "', 1)[0] -}}"
    )


def read_chat_template(path: str | Path) -> str:
    """The chat template of a checkpoint's folder, or that in a file: Jinja, or JSON with a ``chat_template``."""
    path = Path(path).expanduser()
    if path.is_dir():
        for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
            if (path / name).is_file() and (found := _of_file(path / name)) is not None:
                return found
        raise ConfigError(f"{path} has no chat template: looked for chat_template.jinja and in tokenizer_config.json")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a chat template, or a checkpoint that has one")
    found = _of_file(path)
    if found is None:
        raise ConfigError(f"{path} holds no chat_template")
    return found


def _of_file(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return text
    try:
        found: Any = json.loads(text).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if isinstance(found, list):  # several, by name
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


# it ends in a letter, with which no tokenizer joins the line ends that come after
TRIAL = Request(
    prompt="How long is the bar?",
    prefix="The bar on the left is seven units long",
    sampling=SamplingParams(temperature=0, top_k=0, max_new_tokens=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What goes with a request whose answer is begun, and what the server does to it."""

    name: str
    fields: dict[str, Any]
    """More fields of the request."""
    end_mark: str = ""
    """What follows the beginning of the answer."""
    is_echoed: bool = False
    """Completions repeat the beginning."""
    is_trimmed: bool = False
    """White space at the end of the beginning is lost."""

    def own_part(self, completion: Completion, prefix: str) -> Completion:
        """The completion without what it repeats of the answer's beginning."""
        if completion.finish_reason == "error":
            return completion
        text: str | None = completion.text
        if self.is_echoed:
            text = _without_echo(completion.text, prefix)
        if text is None:
            return failed("the server repeats the beginning of answers, but not of this one; is it another server?")
        if self.is_trimmed:
            text = text.removeprefix(prefix[len(prefix.rstrip()) :])
        return replace(completion, text=text)


def _without_echo(text: str, prefix: str) -> str | None:
    """What follows the prefix; ``transformers serve`` strips white space from both ends of what it echoes."""
    for begun in (prefix, prefix.lstrip()):
        if text.startswith(begun):
            return text[len(begun) :]
    return "" if text == prefix.strip() else None


BY_FIELD = Continuation(
    name="continue_final_message", fields={"continue_final_message": True, "add_generation_prompt": False}
)
"""vLLM and SGLang."""


def by_template(template: str) -> Continuation:
    """``transformers serve``, which takes a chat template with each request."""
    fields = {"chat_template_kwargs": {"chat_template": open_template(template)}}
    return Continuation(name="a chat template of its own", fields=fields, end_mark=END_MARK)


Ask = Callable[[Request, Continuation], Awaitable[Reply]]


class _TrialError(Exception):
    """Why a way does not work."""


async def find_continuation(ask: Ask, *, url: str, template: str | None) -> Continuation:
    """The way in which the server at ``url`` continues answers in place; `ConfigError` where it has none.

    The field is tried first, then the policy's chat ``template``, changed so that it leaves the last turn
    open. The trials are answers of one token.
    """
    try:
        return await _tried(ask, BY_FIELD, _with_fields(add_generation_prompt=False))
    except _TrialError as error:
        problem = f"{url} cannot continue an answer: {error}"
    if template is None:
        raise ConfigError(
            f"{problem}. vLLM and SGLang can; transformers serve can with the policy's chat template: name the"
            " checkpoint's folder, or the template's file, with --chat-template (in Python: chat_template)"
        )
    own, given = _with_fields(), _with_fields(chat_template_kwargs={"chat_template": template})
    try:
        found = await _tried(ask, by_template(template), own)
        n_own, n_given = [(await _trial(ask, TRIAL, way)).n_prompt_tokens for way in (own, given)]
    except _TrialError as error:
        raise ConfigError(f"{problem}, and {error}; use vLLM or SGLang") from None
    if n_own != n_given:
        raise ConfigError(
            f"the chat template is not the one that {url} uses: a chat has {n_given} tokens with it and {n_own}"
            " with the server's own; name the template of the checkpoint that is served with --chat-template"
        )
    return found


def _with_fields(**fields: Any) -> Continuation:
    return Continuation(name="nothing", fields=fields)


async def _tried(ask: Ask, way: Continuation, closed: Continuation) -> Continuation:
    """The way, with what the server does to the beginning of an answer."""
    reply = await _trial(ask, TRIAL, way)
    n_open, n_closed = reply.n_prompt_tokens, (await _trial(ask, TRIAL, closed)).n_prompt_tokens
    if n_open is None or n_closed is None:
        raise _TrialError(f"it does not tell usage.prompt_tokens, so whether {way.name} works cannot be known")
    if n_open >= n_closed:
        raise _TrialError(
            f"it ignores {way.name} and would open a new turn ({n_open} prompt tokens with it, {n_closed} without)"
        )
    longer = await _trial(ask, replace(TRIAL, prefix=TRIAL.prefix + "\n\n"), way)
    is_trimmed = longer.n_prompt_tokens == n_open
    if is_trimmed:
        warnings.warn(
            "the server cuts white space off the end of a begun answer, as chat templates that trim messages"
            " make it do: answers go on from the last word before it, not from the blank line after a step",
            stacklevel=2,
        )
    # one token is too short to say it all by chance
    is_echoed = reply.completions[0].text.startswith(TRIAL.prefix)
    return replace(way, is_echoed=is_echoed, is_trimmed=is_trimmed)


async def _trial(ask: Ask, request: Request, way: Continuation) -> Reply:
    try:
        return await ask(request, way)
    except (RefusedError, GaveUpError) as error:
        raise _TrialError(f"it refuses {way.name} ({error})") from None


UNKNOWN_FIELDS = "Unexpected fields in the request"
"""How it refuses fields that it does not know; other servers ignore them, or refuse in other words."""


def for_transformers_serve(body: dict[str, Any]) -> dict[str, Any]:
    """The request with ``top_k``, and whether tokens are drawn at all, in a generation config.

    It knows no other place for them, and takes the likeliest token always, at any temperature, where
    neither the request nor the checkpoint's ``generation_config.json`` says ``do_sample``.
    """
    how = {"do_sample": body["temperature"] > 0, "top_k": body.get("top_k", 0)}
    given = json.loads(body.get("generation_config") or "{}")
    rest = {name: value for name, value in body.items() if name != "top_k"}
    return rest | {"generation_config": json.dumps(how | given)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """See `HTTPSampler`."""

    base_url: str
    """Without ``/chat/completions``."""
    model: str
    api_key: str | None = None
    concurrency: int = 64
    timeout_s: float = 600.0
    retries: int = 6
    backoff_s: float = 1.0
    patience_s: float = 900.0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    """The policy's own, for servers that continue an answer only with its help."""

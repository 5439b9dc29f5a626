"""How a chat server is made to continue an answer in place: by a field of the request, or by a chat template.

A server that opened a new turn instead would give wrong labels in silence. Probes, answers of one token, show by
their number of prompt tokens what the server does.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mprm.annotation.samplers.sampler import Completion, Request, SamplingParams, failed
from mprm.errors import ConfigError

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


class Reply(NamedTuple):
    """A chat completion."""

    completions: list[Completion]
    """At least one."""
    n_prompt_tokens: int | None
    """None where the server does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What goes with a request that has a prefix, and what the server does to the prefix."""

    name: str
    fields: dict[str, Any]
    """More fields of the request."""
    end_mark: str = ""
    """What follows the prefix."""
    is_echoed: bool = False
    """Completions repeat the prefix."""
    is_trimmed: bool = False
    """White space at the end of the prefix is lost."""

    def without_prefix(self, completion: Completion, prefix: str) -> Completion:
        """The completion without what it repeats of the prefix."""
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

Ask = Callable[[Request, Continuation], Awaitable[Reply]]


async def find_continuation(ask: Ask, *, url: str, template: str | None) -> Continuation:
    """The way in which the server at ``url`` continues answers in place; `ConfigError` where it has none.

    The field is tried first, then the policy's chat ``template``, changed so that it leaves the last turn open.
    """
    try:
        return await _probed(ask, BY_FIELD, CLOSED)
    except RequestError as error:
        problem = f"{url} cannot continue an answer: {error}"
    if template is None:
        raise ConfigError(
            f"{problem}. vLLM and SGLang can; transformers serve can with the policy's chat template: name the"
            " checkpoint's folder, or the template's file, with --chat-template (in Python: chat_template)"
        )
    fields = {"chat_template_kwargs": {"chat_template": open_template(template)}}
    by_template = Continuation(name="a chat template of its own", fields=fields, end_mark=END_MARK)
    given = replace(NOTHING, fields={"chat_template_kwargs": {"chat_template": template}})
    try:
        continuation = await _probed(ask, by_template, NOTHING)
        n_own, n_given = [(await _probe(ask, PROBE, way)).n_prompt_tokens for way in (NOTHING, given)]
    except RequestError as error:
        raise ConfigError(f"{problem}, and {error}; use vLLM or SGLang") from None
    if n_own != n_given:
        raise ConfigError(
            f"the chat template is not the one that {url} uses: a chat has {n_given} tokens with it and {n_own}"
            " with the server's own; name the template of the checkpoint that is served with --chat-template"
        )
    return continuation


async def _probed(ask: Ask, way: Continuation, closed: Continuation) -> Continuation:
    """The way, with what the server does to the prefix; `RequestError` where it does not continue it."""
    reply = await _probe(ask, PROBE, way)
    n_open, n_closed = reply.n_prompt_tokens, (await _probe(ask, PROBE, closed)).n_prompt_tokens
    if n_open is None or n_closed is None:
        raise RequestError(f"it does not tell usage.prompt_tokens, so whether {way.name} works cannot be known")
    if n_open >= n_closed:
        raise RequestError(
            f"it ignores {way.name} and would open a new turn ({n_open} prompt tokens with it, {n_closed} without)"
        )
    longer = await _probe(ask, replace(PROBE, prefix=PROBE.prefix + "\n\n"), way)
    is_trimmed = longer.n_prompt_tokens == n_open
    if is_trimmed:
        warnings.warn(
            "the server cuts white space off the end of a prefix, as chat templates that trim messages make it do:"
            " answers go on from the last word before it, not from the blank line after a step",
            stacklevel=2,
        )
    # one token is too short to repeat the prefix by chance
    is_echoed = reply.completions[0].text.startswith(PROBE.prefix)
    return replace(way, is_echoed=is_echoed, is_trimmed=is_trimmed)


async def _probe(ask: Ask, request: Request, way: Continuation) -> Reply:
    try:
        return await ask(request, way)
    except RequestError as error:
        raise RequestError(f"it refuses {way.name} ({error})") from None


def open_template(template: str) -> str:
    """The template, cut where the last message is marked with `END_MARK`, so that its turn stays open.

    The whole chat is rendered first, without the opening of a new turn. White space before the mark stays even where
    the template trims messages: the mark is their end then.
    """
    # the line end belongs to the tag before it, so that the template starts at the start of a line as before
    return (
        "{%- set add_generation_prompt = false %}{%- set mprm_chat %}\n"
        f"{template}"
        "{%- endset %}{{- mprm_chat.rsplit('" + END_MARK + "', 1)[0] -}}"
    )


def read_chat_template(path: str | Path) -> str:
    """The chat template of a checkpoint's folder, or that in a file: Jinja, or JSON with a ``chat_template``."""
    path = Path(path).expanduser()
    if not path.exists():
        raise ConfigError(f"{path}: no such file; expected a chat template, or a checkpoint that has one")
    names = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
    files = [path / name for name in names] if path.is_dir() else [path]
    template = next(filter(None, (_template_in(file) for file in files if file.is_file())), None)
    if template is None:
        problem = "has no chat template: looked for chat_template.jinja and in tokenizer_config.json"
        raise ConfigError(f"{path} {problem if path.is_dir() else 'holds no chat_template'}")
    return template


def _template_in(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return text
    try:
        template: Any = json.loads(text).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None

"""How a server is brought to continue an answer in place.

A server that closes the begun answer and opens a new turn after it replies as if all were well, and every
label made from its replies is wrong. So the way is tried out before the first answer is continued: the
prompt with the answer left open must be shorter, in tokens, than the same one with the answer closed.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from mprm.annotation.samplers.chat_reply import GaveUpError, RefusedError, Reply, failed
from mprm.annotation.samplers.chat_template import END_MARK, open_template
from mprm.annotation.samplers.sampler import Completion, Decoding, Request
from mprm.errors import ConfigError

# it ends in a letter, with which no tokenizer joins the line ends that come after
TRIAL = Request(
    prompt="How long is the bar?",
    prefix="The bar on the left is seven units long",
    decoding=Decoding(temperature=0, top_k=0, max_new_tokens=1),
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

"""What a chat server replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mprm.annotation.samplers.sampler import Completion, FinishReason
from mprm.rollouts.printable import printable

if TYPE_CHECKING:
    import httpx

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

"""Policies behind a server that speaks the OpenAI protocol: vLLM, SGLang, transformers serve and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mprm.annotation.samplers.chat_template import read_chat_template
from mprm.annotation.samplers.http_session import HTTPSession
from mprm.annotation.samplers.sampler import Session
from mprm.annotation.samplers.server_settings import ServerSettings
from mprm.errors import ConfigError, MissingDependencyError


def refuse_limits(*, concurrency: int, timeout_s: float, retries: int, patience_s: float = 900.0) -> None:
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
        _refuse_url(url)
        parts = urlsplit(url)
        if api_key is not None and not api_key.isascii():
            raise ConfigError(
                "the API key holds letters beyond ASCII, which no HTTP header can; is it the right one?"
            )
        refuse_limits(concurrency=concurrency, timeout_s=timeout_s, retries=retries, patience_s=patience_s)
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


def _refuse_url(url: str) -> None:
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

"""`RemotePRM`: step scores from a vLLM server of a model that ``mprm export`` prepared, the same as in this process.

Each chain is one request to ``/pooling``, many at a time; its answer has a row for each step. With the model's folder
at hand (the one given, or the server's own where it lies here), chains are tokenized in this process too: steps
beyond the model's length get nan as in `PRM`, and the server must count as many tokens as there are here.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mprm.annotation.samplers.server import (
    BYTES_PER_TOKEN,
    HOPELESS,
    MIN_REPLY_BYTES,
    PatientClient,
    RejectedError,
    check_server,
    data_url,
    describe,
    max_reply_bytes,
    response_text,
)
from mprm.config import ConnectionOptions, nearest, takes
from mprm.data.images import image_folder, image_path, open_image
from mprm.data.output import printable
from mprm.data.types import Chain
from mprm.errors import ConfigError, MissingDependencyError, MprmError, shown
from mprm.models.checkpoint import fingerprint_of, prm_config_path
from mprm.models.prm import ChainScorer, checked_chains
from mprm.models.prompt import PromptEncoder
from mprm.models.serving import (
    PROBE,
    PROBE_FILE,
    Probe,
    check_can_serve,
    escape_pattern,
    load_encoder,
    pooling_messages,
)
from mprm.progress import Progress, silent

# isort: split
import openai  # after the sampler's module, which says what to install where it is missing
from anyio.from_thread import start_blocking_portal

TOLERANCE = 1e-2
"""Mean difference of the probe's scores: bfloat16 and other kernels stay below it, other models do not."""
PROBE_TIMEOUT_S, PROBE_RETRIES = 120.0, 2
EVERYWHERE, NOWHERE = escape_pattern(), re.compile("(?!)")
REMEDY = "start it with mprm serve, or vllm serve --config and the vllm.yaml of mprm export"


class _Request(NamedTuple):
    body: dict[str, Any]
    n_steps: int
    """Steps that are sent; those after them are truncated."""
    n_tokens: int | None
    """Tokens of the prompt, where they can be counted here."""


class RemotePRM(ChainScorer):
    """A process reward model behind a vLLM server; a `StepScorer` as `mprm.PRM` is.

    Two short chains are scored first: a server that is no vLLM, has other settings or another model is refused with
    `ConfigError`. One that stops answering later is waited for, ``patience_s`` at most. ``model`` is its name on the
    server, needed where it has several; ``folder`` the trained model's own, to count tokens and to compare with.
    """

    @takes(ConnectionOptions)
    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        folder: str | Path | None = None,
        image_root: str | Path | None = None,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        check_server(url, api_key)
        self.url, self.api_key = url.rstrip("/").removesuffix("/v1"), api_key
        self.options = ConnectionOptions.of(None, options)
        self._root = image_folder(image_root)
        self._url_of_file = lru_cache(maxsize=64)(self._image_url)
        self.encoder: PromptEncoder | None = None
        if folder is not None:
            self._set_encoder(folder)
        once = replace(
            self.options,
            timeout_s=min(self.options.timeout_s, PROBE_TIMEOUT_S),
            retries=min(self.options.retries, PROBE_RETRIES),
        )
        with self._session(once) as (portal, session):
            try:
                self.model, self.max_model_len, served = portal.call(session.served_model, model)
                if folder is None and served is not None and prm_config_path(served) is not None:
                    try:
                        self._set_encoder(folder := served)
                    except MissingDependencyError as error:
                        print(f"tokens are counted by the server alone: {error}", file=sys.stderr)
                self.name = Path(folder or self.model).name
                if self.encoder and self.max_model_len and self.max_model_len < self.encoder.max_length:
                    lengths = (
                        f"{self.max_model_len:,} tokens on {self.url} and {self.encoder.max_length:,} in training"
                    )
                    print(f"{self.name} has {lengths}: steps beyond get no score", file=sys.stderr)
                probe = self._probe([Path(path) for path in (folder, served) if path is not None])
                self.fingerprint = f"{probe.fingerprints[0] if probe else self.model} served"
                portal.call(self._check, session, probe)
            except ConfigError:
                raise
            except MprmError as error:  # nothing has been done yet
                raise ConfigError(str(error)) from None

    def score_many(self, chains: Sequence[Chain], *, progress: Progress = silent) -> list[list[float]]:
        """Probability that each step is correct, in [0, 1]; nan for steps beyond the length of model or server."""
        checked = checked_chains(chains)
        scores = [[math.nan] * len(chain.steps) for chain in checked]
        pending: dict[Future[list[float]], int] = {}
        # some more than are in flight, which are sent as soon as others are answered
        n_ahead = self.options.concurrency + 1 + self.options.concurrency // 8
        with self._session(self.options) as (portal, session), progress("scoring", len(checked)) as advance:

            def requests() -> Iterator[tuple[int, _Request]]:
                for index, chain in enumerate(checked):
                    if (request := self._request(chain)).n_steps:
                        yield index, request
                    else:
                        advance(1)

            todo = requests()
            try:
                while True:
                    for index, request in islice(todo, n_ahead - len(pending)):
                        pending[portal.start_task_soon(session.scores, request)] = index
                    if not pending:
                        return scores
                    # not for ever: Ctrl-C does not wake this thread where another gets the signal
                    done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in done:
                        known = future.result()
                        scores[pending.pop(future)][: len(known)] = known
                        advance(1)
            finally:
                for future in pending:
                    future.cancel()

    @contextmanager
    def _session(self, options: ConnectionOptions) -> Iterator[tuple[Any, _Session]]:
        session = _Session(self, options)
        with start_blocking_portal(name="mprm-prm") as portal, portal.wrap_async_context_manager(session.client):
            yield portal, session

    def _set_encoder(self, folder: str | Path) -> None:
        self.encoder = load_encoder(folder, self._root)
        check_can_serve(folder, self.encoder)

    def _request(self, chain: Chain, pattern: re.Pattern[str] | None = None) -> _Request:
        """The request for a chain without the steps that model or server would truncate."""
        n_steps, n_tokens = len(chain.steps), None
        body: dict[str, Any] = {"model": getattr(self, "model", None), "task": "token_classify"}
        if self.encoder is not None:
            n_end = 1 + self.encoder.n_end_tokens
            ends = [position + n_end for position in self.encoder.tokenize(chain).prm_positions]
            n_steps = sum(end <= (self.max_model_len or end) for end in ends)
            n_tokens = ends[n_steps - 1] if n_steps else None
            patches = getattr(self.encoder.image_processor, "max_patches", None)
            if len(chain.images) > 1 and patches is not None:  # which share a budget of tiles
                body["mm_processor_kwargs"] = {"max_patches": max(1, patches // len(chain.images))}
        if n_steps:
            chain = replace(chain, steps=chain.steps[:n_steps])
            pattern = pattern or escape_pattern(self.encoder and self.encoder.tokenizer)
            body["messages"] = pooling_messages(chain, pattern, lambda index: self._image_part(chain.images[index]))
        return _Request(body, n_steps, n_tokens)

    def _image_part(self, image: Any) -> dict[str, Any]:
        url = self._url_of_file(image) if isinstance(image, str | Path) else data_url(open_image(image))
        return {"type": "image_url", "image_url": {"url": url}}

    def _image_url(self, image: str | Path) -> str:
        """The file itself where a server sees it as mprm does; else, as with transparency, its RGB as PNG."""
        from PIL import Image

        picture, path = open_image(image, self._root), image_path(image, self._root)
        with Image.open(path) as opened:
            is_plain = opened.mode == "RGB" and "transparency" not in opened.info
            is_plain = is_plain and opened.format in ("PNG", "JPEG", "WEBP") and opened.getexif().get(274, 1) == 1
        return data_url(path if is_plain else picture)

    def _probe(self, folders: Sequence[Path]) -> Probe | None:
        """The model's own scores, where a folder has them."""
        path = next((folder / PROBE_FILE for folder in folders if (folder / PROBE_FILE).is_file()), None)
        if path is None:
            return None
        try:
            probe = msgspec.json.decode(path.read_bytes(), type=Probe)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: {error}; write it again with mprm export --force") from error
        if fingerprint_of(folders[0]) not in probe.fingerprints:
            raise ConfigError(f"{path} is of another model than {folders[0]}; export that one, and serve it")
        return probe

    async def _check(self, session: _Session, probe: Probe | None) -> None:
        """Raise an error unless the server scores chains with known answers as it should."""
        requests = [self._request(PROBE, pattern) for pattern in (NOWHERE, EVERYWHERE)]
        if not requests[0].n_steps:  # not even the first step fits
            return
        plain, escaped = [await session.answer(request) for request in requests]
        if plain.n_tokens != escaped.n_tokens or _mean_difference(plain.scores, escaped.scores) > TOLERANCE:
            reason = "its tokenizer is not the exported one: it would take special tokens in data for tokens"
            raise ConfigError(f"{self.url}: {reason}; {REMEDY}")
        for question, steps, expected in probe.chains if probe else ():
            request = self._request(Chain(question, tuple(steps)))
            scores = await session.scores(request) if request.n_steps else []
            if (difference := _mean_difference(scores, expected)) > TOLERANCE:
                texts = (", ".join(f"{score:.3f}" for score in row) for row in (scores, expected))
                found = f"the server scores the probe's steps {next(texts)}; {self.name} has {next(texts)}"
                reason = f"mean difference {difference:.3f}, expected at most {TOLERANCE:g}"
                raise ConfigError(f"{self.url} serves another model: {found} ({reason})")


class _Answer(NamedTuple):
    scores: list[float]
    n_tokens: int | None


class _Session:
    """Posts requests and reads their answers."""

    def __init__(self, prm: RemotePRM, options: ConnectionOptions) -> None:
        self._prm, self._slots = prm, asyncio.Semaphore(options.concurrency)
        is_known = hasattr(prm, "fingerprint")
        health_check = {"model": getattr(prm, "model", None), "task": "token_classify", "input": "."}
        self.client = openai.AsyncOpenAI(
            base_url=prm.url,
            api_key="in the headers of http_client",  # where there is none, not even that of the environment is sent
            max_retries=options.retries,
            http_client=PatientClient(f"{prm.url}/pooling", options, prm.api_key, health_check, is_known=is_known),
        )

    async def served_model(self, name: str | None) -> tuple[str, int | None, str | None]:
        """Name of the model on the server, its length in tokens, and its folder where it lies on this machine."""
        reply = await self._sent("get", "/v1/models", {})
        try:
            models = {model["id"]: model for model in reply["data"]}
        except (AttributeError, LookupError, TypeError):
            raise ConfigError(f"{self._prm.url} is no vLLM server: {_said(reply)} for /v1/models; {REMEDY}") from None
        if name is None and len(models) != 1:
            raise ConfigError(f"{self._prm.url} has {len(models)} models; name one of {', '.join(models)}")
        name = next(iter(models)) if name is None else name
        if name not in models:
            raise ConfigError(f"{self._prm.url} has no model {name!r}; {nearest(name, models)}")
        length, root = models[name].get("max_model_len"), models[name].get("root")
        is_here = isinstance(root, str) and Path(root).is_dir()
        return name, length if isinstance(length, int) else None, root if is_here else None

    async def scores(self, request: _Request) -> list[float]:
        """The score of each step that is sent."""
        async with self._slots:
            return (await self.answer(request)).scores

    async def answer(self, request: _Request) -> _Answer:
        max_reply_bytes.set(MIN_REPLY_BYTES + BYTES_PER_TOKEN * request.n_steps)
        reply, url = await self._sent("post", "/pooling", request.body), self._prm.url
        try:
            [item] = reply["data"]
            rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in item["data"]]
            n_tokens = reply.get("usage", {}).get("prompt_tokens")
        except (AttributeError, LookupError, TypeError, ValueError):
            raise ConfigError(f"{url} does not answer as a reward model: {_said(reply)}; {REMEDY}") from None
        where = f"{url}, chain of {shown(request.body['messages'][0]['content'][-1].get('text', ''), 40)}"
        if len(rows) != request.n_steps:
            found = f"{len(rows)} rows for {request.n_steps} steps"
            raise ConfigError(f"{where}: {found}; expected one a step. Its settings are others: {REMEDY}")
        if odd := [row for row in rows if not isinstance(row, int | float) or not 0 <= row <= 1]:
            raise ConfigError(f"{where}: a step has score {shown(odd[0])}; expected a probability from 0 to 1")
        if request.n_tokens not in (None, n_tokens) and n_tokens is not None:
            found = f"{n_tokens} tokens, {request.n_tokens} with the model's own prompt and image settings"
            raise ConfigError(f"{where}: the server reads {found}; {REMEDY}")
        return _Answer([float(row) for row in rows], n_tokens)

    async def _sent(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The decoded reply, or its text where it is no JSON."""
        url = self._prm.url
        options: Any = {"headers": {"Authorization": openai.Omit()}}
        try:
            if method == "get":
                return await self.client.get(path, cast_to=object, options=options)
            return await self.client.post(path, cast_to=object, body=body, options=options)
        except openai.APIConnectionError as error:
            raise MprmError(f"{url} gives no answer: {describe(error.__cause__)}") from None
        except openai.APIStatusError as error:
            status, text = error.status_code, response_text(error.response)
        except (RejectedError, ValueError) as error:
            raise ConfigError(f"{url} does not answer as a reward model: {error}; {REMEDY}") from None
        if status in HOPELESS:
            raise ConfigError(f"{url} refuses {path}: {text}. See --served-model and --api-key-env; {REMEDY}")
        if status < 500 and status not in (408, 409, 429):
            hint = "" if self._prm.encoder else "; with the model's folder (--model) long chains are truncated"
            raise ConfigError(f"{url} rejects a chain: {text}{hint}")
        raise MprmError(f"{url} fails: {text}")


def _said(reply: Any) -> str:
    return f"it says {printable(shown(reply))}"


def _mean_difference(scores: Sequence[float], others: Sequence[float]) -> float:
    """Of the steps that both have."""
    differences = [abs(score - other) for score, other in zip(scores, others, strict=False)]
    return sum(differences) / max(1, len(differences))

"""What a policy is asked for, what it returns, and the sampler that the options of a command name."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from mprm.config import DEFAULT_KEY, Config, ConnectionOptions, Device, Dtype, read_api_key, sampling, serving
from mprm.errors import ConfigError

FinishReason = Literal["stop", "stop_string", "length", "error"]
"""What ended an answer: the policy; a stop string, after which it might go on; the token limit. Or there is none."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams(Config):
    """How tokens are sampled. The defaults are the paper's for best-of-N."""

    temperature: Annotated[float, sampling("0 = greedy decoding.", at_least=0)] = 0.7
    top_p: Annotated[float, sampling("Probability mass to sample from; 1 = all.", above=0, at_most=1)] = 0.9
    top_k: Annotated[int, sampling("Number of tokens to sample from; 0 = all.", at_least=0)] = 30
    max_new_tokens: Annotated[int, sampling("Token limit of an answer.", at_least=1)] = 2048


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ConnectionOptions):
    """How an OpenAI-compatible server is spoken to."""

    chat_template: Annotated[
        str | None, serving("Checkpoint or template file of the policy, for transformers serve.", "PATH")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and how many answers to it are wanted."""

    prompt: str
    images: tuple[Any, ...] = ()  # paths that can be opened as they stand, or PIL images
    prefix: str = ""  # first part of the answer, which the policy continues; completions do not repeat it
    n: int = 1
    stop: str = ""  # a stop string: answers end before it too, such as at the end of a step
    seed: int = 0  # the answers depend on it and on the request, not on the other requests
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n must be at least 1, got {self.n}")
        if self.n > 1 and self.sampling.temperature == 0:
            raise ConfigError(f"at temperature 0 all {self.n} answers would be the same; ask for n = 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer, or why there is none."""

    text: str
    finish_reason: FinishReason
    n_tokens: int | None = None
    """Tokens of the answer, or its share of those of all answers to the request; None where a server does not say."""
    error: str | None = None


def failed(error: object) -> Completion:
    """No answer, and why."""
    return Completion(text="", finish_reason="error", error=str(error))


Answered = tuple[int, list[Completion]]  # index of a request, and as many completions as it asked for


class Sampler(Protocol):
    """Answers requests: in this process, on a server, on a Ray cluster."""

    name: str  # of the policy, for manifests
    settings: dict[str, Any]  # what answers depend on besides policy and requests: a run with others is not continued

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        """Batches of answered requests, in the order in which they are done.

        ``requests`` is read only as far as the sampler has room for, so it may depend on earlier answers; None says
        that the next request will be known after another answer. A completion that could not be sampled has
        ``finish_reason`` "error"; what makes every request fail, such as a wrong key or a missing server, is raised.
        Closing the generator cancels what is in flight.
        """


def numbered(requests: Iterable[Request | None]) -> Iterator[tuple[int, Request] | None]:
    """Requests with their indices, and None where there is none for now."""
    indices = count()
    for request in requests:
        yield None if request is None else (next(indices), request)


def answers(sampler: Sampler, requests: Iterable[Request]) -> Iterator[Answered]:
    """Each request's index and its completions, in the order in which they are done."""
    with closing(sampler.sample(requests)) as batches:
        for batch in batches:
            yield from batch


def derived_seed(seed: int, *names: object) -> int:
    """A seed of 31 bits, which every server takes, that belongs to ``seed`` and these names."""
    text = json.dumps([seed, *map(str, names)])  # names that hold a separator must not run together
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") >> 1


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(Config):
    """Where the policy is."""

    policy: Annotated[str | None, sampling("Checkpoint to sample from in this process.", "DIR|ORG/NAME")] = None
    rows_per_batch: Annotated[
        int | None, sampling("Sequences in a batch; default: 1,024 on a GPU, 64 elsewhere.", at_least=1)
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    server: Annotated[str | None, serving("OpenAI-compatible server, such as http://localhost:8000/v1.", "URL")] = (
        None
    )
    served_model: Annotated[str | None, serving("Name of the policy on the server.", "NAME")] = None
    api_key_env: Annotated[str, serving("Environment variable of the API key.", "NAME")] = DEFAULT_KEY
    extra_body: Annotated[str | None, serving("More fields of a request, as a JSON object.", "JSON")] = None


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(SamplingParams, ServerOptions, PolicyOptions):
    """Where the policy is, and how it answers; the base of the configs of `mprm.annotate` and `mprm.sample`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy is not None and self.server is not None:
            raise ConfigError("name either --policy DIR or --server URL with --served-model NAME, not both")
        if (self.server is None) != (self.served_model is None):
            raise ConfigError("--server URL and --served-model NAME go together")

    def check_sampler(self, out: str | None = None) -> None:
        """Stop where no policy is named, or where the output would lie among the policy's own files."""
        if self.policy is None and self.server is None:
            raise ConfigError("name either --policy DIR or --server URL with --served-model NAME")
        if out and self.policy and Path(out).expanduser().resolve().parent == Path(self.policy).resolve():
            raise ConfigError(f"{out} lies in the policy's folder; choose another place for the output")

    def sampler(self) -> Sampler:
        self.check_sampler()
        if self.policy is not None:
            return load_policy(self.policy, device=self.device, dtype=self.dtype, rows=self.rows_per_batch)
        import msgspec  # not for the command line's help

        from mprm.annotation.samplers.server import HTTPSampler

        key = read_api_key(self.api_key_env)
        try:
            extra = msgspec.json.decode(self.extra_body or "{}", type=dict[str, Any])
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--extra-body takes a JSON object, such as '{{\"min_p\": 0.1}}'; {error}") from error
        options = self.narrowed(ServerOptions).as_dict()
        return HTTPSampler(str(self.server), str(self.served_model), api_key=key, extra_body=extra, **options)


def load_policy(path: str | Path, *, device: str = "auto", dtype: str = "auto", rows: int | None = None) -> Sampler:
    """A sampler of the checkpoint in a folder or on the hub, for `mprm.annotate` and `mprm.sample`.

    It samples many requests at a time, with prefix caching; one at a time, with a word on why, where the model is of
    a kind that is not known to allow it. ``rows``: most sequences in a batch, 1,024 on a GPU, 64 elsewhere.
    """
    from mprm.data.hub import local_checkpoint, pinned_name
    from mprm.models.checkpoint import fingerprint_of, load_backbone

    name, path = pinned_name(path), local_checkpoint(path)
    backbone = load_backbone(path, dtype=dtype, device=device)
    # these import torch, which load_backbone has checked for
    from mprm.annotation.samplers.local import PrefixSampler, TransformersSampler, can_share_prefixes

    weights = fingerprint_of(path)
    reason = can_share_prefixes(backbone)
    if reason is None:
        return PrefixSampler(backbone, name=name, weights=weights, rows=rows)
    print(f"{name} answers one request at a time, and slower: {reason}", file=sys.stderr)
    return TransformersSampler(backbone, name=name, weights=weights, rows_per_batch=rows or 16)

"""What is asked of a policy, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol

from mprm.errors import ConfigError, MprmError

FinishReason = Literal["stop", "length", "error"]
"""The policy ended its answer; the token limit cut it off; there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. The defaults are the paper's for best-of-N."""

    temperature: float = 0.7
    """0 takes the likeliest token always."""
    top_p: float = 0.9
    """Only the likeliest tokens that together have this probability are drawn; 1 allows all."""
    top_k: int = 30
    """Only this many of the likeliest tokens are drawn; 0 allows all."""
    max_new_tokens: int = 2048
    """Most tokens of an answer."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be 0 (all tokens) or more, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be 1 or more, got {self.max_new_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and how many answers to it are wanted."""

    prompt: str
    """What the user says."""
    images: tuple[Any, ...] = ()
    """Paths that can be opened as they stand, or PIL images."""
    prefix: str = ""
    """The beginning of the answer, which the policy continues; completions do not repeat it."""
    n: int = 1
    seed: int = 0
    """The answers depend on it and on the request, not on the other requests."""
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n must be 1 or more, got {self.n}")
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
    """What went wrong, where ``finish_reason`` is "error"."""


Answered = tuple[int, list[Completion]]
"""The number of a request, and as many completions as it asked for."""


class Sampler(Protocol):
    """Answers requests: in this process, or on a server."""

    @property
    def name(self) -> str:
        """The policy, for manifests."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """What the answers depend on besides policy and requests: a run with others is not continued."""
        ...

    def session(self) -> AbstractContextManager[Session]:
        """Begin to work; what is still under way at the end of the block is given up."""
        ...


class Session(Protocol):
    """Requests under way; new ones may be handed in while others are answered, all from one thread."""

    @property
    def room(self) -> int:
        """How many more requests are worth handing in now; at 0 there is enough to do."""
        ...

    def submit(self, number: int, request: Request) -> None:
        """Hand in a request; ``number`` tells it from all others under way."""
        ...

    def wait(self) -> list[Answered]:
        """Requests that were answered since the last call, at least one; none where none is under way.

        A completion that cannot be had comes with ``finish_reason`` "error"; what makes every request
        fail, such as a wrong key or a server that is not there, is raised.
        """
        ...


def answers(sampler: Sampler, requests: Iterable[Request]) -> Iterator[Answered]:
    """Each request's number and its completions, in the order in which they are done."""
    todo = enumerate(requests)
    with sampler.session() as session:
        n_open = 0
        while True:
            while session.room > 0 and (following := next(todo, None)) is not None:
                session.submit(*following)
                n_open += 1
            if not n_open:
                return
            found = session.wait()
            if not found:
                raise MprmError(f"{sampler.name} left {n_open:,} requests unanswered")
            n_open -= len(found)
            yield from found


def derived_seed(seed: int, *names: object) -> int:
    """A seed of 31 bits that belongs to ``seed`` and these names; every server takes one so small.

    Examples
    --------
    >>> derived_seed(0, "ai2d", "17") == derived_seed(0, "ai2d", "17") != derived_seed(0, "ai2d", "18")
    True
    """
    text = json.dumps([seed, *map(str, names)])  # names that hold a separator must not run together
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") >> 1


def identity_of(sampler: Sampler) -> dict[str, Any]:
    """What must be the same for a run to go on: the policy's weights where they are known, else its name."""
    settings = sampler.settings
    return settings if settings.get("weights") else {"policy": sampler.name, **settings}

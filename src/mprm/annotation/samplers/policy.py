"""A policy in this process: what it must offer, and how its tokens become completions."""

from __future__ import annotations

from typing import Any, Protocol

from mprm.annotation.samplers.sampler import Completion
from mprm.errors import ConfigError


class Policy(Protocol):
    """A model that can be spoken to; `mprm.backbones.load.Backbone` is one."""

    @property
    def model(self) -> Any:
        """Something that can ``generate``."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        ...

    def encode_chat(self, text: str, images: Any = (), *, begun: str = "") -> dict[str, Any]:
        """Tensors for ``generate``, of one row: the user's turn, and the answer as far as it is ``begun``.

        The ids of ``begun`` come last and depend on nothing else.
        """
        ...


def eos_ids_of(policy: Policy) -> list[int]:
    """The tokens that end an answer: the generation config's, or the tokenizer's."""
    found = policy.model.generation_config.eos_token_id
    if found is None:
        found = policy.tokenizer.eos_token_id
    if found is None:
        raise ConfigError("the policy has no end-of-text token; set eos_token_id in its generation_config.json")
    return list(found) if isinstance(found, list | tuple) else [int(found)]


def completion_of(ids: list[int], *, tokenizer: Any, eos_ids: list[int]) -> Completion:
    """The answer that these tokens are, up to the first that ends it."""
    end = next((place for place, id_ in enumerate(ids) if id_ in eos_ids), None)
    text = tokenizer.decode(ids[:end], skip_special_tokens=True)
    return Completion(text=text, finish_reason="length" if end is None else "stop", n_tokens=len(ids[:end]))


def failed(error: Exception, n: int) -> list[Completion]:
    """Completions of a request that cannot be answered."""
    return [Completion(text="", finish_reason="error", error=str(error))] * n

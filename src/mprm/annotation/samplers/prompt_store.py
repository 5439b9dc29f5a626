"""Prompts with their keys and values, computed once for all that is asked of them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mprm.annotation.samplers.policy import Policy
from mprm.annotation.samplers.sampler import Request
from mprm.rollouts.images import open_image


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The user's turn, and the opening of the assistant's."""

    ids: list[int]
    states: Tensor
    """Keys and values, shape (layers, 2, tokens, heads, width)."""
    offset: int
    """Position less column of every later token; not 0 where an image takes fewer positions than tokens."""
    images: tuple[Any, ...]
    """Held, so that no other image gets the identity of one of these."""


class PromptStore:
    """The prompts used last, up to a number of tokens; the newest stays, however long it is."""

    def __init__(self, policy: Policy, *, most_tokens: int) -> None:
        self._policy = policy
        self._most_tokens = most_tokens
        self._prompts: OrderedDict[tuple[Any, ...], Prompt] = OrderedDict()
        self._n_tokens = 0
        self._n_before_answer = policy.encode_chat("")["input_ids"].shape[1]

    def prompt(self, request: Request) -> Prompt:
        """The prompt of a request; an image that cannot be used raises `DataError`."""
        key = (request.prompt, *(str(i) if isinstance(i, str | Path) else id(i) for i in request.images))
        if key in self._prompts:
            self._prompts.move_to_end(key)
            return self._prompts[key]
        images = [open_image(image) for image in request.images]
        inputs = self._policy.encode_chat(request.prompt, images)
        prompt = _computed(self._policy.model, inputs, request.images)
        self._prompts[key] = prompt
        self._n_tokens += len(prompt.ids)
        while self._n_tokens > self._most_tokens and len(self._prompts) > 1:
            _, oldest = self._prompts.popitem(last=False)
            self._n_tokens -= len(oldest.ids)
        return prompt

    def prefix_ids(self, prefix: str) -> list[int]:
        """The tokens of the beginning of an answer: what it adds to a prompt without words."""
        if not prefix:
            return []
        ids = self._policy.encode_chat("", begun=prefix)["input_ids"][0, self._n_before_answer :]
        return [int(id_) for id_ in ids.tolist()]


def _computed(model: Any, inputs: dict[str, Any], images: tuple[Any, ...]) -> Prompt:
    positions = _positions(model, inputs)
    past = DynamicCache()
    # positions are given, so that nothing depends on what the model remembers of the prompt before
    model(**inputs, position_ids=positions, past_key_values=past, use_cache=True, logits_to_keep=1)
    states = [torch.stack([layer.keys[0], layer.values[0]]).transpose(1, 2) for layer in past.layers]
    ids = inputs["input_ids"][0].tolist()
    offset = int(positions.max()) + 1 - len(ids)
    return Prompt(ids=ids, states=torch.stack(states), offset=offset, images=images)


def _positions(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Shape (1, tokens); (3, 1, tokens) where time, height and width of an image count."""
    if "image_grid_thw" not in inputs:
        return torch.arange(inputs["input_ids"].shape[1], device=inputs["input_ids"].device)[None]
    given = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    positions: Tensor = model.model.get_rope_index(**{name: inputs[name] for name in given})[0]
    return positions

"""The user's turn of a chat as token ids: what the checkpoint's template puts around it, and plain text within."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mprm.data.images import as_placed, place_images
from mprm.errors import ConfigError
from mprm.models.families import Family

_MESSAGE = "mprm-user-content"
PROBE = "A"
"""A word that a response may continue with, to see how white space before it is tokenized."""


def chat_frame(tokenizer: Any, *, add_generation_prompt: bool = False) -> tuple[list[int], list[int]]:
    """Ids before and after the user's message; the assistant's turn is opened where a response follows.

    A tokenizer without a template gives its BOS token, if there is one, and nothing after.
    """
    template = tokenizer.chat_template
    named = tuple(template.items()) if isinstance(template, dict) else template  # several, by name
    before, after = _frame(tokenizer, named, add_generation_prompt)
    return list(before), list(after)


@lru_cache(maxsize=8)
def _frame(tokenizer: Any, template: Any, add_generation_prompt: bool) -> tuple[list[int], list[int]]:
    """Made once for a tokenizer and its template: rendering one takes longer than encoding a question."""
    if not template:
        return [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else [], []
    problem: Any = "the message is not in what it renders"
    contents: list[Any] = [_MESSAGE, [{"type": "text", "text": _MESSAGE}]]  # some templates want a list of parts
    for content in contents:
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template may raise anything
            problem = error
            continue
        if text.count(_MESSAGE) == 1:
            before, after = (tokenizer.encode(part, add_special_tokens=False) for part in text.split(_MESSAGE))
            return before, after
        if _MESSAGE in text:
            problem = "the message is in it more than once"
    raise ConfigError(f"the checkpoint's chat template cannot render a user message: {problem}")


class PlainText:
    """Encodes text from data: no token outside the ordinary vocabulary can come out of it.

    The tokenizer's pipeline runs without its added tokens: a literal ``<prm>`` in a step is tokenized as text.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError("the checkpoint has no fast tokenizer (tokenizer.json); save one with save_pretrained")
        pipeline = json.loads(backend.to_str())
        pipeline.update(added_tokens=[], truncation=None, padding=None, post_processor=None)
        self._tokenizer = Tokenizer.from_str(json.dumps(pipeline))
        special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        special = tokenizer.get_added_vocab() | special
        self._special = {id_: text for text, id_ in special.items() if id_ != tokenizer.unk_token_id}

    def encode(self, text: str) -> list[int]:
        """Ids of the text; what is no character in UTF-8 becomes the replacement character."""
        text = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        special = self._special.keys() & set(ids)
        if special:
            # a vocabulary of whole words holds its special tokens as words: break these up
            for id_ in special:
                token = self._special[id_]
                text = text.replace(token, f"{token[:1]} {token[1:]}")
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            ids = [id_ for id_ in ids if id_ not in self._special]
        return ids

    def encode_prefix(self, text: str) -> list[int]:
        """Ids of a prefix of a response, as they are when a word follows.

        Many vocabularies tokenize white space at the end of a text otherwise than before a word, two line ends as one
        token that occurs nowhere else: a policy would continue from what it never saw.
        """
        ids = self.encode(text)
        if not text[-1:].isspace():
            return ids
        followed, decoded = self.encode(text + PROBE), self._tokenizer.decode(ids)
        for n in range(len(followed) - 1, 0, -1):
            part = self._tokenizer.decode(followed[:n])
            if part == decoded:
                return followed[:n]
            if len(part) < len(decoded):
                break  # the word and the white space share a token
        return ids


@lru_cache(maxsize=4)
def plain_text(tokenizer: Any) -> PlainText:
    """The tokenizer's `PlainText`, made once: with a large vocabulary that takes a second."""
    return PlainText(tokenizer)


@dataclass(frozen=True, slots=True)
class Backbone:
    """A vision-language or text model with its tokenizer and image processor."""

    family: Family
    model: Any
    tokenizer: Any
    image_processor: Any

    def chat_ids(self, text: str, images: Sequence[Any] = (), *, prefix: str = "") -> list[int]:
        """Ids of the user's text with placeholders for the images, then of the response's prefix."""
        plain = plain_text(self.tokenizer)
        ids, after = chat_frame(self.tokenizer, add_generation_prompt=True)
        for piece in place_images(text, len(images)):
            if isinstance(piece, str):
                ids += plain.encode(piece)
            else:
                image = images[piece]
                ids += self.family.image_ids(self.tokenizer, self.image_processor, image, image.size)
                ids += plain.encode(self.family.image_end) if self.family.image_end else []
        return ids + after + plain.encode_prefix(prefix)

    def encode_chat(self, text: str, images: Sequence[Any] = (), *, prefix: str = "") -> dict[str, Any]:
        """Tensors for ``generate``: `chat_ids` as a batch of one, and the images' vision inputs."""
        import torch

        input_ids = torch.tensor([self.chat_ids(text, images, prefix=prefix)])
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if images:
            vision = self.family.preprocess(self.image_processor, as_placed(text, images))
            inputs |= {name: torch.as_tensor(array) for name, array in vision.items()}
            inputs |= self.family.batch_inputs(self.tokenizer, input_ids)
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

"""What a checkpoint's chat template puts before and after the user's words, and plain text between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mprm.data.images import as_placed, place_images
from mprm.errors import ConfigError, DataError, MprmError

_WORDS = "mprm-user-content"
FOLLOWER = "A"
"""A word that answers go on with, as far as white space before it is concerned."""


def chat_frame(tokenizer: Any, *, reply: bool = False) -> tuple[list[int], list[int]]:
    """Ids before and after the user's message; with ``reply`` the assistant's turn is opened after it.

    A tokenizer without a template gets its beginning-of-text token, if it has one, and nothing after.
    """
    template = tokenizer.chat_template
    named = tuple(template.items()) if isinstance(template, dict) else template  # several, by name
    before, after = _frame(tokenizer, named, reply)
    return list(before), list(after)


@lru_cache(maxsize=8)
def _frame(tokenizer: Any, template: Any, reply: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Made once for a tokenizer and its template: rendering one takes longer than encoding a question."""
    if not template:
        return ((tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ()), ()
    rendered = _rendered(tokenizer, reply=reply)
    before, found, after = rendered.partition(_WORDS)
    if not found or _WORDS in after:
        raise ConfigError("the checkpoint's chat template does not show the user's message once; mprm cannot use it")
    return tuple(tokenizer.encode(before, add_special_tokens=False)), tuple(
        tokenizer.encode(after, add_special_tokens=False)
    )


def _rendered(tokenizer: Any, *, reply: bool) -> str:
    """The template with a known word as the user's message; some templates want a list of parts."""
    contents: list[Any] = [_WORDS, [{"type": "text", "text": _WORDS}]]
    for content in contents:
        message = [{"role": "user", "content": content}]
        try:
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=reply)
        except Exception as error:  # a template may raise anything
            problem: Exception = error
            continue
        if _WORDS in text:
            return str(text)
        problem = ValueError("the message is not in what it renders")
    raise ConfigError(f"the checkpoint's chat template cannot render a user message: {problem}") from problem


class PlainText:
    """Encodes text from data: no token outside the ordinary vocabulary can come out of it.

    The tokenizer's own pipeline runs without its added tokens, so that a literal ``<prm>`` or
    ``<|im_end|>`` in a step is spelled out like any other text.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError("the checkpoint has no fast tokenizer (tokenizer.json); save one with save_pretrained")
        pipeline = json.loads(backend.to_str())
        pipeline.update(added_tokens=[], truncation=None, padding=None, post_processor=None)
        self._tokenizer = Tokenizer.from_str(json.dumps(pipeline))
        unknown = {tokenizer.unk_token_id} if tokenizer.unk_token_id is not None else set()
        control = {
            **tokenizer.get_added_vocab(),
            **dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)),
        }
        self._control = {id_: text for text, id_ in control.items() if id_ not in unknown}

    def encode(self, text: str) -> list[int]:
        """Ids of the text; what is no character in UTF-8 becomes the replacement character."""
        text = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        found = self._control.keys() & set(ids)
        if found:
            # a vocabulary of whole words holds its control tokens as words: break these up
            for id_ in found:
                token = self._control[id_]
                text = text.replace(token, f"{token[:1]} {token[1:]}")
            ids = [
                id_ for id_ in self._tokenizer.encode(text, add_special_tokens=False).ids if id_ not in self._control
            ]
        return ids

    def encode_begun(self, text: str) -> list[int]:
        """Ids of the beginning of a text, as they are when it goes on with a word.

        Many vocabularies take white space at the very end of a text otherwise than before a word: two ends
        of line as one token that stands nowhere else. A policy would be asked to go on from what it never
        saw, and fail for no fault of the text.
        """
        ids = self.encode(text)
        if not text[-1:].isspace():
            return ids
        followed, shown = self.encode(text + FOLLOWER), self._tokenizer.decode(ids)
        for n in range(len(followed) - 1, 0, -1):
            decoded = self._tokenizer.decode(followed[:n])
            if decoded == shown:
                return followed[:n]
            if len(decoded) < len(shown):
                break  # the word and the white space share a token
        return ids


@lru_cache(maxsize=4)
def plain_text(tokenizer: Any) -> PlainText:
    """The tokenizer's `PlainText`, made once: with a large vocabulary that takes a second."""
    return PlainText(tokenizer)


def _n_tokens(backbone: Any, image: Any) -> int:
    try:
        return int(backbone.family.n_image_tokens(backbone.image_processor, *image.size))
    except MprmError:
        raise
    except ValueError as error:  # of a shape that the backbone cannot take
        width, height = image.size
        raise DataError(f"an image of {width} × {height} pixels cannot be used: {error}") from error


def chat_ids(backbone: Any, text: str, images: Sequence[Any] = (), *, begun: str = "") -> list[int]:
    """Ids of the user's text with room for the images, the assistant's turn opened and ``begun``."""
    family, tokenizer, plain = backbone.family, backbone.tokenizer, plain_text(backbone.tokenizer)
    before, after = chat_frame(tokenizer, reply=True)
    ids = list(before)
    for piece in place_images(text, len(images)):
        if isinstance(piece, str):
            ids += plain.encode(piece)
        else:
            ids += family.image_ids(tokenizer, _n_tokens(backbone, images[piece]))
            ids += plain.encode(family.image_end) if family.image_end else []
    return ids + after + plain.encode_begun(begun)


def encode_chat(backbone: Any, text: str, images: Sequence[Any] = (), *, begun: str = "") -> dict[str, Any]:
    """Tensors for ``generate``: `chat_ids`, and the images as the model takes them."""
    import torch

    family, tokenizer = backbone.family, backbone.tokenizer
    input_ids = torch.tensor([chat_ids(backbone, text, images, begun=begun)])
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    if images:
        arrays = family.preprocess(backbone.image_processor, as_placed(text, images))
        inputs |= {name: torch.as_tensor(array) for name, array in arrays.items()}
        inputs |= family.batch_inputs(tokenizer, input_ids)
    return {name: tensor.to(backbone.model.device) for name, tensor in inputs.items()}

"""Turns of a chat as token ids: what the checkpoint's template puts around them, and plain text within."""

from __future__ import annotations

import ctypes
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from pathlib import Path
from threading import Thread
from typing import Any

from mprm.data.images import as_placed, place_images
from mprm.errors import ConfigError
from mprm.models.families import Family

_MESSAGE = "mprm-user-content"
RENDER_SECONDS, RENDER_CHARACTERS = 10.0, 1_000_000
"""Limits of rendering a chat template, which takes milliseconds and some hundred characters."""
PROBE = "A"
"""A word that a response may continue with, to see how white space before it is tokenized."""


def chat_frame(tokenizer: Any, *, add_generation_prompt: bool = False) -> tuple[list[int], list[int]]:
    """Ids before and after the user's message; the assistant's turn is opened where a response follows."""
    before, after = frame_text(tokenizer, add_generation_prompt=add_generation_prompt)
    return tokenizer.encode(before, add_special_tokens=False), tokenizer.encode(after, add_special_tokens=False)


def frame_text(tokenizer: Any, *, add_generation_prompt: bool = False) -> tuple[str, str]:
    """Text of the template before and after the user's message."""
    return _rendered(tokenizer, _template(tokenizer), None, add_generation_prompt)


def paper_frame(tokenizer: Any, system_message: str) -> tuple[list[int], str, list[int]]:
    """Ids before the assistant's message, text to be tokenized with it, and ids after it; the user's is empty."""
    if system_message:
        # as the released training code has it
        bos = tokenizer.bos_token if tokenizer.encode("")[:1] == [tokenizer.bos_token_id] else ""
        turns = f"<|im_start|>system\n{system_message}<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
        before, after = f"{bos}{turns}<|im_start|>assistant\n", "<|im_end|>\n"
    else:
        before, after = _rendered(tokenizer, _template(tokenizer), "", False)
    # a tokenizer splits text at its added tokens: what follows the last one is a text with what comes next
    added = [token for token in tokenizer.get_added_vocab() if token in before]
    end = max((before.rindex(token) + len(token) for token in added), default=0)
    ids, end_ids = (tokenizer.encode(text, add_special_tokens=False) for text in (before[:end], after))
    return ids, before[end:], end_ids


def chat_template_of(path: str | Path) -> str | None:
    """The template in a file of the processor's own, as older checkpoints have it."""
    file = Path(path) / "chat_template.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["chat_template"]) if file.is_file() else None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: the chat template cannot be loaded: {error!r}") from error


def image_text(tokenizer: Any) -> str:
    """What the template puts in front of the user's text for an image before it."""
    parts: list[Any] = [{"type": "image"}, {"type": "text", "text": _MESSAGE}]
    try:
        plain, pictured = (
            _text_of(tokenizer, [{"role": "user", "content": content}], False).split(_MESSAGE)[0]
            for content in (parts[1:], parts)
        )
    except Exception as error:  # a template may raise anything
        raise ConfigError(f"{_folder(tokenizer)}: the chat template cannot render an image: {error}") from error
    text = pictured[len(commonprefix([plain, pictured])) :]  # noqa: RUF071 - of characters
    if not text:
        raise ConfigError(f"{_folder(tokenizer)}: the chat template renders no image in a user's message")
    return text


def chat_pieces(tokenizer: Any, roles: tuple[str, ...], system: str = "") -> tuple[str, ...]:
    """Text of the template before, between and after the messages of these roles, the system's message included."""
    return _pieces(tokenizer, _template(tokenizer), roles, system)


@lru_cache(maxsize=64)
def _pieces(tokenizer: Any, template: Any, roles: tuple[str, ...], system: str) -> tuple[str, ...]:
    if not template:
        raise ConfigError(f"{_folder(tokenizer)}: the tokenizer has no chat template")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": role, "content": _MESSAGE} for role in roles]
    try:
        pieces = tuple(_text_of(tokenizer, messages, False).split(_MESSAGE))
    except Exception as error:  # a template may raise anything
        raise ConfigError(f"{_folder(tokenizer)}: the chat template cannot render a conversation: {error}") from error
    if len(pieces) != len(roles) + 1:
        found = f"{len(pieces) - 1} of {len(roles)} messages"
        raise ConfigError(f"{_folder(tokenizer)}: the chat template cannot render a conversation: it renders {found}")
    return pieces


def _folder(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path) or "the checkpoint"


def _template(tokenizer: Any) -> Any:
    template = tokenizer.chat_template
    return tuple(template.items()) if isinstance(template, dict) else template  # several, by name


@lru_cache(maxsize=8)
def _rendered(tokenizer: Any, template: Any, user: str | None, add_generation_prompt: bool) -> tuple[str, str]:
    """Text before and after the user's message, or the assistant's that answers ``user``; BOS without a template."""
    if not template:
        return tokenizer.bos_token or "", ""
    problem: Any = "the message is not in what it renders"
    for as_content in (str, lambda text: [{"type": "text", "text": text}]):  # some templates want a list of parts
        turns = {"user": _MESSAGE} if user is None else {"user": user, "assistant": _MESSAGE}
        messages = [{"role": role, "content": as_content(text)} for role, text in turns.items()]
        try:
            before, *after = _text_of(tokenizer, messages, add_generation_prompt).split(_MESSAGE)
        except TimeoutError as error:
            problem = error
            break
        except Exception as error:  # a template may raise anything
            problem = error
            continue
        if len(after) == 1:
            return before, after[0]
        if after:
            problem = "the message is in it more than once"
    raise ConfigError(f"{_folder(tokenizer)}: the chat template cannot render a message: {problem}")


def _text_of(tokenizer: Any, messages: list[Any], add_generation_prompt: bool) -> str:
    """What the template renders; it is a program, which may loop for ever."""
    rendered: Future[str] = Future()
    options = {"tokenize": False, "add_generation_prompt": add_generation_prompt}

    def render() -> None:
        try:
            rendered.set_result(tokenizer.apply_chat_template(messages, **options))
        except BaseException as error:
            rendered.set_exception(error)

    thread = Thread(target=render, daemon=True)
    thread.start()
    thread.join(RENDER_SECONDS)
    if thread.is_alive():
        # raised in the thread at its next bytecode; without it the loop would go on until the process ends
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeoutError))
        raise TimeoutError(f"it takes more than {RENDER_SECONDS:.0f} s")
    if len(text := rendered.result()) > RENDER_CHARACTERS:
        raise ValueError(f"it renders {len(text):,} characters; expected at most {RENDER_CHARACTERS:,}")
    return text


class PlainText:
    """Encodes text from data without added tokens: a literal ``<prm>`` in a step is tokenized as text."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"{_folder(tokenizer)}: no fast tokenizer, tokenizer.json; save_pretrained writes it")
        pipeline = json.loads(backend.to_str())
        pipeline.update(added_tokens=[], truncation=None, padding=None, post_processor=None)
        self._tokenizer = Tokenizer.from_str(json.dumps(pipeline))
        special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        special = tokenizer.get_added_vocab() | special
        self._special = {id_: text for text, id_ in special.items() if id_ != tokenizer.unk_token_id}

    def encode(self, text: str) -> list[int]:
        """Ids of the text; what is no character in UTF-8 becomes the replacement character."""
        encoding, _ = self._encoding(text)
        return [id_ for id_ in encoding.ids if id_ not in self._special]

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """`encode`, and where in the text each token ends."""
        encoding, inserted = self._encoding(text)
        ends = (end - bisect_left(inserted, end) for _, end in encoding.offsets)
        kept = [(id_, end) for id_, end in zip(encoding.ids, ends, strict=True) if id_ not in self._special]
        return [id_ for id_, _ in kept], [end for _, end in kept]

    def _encoding(self, text: str) -> tuple[Any, list[int]]:
        """The text encoded, and where characters were inserted before."""
        text = text.encode("utf-8", "replace").decode()
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        special = self._special.keys() & set(encoding.ids)
        if not special:
            return encoding, []
        # a vocabulary of whole words holds its special tokens as words: break these up
        words = re.compile("|".join(re.escape(self._special[id_]) for id_ in special))
        inserted = [match.start() + 1 + index for index, match in enumerate(words.finditer(text))]
        text = words.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", text)
        return self._tokenizer.encode(text, add_special_tokens=False), inserted

    def encode_prefix(self, text: str) -> list[int]:
        """Ids of a prefix of a response, as they are when a word follows: white space often becomes other tokens."""
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


plain_text = lru_cache(maxsize=4)(PlainText)
"""A tokenizer's `PlainText`, made once: with a large vocabulary that takes a second."""


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
                ids += plain.encode(self.family.image_end)
        return ids + after + plain.encode_prefix(prefix)

    def encode_chat(self, text: str, images: Sequence[Any] = (), *, prefix: str = "") -> dict[str, Any]:
        """Tensors for ``generate``: `chat_ids` as a batch of one, and the images' vision inputs."""
        import torch

        input_ids = torch.tensor([self.chat_ids(text, images, prefix=prefix)])
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if images:
            vision = self.family.preprocess(self.image_processor, as_placed(text, images))
            inputs |= {name: torch.as_tensor(array) for name, array in vision.items()}
        inputs |= self.family.batch_inputs(self.tokenizer, input_ids, has_images=bool(images))
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

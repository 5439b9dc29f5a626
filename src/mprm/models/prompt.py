"""The one prompt of a process reward model: from a chain of steps to token ids and the positions of ``<prm>``.

``<prm>`` follows each step; Yes and No are read there. The layout is the model's own:

- ``user``: images, question and steps in the user's turn.
- ``paper``: all of it in the assistant's turn, after an empty user's turn, as the released training code has it.
- ``chat``: images and question in the user's turn, steps in the assistant's, as a policy writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mprm.config import MAX_LENGTH, NEGATIVE, POSITIVE, PromptLayout
from mprm.data.format import PRM_TOKEN
from mprm.data.images import broken_image, image_size, open_image, place_images
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError
from mprm.models.chat import PlainText, chat_frame, paper_frame, plain_text
from mprm.models.families import Family, VisionInputs, concatenated

if TYPE_CHECKING:
    import torch

PROMPT_VERSION = 2
"""Changes whenever the same chain would give other ids; a checkpoint names the one it was trained with.

In version 1 each image has the whole tile budget, and white space stays between a leading image and the question.
"""

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
_image_cache: dict[Any, VisionInputs] | None = None


def cache_images() -> None:
    """Keep the vision inputs of every image file in memory from now on: for many runs over small images."""
    global _image_cache
    _image_cache = {}


class StepTokens(NamedTuple):
    """Ids of the step token and of the two answers."""

    prm: int
    yes: int
    no: int


def step_tokens(
    tokenizer: Any, *, step: str = PRM_TOKEN, positive: str = POSITIVE, negative: str = NEGATIVE
) -> StepTokens:
    """Ids of the tokens, each checked to be one known token; adds the step token where it is missing."""
    from tokenizers import AddedToken

    if step not in tokenizer.get_added_vocab():
        # normalized=False: no tokenizer's text clean-up may change what the token looks like
        tokenizer.add_tokens([AddedToken(step, special=True, normalized=False)], special_tokens=True)
    ids: list[int] = []
    for text in (step, positive, negative):
        own = tokenizer.encode(text, add_special_tokens=False)
        if len(own) != 1 or own[0] == tokenizer.unk_token_id:
            split = f"the tokenizer splits {text!r} into {tokenizer.convert_ids_to_tokens(own)}"
            raise ConfigError(f"{split}; expected one known token. Name others with --positive and --negative.")
        ids += own
    tokens = StepTokens(*ids)
    if len(set(tokens)) < 3:
        raise ConfigError(f"{step!r}, {positive!r} and {negative!r} must be three tokens, got the ids {tokens}")
    return tokens


class Prompt(NamedTuple):
    """What precedes the steps of a chain, and is the same for all chains of a problem."""

    ids: list[int]
    text: str
    """Tokenized with the first step."""
    image_sizes: dict[int, tuple[int, int]]
    """Width and height of each image that is shown, by its index."""


@dataclass(frozen=True, slots=True)
class TokenizedChain:
    """A chain as token ids; `PromptEncoder.add_pixel_values` adds what the vision tower takes."""

    input_ids: list[int]
    prm_positions: list[int]
    """Index of each step's ``<prm>``; truncated steps have none."""
    n_steps: int
    """Steps of the chain, truncated ones included."""
    images: tuple[Any, ...] = ()
    """Paths or PIL images, in the order of their placeholders."""
    image_sizes: tuple[tuple[int, int], ...] = ()
    vision: VisionInputs = field(default_factory=dict)

    @property
    def n_truncated(self) -> int:
        return self.n_steps - len(self.prm_positions)

    @property
    def scored_ids(self) -> Ids:
        """The ids up to the last ``<prm>``: no step depends on what follows it."""
        return np.asarray(self.input_ids[: self.prm_positions[-1] + 1], dtype=np.int64)

    @property
    def image_key(self) -> tuple[Any, ...]:
        """Equal for chains with the same images: the paths, or the identities of images in memory."""
        return tuple(str(image) if isinstance(image, str | Path) else id(image) for image in self.images)


@dataclass(frozen=True)
class PromptEncoder:
    """Turns chains into ids with one tokenizer, image processor and set of step tokens."""

    tokenizer: Any
    image_processor: Any
    family: Family
    tokens: StepTokens
    max_length: int = MAX_LENGTH
    image_root: str | Path | None = None
    layout: PromptLayout = "user"
    version: int = PROMPT_VERSION

    @cached_property
    def _plain(self) -> PlainText:
        return plain_text(self.tokenizer)

    @cached_property
    def _frame(self) -> tuple[list[int], str, list[int], list[int]]:
        """Ids before the question, text to be tokenized with it, ids between question and steps, ids at the end."""
        if self.layout == "paper":
            before, text, end = paper_frame(self.tokenizer, self.family.system_message)
            return before, text, [], end
        before, end = chat_frame(self.tokenizer)
        between: list[int] = []
        if self.layout == "chat":
            before, between = chat_frame(self.tokenizer, add_generation_prompt=True)
        return before, "", between, end

    @property
    def n_end_tokens(self) -> int:
        """Tokens after the last ``<prm>``."""
        return len(self._frame[-1])

    @cached_property
    def _vision_key(self) -> tuple[Any, ...]:
        """What an image's vision inputs depend on, besides the image."""
        return self.family.name, self.image_processor.to_json_string(), self.version, self.image_root

    def encode(self, chain: Chain) -> TokenizedChain:
        return self.add_pixel_values(self.tokenize(chain))

    def tokenize(self, chain: Chain, prompt: Prompt | None = None) -> TokenizedChain:
        """Ids and positions of ``<prm>``, truncated to ``max_length``; only the headers of image files are read."""
        ids, text, sizes = prompt or self.prompt(chain)
        ids, positions = ids.copy(), []
        for step in chain.steps:
            ids += self._plain.encode(text + step.strip())
            positions.append(len(ids))
            ids.append(self.tokens.prm)
            text = "\n\n"
        ids += self._frame[-1]
        kept = [position for position in positions if position < self.max_length]
        images = tuple(chain.images[index] for index in sizes)
        return TokenizedChain(ids[: self.max_length], kept, len(chain.steps), images, tuple(sizes.values()))

    def tokenize_all(self, chains: Sequence[Chain]) -> list[TokenizedChain]:
        """Each of them; those that follow each other with the same question and image paths share the prompt."""
        tokenized: list[TokenizedChain] = []
        before: tuple[Any, ...] | None = None
        for chain in chains:
            key = (chain.question, chain.images) if all(isinstance(image, str) for image in chain.images) else None
            if key is None or key != before:
                before, prompt = key, self.prompt(chain)
            tokenized.append(self.tokenize(chain, prompt))
        return tokenized

    def n_prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens before the first step; in most vocabularies one fewer, where its first word joins on."""
        return min(self.max_length, len(prompt.ids) + len(self._plain.encode(prompt.text)))

    def prompt(self, chain: Chain) -> Prompt:
        """What precedes the chain's steps; only the headers of image files are read."""
        ids, text, sizes = list[int](), "", dict[int, tuple[int, int]]()
        for segment in self._segments(chain.question.strip(), len(chain.images)):
            if isinstance(segment, str):
                text += segment
                continue
            ids += self._plain.encode(text)
            text = ""
            if isinstance(segment, int):
                image = chain.images[segment]
                size = sizes[segment] = image_size(image, self.image_root)
                n_images = len(chain.images) if self.version > 1 else 1
                segment = self.family.image_ids(self.tokenizer, self.image_processor, image, size, n_images)
            ids += segment
        return Prompt(ids, text, sizes)

    def _segments(self, question: str, n_images: int) -> list[str | int | list[int]]:
        """What precedes the steps: text, images by index, and ids."""
        before, text, between, _ = self._frame
        if self.layout == "paper":
            leading = "<image>\n" * n_images if question.count("<image>") < n_images else ""
            first, *texts = f"{text}{leading}Question: {question}\nProcess: ".split("<image>", n_images)
            return [before, first, *(part for index, text in enumerate(texts) for part in (index, text))]
        segments: list[str | int | list[int]] = [before]
        pieces, image_end = place_images(question, n_images), self._plain.encode(self.family.image_end)
        if self.layout == "chat":
            for piece in pieces:
                segments += [piece, image_end] if isinstance(piece, int) else [piece]
            return [*segments, between]
        # images that precede the question precede its heading too
        while pieces and isinstance(pieces[0], int):
            segments += [pieces.pop(0), image_end]
        if pieces and isinstance(pieces[0], str) and self.version > 1:
            pieces[0] = pieces[0].lstrip()
        return [*segments, "Question: ", *pieces, "\nProcess: "]

    def add_pixel_values(self, chain: TokenizedChain, cache: dict[Any, VisionInputs] | None = None) -> TokenizedChain:
        """The chain with the vision inputs of its images; ``cache`` holds those decoded before."""
        if not chain.images or not chain.prm_positions:
            return chain
        key: Any = chain.image_key
        cache = {} if cache is None else cache
        if _image_cache is not None and all(isinstance(image, str) for image in chain.images):
            cache, key = _image_cache, (self._vision_key, key)
        if key in cache:
            return replace(chain, vision=cache[key])
        images = [open_image(image, self.image_root) for image in chain.images]
        for name, image, (width, height) in zip(chain.images, images, chain.image_sizes, strict=True):
            if image.size != (width, height):
                was = f"{width} × {height} when its chain was tokenized; it must not change meanwhile"
                raise DataError(f"image {name} has {image.width} × {image.height} pixels, and had {was}")
        cache[key] = self.family.preprocess(self.image_processor, images, len(images) if self.version > 1 else 1)
        return replace(chain, vision=cache[key])

    def image_error(self, image: str) -> str | None:
        """Why no chain with the image can be encoded, or None; all of it is decoded."""
        if reason := broken_image(image, self.image_root):
            return reason
        try:
            self.prompt(Chain("", (), (image,)))
        except DataError as error:  # of a shape that the backbone cannot take
            return str(error)
        return None

    def collate(self, batch: Sequence[TokenizedChain]) -> dict[str, torch.Tensor]:
        """A batch for `PRMModel`: ids padded on the right; ``prm_index`` counts in the flattened (B·T) batch."""
        import torch

        rows = [torch.tensor(chain.input_ids) for chain in batch]
        pad = self.tokenizer.pad_token_id
        input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else pad)
        width = input_ids.shape[1]
        index = [row * width + position for row, chain in enumerate(batch) for position in chain.prm_positions]
        inputs = {"input_ids": input_ids, "prm_index": torch.tensor(index)}
        names = {name for chain in batch for name in chain.vision}
        for name in sorted(names):
            inputs[name] = concatenated([torch.as_tensor(chain.vision[name]) for chain in batch if chain.vision])
        return inputs | self.family.batch_inputs(self.tokenizer, input_ids, has_images=bool(names))

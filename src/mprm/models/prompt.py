"""The three tokens of a process reward model: ``<prm>`` after each step, Yes and No read there.

The one prompt: from a chain of steps to token ids and the places of ``<prm>``.

An encoder that remembers, for many short runs on the same data in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.data.images import as_placed, broken_image, image_size, open_image, place_images
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError, MprmError
from mprm.models.chat import chat_frame, plain_text
from mprm.models.families import Arrays, Family

if TYPE_CHECKING:
    import torch


PRM_TOKEN = "<prm>"
POSITIVE, NEGATIVE = "Yes", "No"


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Ids of the step mark and of the two answers."""

    prm: int
    yes: int
    no: int


def step_tokens(
    tokenizer: Any, *, step: str = PRM_TOKEN, positive: str = POSITIVE, negative: str = NEGATIVE
) -> StepTokens:
    """Ids of the tokens, each checked to be one known token; adds the step mark where it is not there."""
    from tokenizers import AddedToken

    if step not in tokenizer.get_added_vocab():
        # normalized=False: no tokenizer's text clean-up may change what the mark looks like
        tokenizer.add_tokens([AddedToken(step, special=True, normalized=False)], special_tokens=True)
    tokens = StepTokens(_single(tokenizer, step), _single(tokenizer, positive), _single(tokenizer, negative))
    if len({tokens.prm, tokens.yes, tokens.no}) < 3:
        raise ConfigError(f"{step!r}, {positive!r} and {negative!r} must be three tokens, got the ids {tokens}")
    return tokens


def _single(tokenizer: Any, text: str) -> int:
    """The one id that the text is, or an error that says what it is instead."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"the tokenizer splits {text!r} into {tokenizer.convert_ids_to_tokens(ids)}; expected one known token."
            " Name other answers with --positive and --negative."
        )
    return int(ids[0])


def grow_embeddings(model: Any, tokenizer: Any, new_id: int | None) -> None:
    """Give every token a row in the embeddings and the head, never taking one away; set a new token's rows.

    The table may have more rows than the tokenizer has tokens (Qwen2.5-VL has 152,064 for 151,665): it
    keeps them. A new token starts at the mean of the known ones, so that two loads give the same model.
    """
    import torch

    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    with gathered([table.weight for table in tables]):
        rows = tables[0].weight.shape[0]
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if new_id is None:
        return
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    with torch.no_grad(), gathered([table.weight for table in tables]):
        for table in tables:
            known = table.weight[: min(rows, new_id)]
            table.weight[new_id] = known.float().mean(dim=0).to(known.dtype)


def gathered(weights: list[Any]) -> Any:
    """While it is open every weight is whole, also where DeepSpeed has split it over the ranks."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(weights, modifier_rank=0)


PROMPT_VERSION = 1
"""Changes whenever the same chain would give other ids; a checkpoint names the one it was trained with."""
MAX_LENGTH = 8192


@dataclass(frozen=True, slots=True)
class Encoded:
    """A chain as the model sees it."""

    ids: list[int]
    positions: list[int]
    """Where each step's ``<prm>`` stands; steps cut off by truncation have none."""
    n_steps: int
    """Steps of the chain, cut off or not."""
    vision: Arrays = field(default_factory=dict)
    images: tuple[Any, ...] = ()
    """What tells its images from others, as they stand in the question: paths, or the numbers of images in memory."""

    @property
    def n_lost(self) -> int:
        """Steps that truncation cut off; they are the last ones."""
        return self.n_steps - len(self.positions)


class PromptEncoder:
    """Turns chains into ids with one tokenizer, image processor and set of step tokens."""

    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any,
        family: Family,
        tokens: StepTokens,
        *,
        max_length: int = MAX_LENGTH,
        image_root: str | Path | None = None,
    ) -> None:
        if max_length < 1:
            raise ConfigError(f"max_length must be at least 1, got {max_length}")
        self.tokenizer, self.image_processor, self.family, self.tokens = tokenizer, image_processor, family, tokens
        self.max_length, self.image_root = max_length, image_root
        self._plain = plain_text(tokenizer)
        self._before, self._after = chat_frame(tokenizer)
        self._image_end = self._plain.encode(family.image_end) if family.image_end else []

    def encode(self, chain: Chain) -> Encoded:
        """Ids, places of ``<prm>`` and vision inputs; cut off at ``max_length`` from the end."""
        return self.see(chain, self.measure(chain))

    def see(self, chain: Chain, measured: Encoded) -> Encoded:
        """What was measured, with the vision inputs."""
        if not chain.images or not measured.positions:
            return measured
        images = [open_image(image, self.image_root) for image in _placed(chain)]
        return replace(measured, vision=self.family.preprocess(self.image_processor, images))

    def n_prompt(self, chain: Chain) -> int:
        """Tokens before the first step; one fewer, in most vocabularies, where its first word joins on."""
        ids, text = self._prompt(chain)
        return min(self.max_length, len(ids) + len(self._plain.encode(text)))

    def measure(self, chain: Chain) -> Encoded:
        """Ids and places of ``<prm>`` without the vision inputs: of the images only their size is read."""
        ids, text = self._prompt(chain)
        positions = []
        for step in chain.steps:
            ids += self._plain.encode(text + step.strip())
            positions.append(len(ids))
            ids.append(self.tokens.prm)
            text = "\n\n"
        ids += self._after
        kept = [position for position in positions if position < self.max_length]
        return Encoded(ids[: self.max_length], kept, len(chain.steps), images=_told_apart(_placed(chain)))

    def _prompt(self, chain: Chain) -> tuple[list[int], str]:
        """Ids of all but the last piece of what stands before the steps, and that piece, to be encoded with them."""
        ids = list(self._before)
        pieces = place_images(chain.question.strip(), len(chain.images))
        # images that stand before the question stand before its heading too
        while pieces and isinstance(pieces[0], int):
            ids += self._image(chain, pieces.pop(0)) + self._image_end
        text = "Question: "
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                ids += self._plain.encode(text) + self._image(chain, piece)
                text = ""
        return ids, text + "\nProcess: "

    def _image(self, chain: Chain, number: Any) -> list[int]:
        image = chain.images[number]
        size = image_size(image, self.image_root)
        try:
            n_tokens = self.family.n_image_tokens(self.image_processor, *size)
        except MprmError:
            raise
        except ValueError as error:  # of a shape that the backbone cannot take
            raise DataError(f"image {image} of {size[0]} × {size[1]} pixels cannot be used: {error}") from error
        return self.family.image_ids(self.tokenizer, n_tokens)

    def why_unusable(self, image: str) -> str | None:
        """Why no chain with the image can be encoded, or None: it is decoded to its end."""
        reason = broken_image(image, self.image_root)
        if reason is None:
            try:
                self.measure(Chain("", ("",), (image,)))
            except DataError as error:  # of a shape that the backbone cannot take
                return str(error)
        return reason

    def collate(self, batch: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """A batch for the step reader: ids padded on the right, and where each ``<prm>`` stands in it.

        ``prm_index`` holds positions in the flattened (B·T) batch, chain by chain and step by step.
        """
        import torch

        width = max(len(encoded.ids) for encoded in batch)
        pad = self.tokenizer.pad_token_id
        input_ids = torch.full((len(batch), width), 0 if pad is None else pad)
        # the mask knows where the padding is; its id may be a real token elsewhere
        attention_mask = torch.zeros(len(batch), width, dtype=torch.long)
        for row, encoded in enumerate(batch):
            input_ids[row, : len(encoded.ids)] = torch.tensor(encoded.ids)
            attention_mask[row, : len(encoded.ids)] = 1
        index = [row * width + place for row, encoded in enumerate(batch) for place in encoded.positions]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "prm_index": torch.tensor(index)}
        names = {name for encoded in batch for name in encoded.vision}
        for name in sorted(names):
            arrays = [torch.as_tensor(encoded.vision[name]) for encoded in batch if name in encoded.vision]
            inputs[name] = torch.cat(arrays)
        if names:
            inputs |= self.family.batch_inputs(self.tokenizer, input_ids)
        return inputs


def _placed(chain: Chain) -> tuple[Any, ...]:
    return as_placed(chain.question.strip(), chain.images)


def _told_apart(images: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(str(image) if isinstance(image, str | Path) else id(image) for image in images)


@dataclass(slots=True)
class Memory:
    """What encoders of one kind made of chains and images; needs room for all of it, as nothing is forgotten."""

    measured: dict[Chain, Encoded] = field(default_factory=dict)
    n_prompt: dict[Chain, int] = field(default_factory=dict)
    vision: dict[tuple[Any, ...], Arrays] = field(default_factory=dict)
    """Of images in the order in which they stand in a question."""
    broken: dict[str, str | None] = field(default_factory=dict)
    """Why an image cannot be used; None where it can."""
    asked_by: Any = None
    """What its encoders have in common."""


class RememberingEncoder(PromptEncoder):
    """`PromptEncoder` that looks into a memory first; the files that it reads must not change meanwhile."""

    def __init__(self, *args: Any, memory: Memory, **options: Any) -> None:
        super().__init__(*args, **options)
        settings = (self.family.name, self.tokens, self.max_length, str(self.image_root))
        asked_by = (*settings, self.tokenizer.get_vocab(), str(self.image_processor))
        if memory.asked_by not in (None, asked_by):
            raise ConfigError("a memory serves encoders of one tokenizer, image processor and image root alone")
        memory.asked_by = asked_by
        self.memory = memory

    def measure(self, chain: Chain) -> Encoded:
        """See `PromptEncoder.measure`."""
        if not _has_paths(chain):
            return super().measure(chain)
        found = self.memory.measured.get(chain)
        if found is None:
            found = self.memory.measured[chain] = super().measure(chain)
        return found

    def n_prompt(self, chain: Chain) -> int:
        """See `PromptEncoder.n_prompt`."""
        if not _has_paths(chain):
            return super().n_prompt(chain)
        found = self.memory.n_prompt.get(chain)
        if found is None:
            found = self.memory.n_prompt[chain] = super().n_prompt(chain)
        return found

    def see(self, chain: Chain, measured: Encoded) -> Encoded:
        """See `PromptEncoder.see`."""
        if not measured.positions or not chain.images or not _has_paths(chain):
            return super().see(chain, measured)
        found = self.memory.vision.get(measured.images)
        if found is None:
            found = self.memory.vision[measured.images] = super().see(chain, measured).vision
        return replace(measured, vision=found)

    def why_unusable(self, image: str) -> str | None:
        """See `PromptEncoder.why_unusable`."""
        if image not in self.memory.broken:
            self.memory.broken[image] = super().why_unusable(image)
        return self.memory.broken[image]


def _has_paths(chain: Chain) -> bool:
    """Whether all images are named by paths; those in memory are not remembered."""
    return all(isinstance(image, str) for image in chain.images)

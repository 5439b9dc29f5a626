r"""The one prompt: from a chain of steps to token ids and the places of ``<prm>``.

Training, evaluation, reranking and serving all come through `PromptEncoder.encode`, so that a model
is asked exactly what it was taught::

    <chat template's beginning> images Question: {q}\nProcess: s1<prm>\n\ns2<prm> <chat template's end>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mprm.backbones.chat import chat_frame, plain_text
from mprm.backbones.family import Arrays, Family
from mprm.backbones.step_tokens import StepTokens
from mprm.errors import ConfigError, DataError, MprmError
from mprm.rollouts.chain import Chain
from mprm.rollouts.images import broken_image, image_size, open_image
from mprm.rollouts.place_images import as_placed, place_images

if TYPE_CHECKING:
    import torch

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

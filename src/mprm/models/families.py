"""What differs between backbones: image tokens, image preprocessing, positions, and where the vision tower is."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mprm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

VisionInputs = dict[str, Any]
"""Vision inputs of one chain, by the name that the model's forward takes; each a numpy array."""
INTERNVL2_5_SYSTEM = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
NO_IMAGES = "a text model cannot see images; use a Qwen2.5-VL or InternVL checkpoint, or rollouts without images"


class Family:
    """Any causal language model, for chains without images; the others override what differs. Holds no weights."""

    name = "text"
    architecture = "AutoModelForCausalLM"
    image_tokens: tuple[str, ...] = ()
    """First token, placeholder and last token of an image; empty for a text model."""
    image_settings: ClassVar[dict[str, int]] = {}
    """What can be set about images, and the paper's values."""
    image_end = ""
    """Text between an image that precedes the question and what follows it."""
    system_message = ""
    """Of the released training code's conversation; empty where it has none for the family."""
    vision_tower_path, projector_path = "", ""

    def model_class(self) -> Any:
        import transformers

        return getattr(transformers, self.architecture)

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """The checkpoint's Pillow image processor at the paper's settings and these; None for a text model."""
        return None

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        raise DataError(NO_IMAGES)

    def image_ids(
        self, tokenizer: Any, processor: Any, image: Any, size: tuple[int, int], n_images: int = 1
    ) -> list[int]:
        """Token ids that stand for an image of ``size`` (width, height), one of ``n_images`` that share a budget."""
        try:
            n_tokens = self.n_image_tokens(processor, *size, n_images)
        except ValueError as error:  # a text model, or of a shape that the backbone cannot take
            raise DataError(f"image {image} of {size[0]} × {size[1]} pixels cannot be used: {error}") from error
        start, placeholder, end = tokenizer.convert_tokens_to_ids(list(self.image_tokens))
        return [start, *[placeholder] * n_tokens, end]

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        raise DataError(NO_IMAGES)

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: VisionInputs) -> Any:
        """Position of each token of one chain, an array of shape (axes, tokens)."""
        return np.arange(len(ids))[None]

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Further inputs that the model needs for a padded batch with images."""
        return {}

    def vision_tower(self, model: Any) -> Any:
        """The module that stays frozen and in eval mode, or None."""
        return attrgetter(self.vision_tower_path)(model) if self.vision_tower_path else None

    def projector(self, model: Any) -> Any:
        """The trained module between vision tower and language model, or None."""
        return attrgetter(self.projector_path)(model) if self.projector_path else None


class Qwen25VL(Family):
    """Qwen2.5-VL: images at their own shape, at most 256 tokens each at the paper's setting; M-RoPE positions."""

    name = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"
    vision_tower_path, projector_path = "model.visual", "model.visual.merger"
    image_tokens = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    image_settings: ClassVar[dict[str, int]] = {"min_pixels": 784, "max_pixels": 200_704}
    """28 × 28 pixels a token: 1 to 256 tokens an image."""

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        bounds = {**self.image_settings, **settings}
        if bounds["min_pixels"] > bounds["max_pixels"] or bounds["max_pixels"] < 784:
            raise ConfigError(f"min_pixels must be at most max_pixels, that at least 784 (one token), got {bounds}")
        # both bounds are passed, or the checkpoint's own would apply
        size = {"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]}
        return Qwen2VLImageProcessorPil.from_pretrained(path, size=size)

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        return int(processor.get_number_of_image_patches(height, width, {}) // processor.merge_size**2)

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        inputs = processor(list(images), return_tensors="np")
        return {"pixel_values": inputs["pixel_values"], "image_grid_thw": inputs["image_grid_thw"]}

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: VisionInputs) -> Any:
        """Time, height and width, shape (3, tokens): text counts on, an image as far as its longer side."""
        is_image = ids == tokenizer.convert_tokens_to_ids(self.image_tokens[1])
        positions = np.empty((3, len(ids)), np.int64)
        token = position = 0
        for _, rows, columns in vision.get("image_grid_thw", ()):
            height, width = int(rows) // processor.merge_size, int(columns) // processor.merge_size
            image = token + int(is_image[token:].argmax())
            positions[:, token:image] = position + np.arange(image - token)
            position += image - token
            token = image + height * width
            positions[:, image:token] = position + np.indices((1, height, width)).reshape(3, -1)
            position += max(height, width)
        positions[:, token:] = position + np.arange(len(ids) - token)
        return positions

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Which tokens are of an image: without it the model silently falls back to text positions."""
        return {"mm_token_type_ids": (input_ids == tokenizer.convert_tokens_to_ids(self.image_tokens[1])).int()}


class InternVL(Family):
    """InternVL2.5: images are cut into tiles of 448 pixels, at most six and thumbnails, 256 tokens each."""

    name = "internvl"
    architecture = "InternVLForConditionalGeneration"
    vision_tower_path, projector_path = "model.vision_tower", "model.multi_modal_projector"
    image_tokens = ("<img>", "<IMG_CONTEXT>", "</img>")
    image_settings: ClassVar[dict[str, int]] = {"max_patches": 6}
    image_end = "\n"
    system_message = INTERNVL2_5_SYSTEM

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        from transformers import AutoConfig
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        patches = {**self.image_settings, **settings}["max_patches"]
        processor = GotOcr2ImageProcessorPil.from_pretrained(path, max_patches=patches, crop_to_patches=True)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        side = config.vision_config.image_size[0]
        if (processor.size["height"], processor.size["width"]) != (side, side):
            raise ConfigError(f"{path}: the vision tower takes {side} pixels, its processor makes {processor.size}")
        processor.tokens_per_tile = config.image_seq_length
        return processor

    def n_image_tokens(self, processor: Any, width: int, height: int, n_images: int = 1) -> int:
        budget = {"max_patches": max(1, processor.max_patches // n_images)}
        return int(processor.get_number_of_image_patches(height, width, budget)) * int(processor.tokens_per_tile)

    def preprocess(self, processor: Any, images: Sequence[Image], n_images: int = 1) -> VisionInputs:
        tiles = processor(list(images), max_patches=max(1, processor.max_patches // n_images))
        return {"pixel_values": np.stack(tiles["pixel_values"])}


FAMILIES: dict[str, Family] = {"qwen2_5_vl": Qwen25VL(), "internvl": InternVL()}
"""By the checkpoint's ``model_type``; every other type is a text model."""


def group_equal_grids(grids: Any) -> Any:
    """Grids of images, shape (n, 3), with consecutive images of one size as frames of one video: faster.

    Examples
    --------
    >>> import torch
    >>> group_equal_grids(torch.tensor([[1, 8, 8], [1, 8, 8], [1, 4, 8]])).tolist()
    [[2, 8, 8], [1, 4, 8]]
    """
    import torch

    sizes, counts = torch.unique_consecutive(grids[:, 1:], dim=0, return_counts=True)
    frames = [int(group.sum()) for group in grids[:, 0].split(counts.tolist())]
    return torch.cat([torch.tensor(frames)[:, None], sizes], dim=1)

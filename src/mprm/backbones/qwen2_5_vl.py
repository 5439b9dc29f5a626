"""Qwen2.5-VL: images at their own shape, at most 256 tokens each at the paper's setting; M-RoPE positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mprm.backbones.family import Arrays
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

SETTINGS = {"min_pixels": 784, "max_pixels": 200_704}
"""28 × 28 pixels a token: 1 to 256 tokens an image."""


def as_frames(grids: Any) -> Any:
    """Grids of images, shape (n, 3), with neighbours of one size as frames of one film.

    The vision tower sees each frame by itself, as it does images, but goes through images one by one.

    Examples
    --------
    >>> import torch
    >>> as_frames(torch.tensor([[1, 8, 8], [1, 8, 8], [1, 4, 8]])).tolist()
    [[2, 8, 8], [1, 4, 8]]
    """
    import torch

    sizes, counts = torch.unique_consecutive(grids[:, 1:], dim=0, return_counts=True)
    frames = [int(some.sum()) for some in grids[:, 0].split(counts.tolist())]
    return torch.cat([torch.tensor(frames)[:, None], sizes], dim=1)


class Qwen25VL:
    """See `Family`."""

    name = "qwen2_5_vl"
    image_tokens: tuple[str, ...] = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    image_settings: dict[str, int] = SETTINGS
    image_end = ""

    def model_class(self) -> Any:
        """See `Family.model_class`."""
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """See `Family.image_processor`; both pixel bounds are passed, or the checkpoint's own would stand."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        bounds = {**SETTINGS, **settings}
        if bounds["min_pixels"] > bounds["max_pixels"] or bounds["max_pixels"] < 784:
            raise ConfigError(
                f"min_pixels must be at most max_pixels, and that at least 784 (one token), got {bounds}"
            )
        size = {"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]}
        processor = Qwen2VLImageProcessorPil.from_pretrained(path, size=size)
        assert dict(processor.size) == size, processor.size
        return processor

    def image_ids(self, tokenizer: Any, n_tokens: int) -> list[int]:
        """See `Family.image_ids`."""
        start, pad, end = tokenizer.convert_tokens_to_ids(list(self.image_tokens))
        return [start, *[pad] * n_tokens, end]

    def n_image_tokens(self, processor: Any, width: int, height: int) -> int:
        """See `Family.n_image_tokens`."""
        return int(processor.get_number_of_image_patches(height, width, {}) // processor.merge_size**2)

    def preprocess(self, processor: Any, images: Sequence[Image]) -> Arrays:
        """Patches of all images in one array, and each image's grid."""
        done = processor(list(images), return_tensors="np")
        return {"pixel_values": done["pixel_values"], "image_grid_thw": done["image_grid_thw"]}

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: Arrays) -> Any:
        """Time, height and width, shape (3, tokens): text counts on, an image as far as its longer side."""
        import numpy as np

        is_image = ids == tokenizer.convert_tokens_to_ids(self.image_tokens[1])
        found = np.empty((3, len(ids)), np.int64)
        place = position = 0
        for _, rows, columns in vision.get("image_grid_thw", ()):
            height, width = int(rows) // processor.merge_size, int(columns) // processor.merge_size
            image = place + int(is_image[place:].argmax())
            found[:, place:image] = position + np.arange(image - place)
            position += image - place
            place = image + height * width
            found[:, image:place] = position + np.indices((1, height, width)).reshape(3, -1)
            position += max(height, width)
        found[:, place:] = position + np.arange(len(ids) - place)
        return found

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Which tokens are of an image: without it the model falls back to text positions in silence."""
        image_pad = tokenizer.convert_tokens_to_ids(self.image_tokens[1])
        return {"mm_token_type_ids": (input_ids == image_pad).int()}

    def blank_vision(self, model: Any) -> dict[str, Any]:
        """One merged patch of zeros."""
        import torch

        vision = model.config.vision_config
        merge = vision.spatial_merge_size
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return {
            "pixel_values": torch.zeros(merge * merge, width, device=model.device),
            "image_grid_thw": torch.tensor([[1, merge, merge]], device=model.device),
        }

    def vision_tower(self, model: Any) -> Any:
        """See `Family.vision_tower`."""
        return model.model.visual

    def projector(self, model: Any) -> Any:
        """The patch merger at the end of the vision module."""
        return model.model.visual.merger

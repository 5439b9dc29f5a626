"""What differs between backbones: image tokens, image preprocessing, and where the vision tower stands.

Any causal language model: a process reward model for chains without images.

Qwen2.5-VL: images at their own shape, at most 256 tokens each at the paper's setting; M-RoPE positions.

InternVL2.5: an image is cut into tiles of 448 pixels, at most six and a thumbnail, 256 tokens each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mprm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image


Arrays = dict[str, Any]
"""Vision inputs of one rollout, by the name that the model's forward takes; each a numpy array."""


class Family(Protocol):
    """One kind of backbone. Nothing here holds weights, so that data workers can use it."""

    name: str
    image_tokens: tuple[str, ...]
    """The tokens that stand for an image; none for a text model."""
    image_settings: dict[str, int]
    """What can be set about images, and the paper's values."""
    image_end: str
    """Text between an image that stands before the question and what follows it."""

    def model_class(self) -> Any:
        """The transformers class to load."""
        ...

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """The Pillow image processor of the checkpoint at the paper's settings, or None for a text model."""
        ...

    def image_ids(self, tokenizer: Any, n_tokens: int) -> list[int]:
        """The ids that stand for one image of ``n_tokens`` embeddings."""
        ...

    def n_image_tokens(self, processor: Any, width: int, height: int) -> int:
        """Number of embeddings of an image of that size."""
        ...

    def preprocess(self, processor: Any, images: Sequence[Image]) -> Arrays:
        """The vision inputs of one rollout's images."""
        ...

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: Arrays) -> Any:
        """Position of each token of one rollout, an array of shape (axes, tokens)."""
        ...

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Further inputs that the model needs for a padded batch of ids with images."""
        ...

    def blank_vision(self, model: Any) -> dict[str, Any]:
        """The smallest vision inputs, for a batch without images: every rank must use the projector."""
        ...

    def vision_tower(self, model: Any) -> Any:
        """The module that stays frozen and in eval mode, or None."""
        ...

    def projector(self, model: Any) -> Any:
        """The module between vision tower and language model, which is trained; or None."""
        ...


NO_IMAGES = "a text model cannot see images; use a Qwen2.5-VL or InternVL checkpoint, or rollouts without images"


class Text:
    """See `Family`."""

    name = "text"
    image_tokens: tuple[str, ...] = ()
    image_settings: dict[str, int] = {}  # noqa: RUF012 - never changed
    image_end = ""

    def model_class(self) -> Any:
        """See `Family.model_class`."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """None."""
        return None

    def image_ids(self, tokenizer: Any, n_tokens: int) -> list[int]:
        """Refuses."""
        raise DataError(NO_IMAGES)

    def n_image_tokens(self, processor: Any, width: int, height: int) -> int:
        """Refuses."""
        raise DataError(NO_IMAGES)

    def preprocess(self, processor: Any, images: Sequence[Image]) -> Arrays:
        """Refuses."""
        raise DataError(NO_IMAGES)

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: Arrays) -> Any:
        """Those of text: 0, 1, 2 and so on."""
        import numpy as np

        return np.arange(len(ids))[None]

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Nothing."""
        return {}

    def blank_vision(self, model: Any) -> dict[str, Any]:
        """Nothing."""
        return {}

    def vision_tower(self, model: Any) -> Any:
        """None."""
        return None

    def projector(self, model: Any) -> Any:
        """None."""
        return None


QWEN2_5_VL_SETTINGS = {"min_pixels": 784, "max_pixels": 200_704}
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
    image_settings: dict[str, int] = QWEN2_5_VL_SETTINGS
    image_end = ""

    def model_class(self) -> Any:
        """See `Family.model_class`."""
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """See `Family.image_processor`; both pixel bounds are passed, or the checkpoint's own would stand."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        bounds = {**QWEN2_5_VL_SETTINGS, **settings}
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


INTERNVL_SETTINGS = {"max_patches": 6}


class InternVL:
    """See `Family`."""

    name = "internvl"
    image_tokens: tuple[str, ...] = ("<img>", "<IMG_CONTEXT>", "</img>")
    image_settings: dict[str, int] = INTERNVL_SETTINGS
    image_end = "\n"

    def model_class(self) -> Any:
        """See `Family.model_class`."""
        from transformers import InternVLForConditionalGeneration

        return InternVLForConditionalGeneration

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """See `Family.image_processor`; remembers how many tokens a tile has."""
        from transformers import AutoConfig
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        patches = {**INTERNVL_SETTINGS, **settings}["max_patches"]
        processor = GotOcr2ImageProcessorPil.from_pretrained(path, max_patches=patches, crop_to_patches=True)
        config = AutoConfig.from_pretrained(path)
        side = config.vision_config.image_size[0]
        if (processor.size["height"], processor.size["width"]) != (side, side):
            raise ConfigError(
                f"{path}: the image processor makes tiles of {dict(processor.size)}, the vision tower takes"
                f" {side} pixels"
            )
        processor.tokens_per_tile = config.image_seq_length
        return processor

    def image_ids(self, tokenizer: Any, n_tokens: int) -> list[int]:
        """See `Family.image_ids`."""
        start, context, end = tokenizer.convert_tokens_to_ids(list(self.image_tokens))
        return [start, *[context] * n_tokens, end]

    def n_image_tokens(self, processor: Any, width: int, height: int) -> int:
        """See `Family.n_image_tokens`."""
        return int(processor.get_number_of_image_patches(height, width, {})) * int(processor.tokens_per_tile)

    def preprocess(self, processor: Any, images: Sequence[Image]) -> Arrays:
        """The tiles of all images in one array."""
        import numpy as np

        return {"pixel_values": np.stack(processor(list(images))["pixel_values"])}

    def positions(self, tokenizer: Any, processor: Any, ids: Any, vision: Arrays) -> Any:
        """Those of text: 0, 1, 2 and so on."""
        import numpy as np

        return np.arange(len(ids))[None]

    def batch_inputs(self, tokenizer: Any, input_ids: Any) -> dict[str, Any]:
        """Nothing: positions are those of text."""
        return {}

    def blank_vision(self, model: Any) -> dict[str, Any]:
        """One tile of zeros."""
        import torch

        vision = model.config.vision_config
        return {"pixel_values": torch.zeros(1, vision.num_channels, *vision.image_size, device=model.device)}

    def vision_tower(self, model: Any) -> Any:
        """See `Family.vision_tower`."""
        return model.model.vision_tower

    def projector(self, model: Any) -> Any:
        """See `Family.projector`."""
        return model.model.multi_modal_projector

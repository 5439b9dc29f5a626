"""InternVL2.5: an image is cut into tiles of 448 pixels, at most six and a thumbnail, 256 tokens each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mprm.backbones.family import Arrays
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

SETTINGS = {"max_patches": 6}


class InternVL:
    """See `Family`."""

    name = "internvl"
    image_tokens: tuple[str, ...] = ("<img>", "<IMG_CONTEXT>", "</img>")
    image_settings: dict[str, int] = SETTINGS
    image_end = "\n"

    def model_class(self) -> Any:
        """See `Family.model_class`."""
        from transformers import InternVLForConditionalGeneration

        return InternVLForConditionalGeneration

    def image_processor(self, path: str, settings: dict[str, int]) -> Any:
        """See `Family.image_processor`; remembers how many tokens a tile has."""
        from transformers import AutoConfig
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        patches = {**SETTINGS, **settings}["max_patches"]
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

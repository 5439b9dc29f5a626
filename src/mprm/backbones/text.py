"""Any causal language model: a process reward model for chains without images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mprm.backbones.family import Arrays
from mprm.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

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

"""What differs between backbones: image tokens, image preprocessing, and where the vision tower stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

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

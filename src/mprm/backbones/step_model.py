"""A backbone made ready to read steps: ``<prm>`` in its vocabulary, the two-row read-out, its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mprm.backbones.card import Card
from mprm.backbones.family import Family
from mprm.backbones.load import load_backbone
from mprm.backbones.prompt import PromptEncoder
from mprm.backbones.remembering import Memory, RememberingEncoder
from mprm.backbones.step_tokens import grow_embeddings, step_tokens
from mprm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepModel:
    """A model that reads steps, and the encoder that asks it."""

    model: Any
    encoder: PromptEncoder
    family: Family

    def save_beside(self, folder: str | Path) -> None:
        """Write tokenizer and image processor into the checkpoint's folder."""
        self.encoder.tokenizer.save_pretrained(str(folder))
        if self.encoder.image_processor is not None:
            self.encoder.image_processor.save_pretrained(str(folder))


def load_step_model(
    path: str | Path,
    card: Card,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str | None = None,
    image_root: str | Path | None = None,
    is_trained: bool = False,
    memory: Memory | None = None,
) -> StepModel:
    """Load any checkpoint, before or after it was trained, as a model that reads steps.

    Parameters
    ----------
    path
        Folder in Hugging Face format; the tokens that ``card`` names are added where they are missing.
    dtype, device, attention
        See `mprm.backbones.load.load_backbone`.
    image_root
        Folder that image paths are relative to.
    is_trained
        The checkpoint must know the step token already: it was trained with it.
    memory
        What was encoded before, for many runs on the same data; see `mprm.backbones.remembering`.
    """
    if image_root is not None and not Path(image_root).expanduser().is_dir():
        raise ConfigError(f"the image root {image_root} is not a folder")
    root = None if image_root is None else Path(image_root).expanduser()
    backbone = load_backbone(
        path, dtype=dtype, device=device, attention=attention, image_settings=card.image_settings
    )
    tokenizer, model, family = backbone.tokenizer, backbone.model, backbone.family
    from mprm.backbones.step_reader import step_reader

    is_new = card.step_token not in tokenizer.get_added_vocab()
    if is_new and is_trained:
        raise ConfigError(
            f"{path}: the tokenizer does not know {card.step_token}, which mprm.json names; is it its own?"
        )
    tokens = step_tokens(tokenizer, step=card.step_token, positive=card.positive, negative=card.negative)
    grow_embeddings(model, tokenizer, tokens.prm if is_new else None)
    make = PromptEncoder if memory is None else partial(RememberingEncoder, memory=memory)
    encoder = make(tokenizer, backbone.image_processor, family, tokens, max_length=card.max_length, image_root=root)
    return StepModel(step_reader(model, family, tokens), encoder, family)

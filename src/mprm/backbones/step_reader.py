"""The read-out: hidden states at ``<prm>`` times the Yes and No rows of the head, and nothing else of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its customary name
from transformers.utils import ModelOutput

from mprm.backbones.family import Family
from mprm.backbones.step_tokens import StepTokens
from mprm.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def step_reader(model: Any, family: Family, tokens: StepTokens) -> Any:
    """The model with a forward that gives two logits for each step; weights and their names stay as they are.

    The model keeps its class's name, so that what ``save_pretrained`` writes is a plain checkpoint of it.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ConfigError(f"the head of {type(model).__name__} is a {type(head).__name__}; expected a linear layer")
    head.__class__ = TwoRowHead
    object.__setattr__(head, "rows", [tokens.yes, tokens.no])
    model.__class__ = type(type(model).__name__, (StepReader, type(model)), {"__module__": type(model).__module__})
    model.step_family = family
    return model


class TwoRowHead(nn.Linear):
    """A head of which only the rows of Yes and No are used, in float32.

    It stays a module with its whole weight: sharding engines gather it by the hooks on its forward.
    """

    rows: list[int]

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, H) → (S, 2)."""
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias[self.rows].float()
            return F.linear(hidden.float(), self.weight[self.rows].float(), bias)


class StepReader:
    """Mixed into a model's class: forward to step logits, vision tower frozen and in eval mode."""

    step_family: Family

    def forward(
        self: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        prm_index: Tensor,
        **vision: Any,
    ) -> ModelOutput:
        """Two logits for each ``<prm>``.

        Parameters
        ----------
        input_ids, attention_mask : shape (B, T)
            Padded on the right, as `mprm.backbones.prompt.PromptEncoder.collate` does.
        prm_index : shape (S,)
            Places of ``<prm>`` in the flattened batch.
        vision
            Pixel values and what goes with them.

        Returns
        -------
        ``logits``, shape (S, 2): Yes, then No.
        """
        unused = None
        if self.training and not vision and self.step_family.projector(self) is not None:
            # every rank must send gradients for the projector, also from a batch without images
            unused = _projected(self, self.step_family.blank_vision(self)).sum() * 0.0
        base = getattr(self, self.base_model_prefix)
        # the mask stays here: padding is on the right, where causal attention never looks, and only without
        # a mask do the fastest kernels run
        hidden = base(input_ids=input_ids, use_cache=False, **vision)[0]
        logits = _scaled(self.get_output_embeddings()(hidden.flatten(0, 1)[prm_index]), self.config)
        return ModelOutput(logits=logits if unused is None else logits + unused)

    def train(self: Any, mode: bool = True) -> Any:
        """Like any module's, but the frozen vision tower stays in eval mode: no dropped paths."""
        super().train(mode)  # type: ignore[misc]
        tower = self.step_family.vision_tower(self)
        if tower is not None:
            tower.eval()
            self.step_family.projector(self).train(mode)
        return self


def _projected(model: Any, vision: dict[str, Any]) -> Tensor:
    found = model.model.get_image_features(**vision, return_dict=True).pooler_output
    return torch.cat(list(found)) if isinstance(found, tuple | list) else found


def _scaled(logits: Tensor, config: Any) -> Tensor:
    """What some language models do to their logits after the head."""
    text = config.get_text_config()
    if getattr(text, "logits_scaling", None):
        logits = logits / text.logits_scaling
    if getattr(text, "logit_scale", None):
        logits = logits * text.logit_scale
    cap = getattr(text, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def step_probabilities(logits: Tensor) -> Tensor:
    """Probability of Yes against No, shape (S,)."""
    return torch.sigmoid(logits[:, 0] - logits[:, 1])


def freeze_vision(model: Any, family: Family) -> None:
    """Train language model, head and projector; keep every weight of the vision tower as it is."""
    model.requires_grad_(True)
    tower = family.vision_tower(model)
    if tower is not None:
        tower.requires_grad_(False)
        family.projector(model).requires_grad_(True)

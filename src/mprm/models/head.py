"""A backbone as a process reward model: hidden states at ``<prm>`` times the Yes and No rows of its head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import ModelOutput

from mprm.errors import ConfigError
from mprm.models.attention import TREE_ATTENTION, TreeOnDevice, use_window_attention
from mprm.models.families import Family
from mprm.models.prefix_tree import PrefixTree, why_not_shared
from mprm.models.prompt import StepTokens


def grow_embeddings(model: Any, tokenizer: Any, new_id: int | None, *, zero_head: bool = False) -> None:
    """Give every token a row in the embeddings and the head, a new one the mean of the others; spare rows stay.

    ``zero_head``: a new one's row of the head is 0, where it is not that of the embeddings.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if new_id is None:
        return
    weights = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    whole: Any = nullcontext()
    if is_deepspeed_zero3_enabled():  # it has sharded them
        from deepspeed.zero import GatheredParameters

        whole = GatheredParameters(weights, modifier_rank=0)
    with torch.no_grad(), whole:
        for weight in weights:
            weight[new_id] = weight[: min(rows, new_id)].float().mean(dim=0).to(weight.dtype)
        if zero_head and weights[0] is not weights[1]:
            weights[1][new_id] = 0


def prm_model(
    model: Any,
    family: Family,
    tokens: StepTokens,
    image_processor: Any = None,
    step_head: Callable[[Tensor], Tensor] | None = None,
    *,
    with_concentration: bool = False,
) -> Any:
    """The model with a forward that gives two logits for each step; saved, it is a plain checkpoint of its class.

    A ``step_head``, (S, H) → (S, 2), is used instead of the language model's head. ``with_concentration``: a third
    logit, by the row of ``<prm>``; see `concentrations`.
    """
    if step_head is None:
        head = model.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise ConfigError(
                f"the head of {type(model).__name__} is a {type(head).__name__}; expected a linear layer"
            )
        head.__class__ = YesNoHead
        rows = [tokens.yes, tokens.no, tokens.prm] if with_concentration else [tokens.yes, tokens.no]
        object.__setattr__(head, "rows", rows)
    model.__class__ = type(type(model).__name__, (PRMModel, type(model)), {"__module__": type(model).__module__})
    model.prm_family, model.blank_vision, model.step_head = family, {}, step_head
    if image_processor is not None:
        from PIL import Image

        blank = family.preprocess(image_processor, [Image.new("RGB", (28, 28))])
        model.blank_vision = {name: torch.as_tensor(array) for name, array in blank.items()}
    model.why_no_trees = why_not_shared(model)
    if model.why_no_trees is None and (dropout := getattr(model.config.get_text_config(), "attention_dropout", 0.0)):
        # which keys are dropped depends on their position in the batch: packing would change the result
        model.why_no_trees = f"the model drops {dropout:.0%} of its attention when it is trained"
    if model.why_no_trees is None:
        # for good, not for one pass: gradient checkpointing runs layers again when the pass is over
        _decoder(model).config._attn_implementation = TREE_ATTENTION
    use_window_attention(family.vision_tower(model))
    return model


def _decoder(model: Any) -> Any:
    base = getattr(model, model.base_model_prefix)
    return getattr(base, "language_model", base)


class YesNoHead(nn.Linear):
    """A head of which only the rows of Yes and No are used, in float32; sharding engines gather its whole weight."""

    rows: list[int]

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, H) → (S, 2); (S, 3) where the row of ``<prm>`` is used too."""
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias[self.rows].float()
            return F.linear(hidden.float(), self.weight[self.rows].float(), bias)


class PRMModel:
    """Mixed into a model's class: forward to step logits, vision tower frozen and in eval mode."""

    prm_family: Family
    blank_vision: dict[str, Tensor]
    """Vision inputs of a small image; empty for a text model."""
    step_head: Callable[[Tensor], Tensor] | None
    why_no_trees: str | None
    """Why the model takes padded batches alone, or None where it takes packed trees too."""

    def forward(
        self: Any, input_ids: Tensor, prm_index: Tensor, tree: PrefixTree | None = None, **inputs: Any
    ) -> ModelOutput:
        """``logits`` (S, 2) of Yes and No at each ``<prm>`` of what `collate` or `collate_tree` gives."""
        unused = None
        runs_in_step = self.training or (torch.distributed.is_available() and torch.distributed.is_initialized())
        if "pixel_values" not in inputs and self.blank_vision and runs_in_step:
            # every rank must send gradients for the projector, and gather sharded weights, without images too
            blank = {name: tensor.to(self.device) for name, tensor in self.blank_vision.items()}
            unused = _image_features(self, blank).sum() * 0.0
        if tree is None:
            # without a mask the fastest kernels run: padding is on the right, where causal attention never looks
            base = getattr(self, self.base_model_prefix)
            hidden = base(input_ids=input_ids, use_cache=False, **inputs)[0]
        elif self.why_no_trees is not None:
            raise ConfigError(f"the model cannot read packed trees: {self.why_no_trees}")
        else:
            options = {"position_ids": inputs.pop("position_ids"), "tree": TreeOnDevice(tree, input_ids.device)}
            embedded = self.get_input_embeddings()(input_ids)
            if (image_positions := inputs.pop("image_positions", None)) is not None:
                indices = inputs.pop("image_features")
                features = _image_features(self, inputs).to(embedded.dtype).index_select(0, indices)
                embedded = embedded[0].index_copy(0, image_positions, features)[None]
            hidden = _decoder(self)(inputs_embeds=embedded, use_cache=False, **options)[0]
        if self.step_head is not None:
            return ModelOutput(logits=self.step_head(hidden.flatten(0, 1)[prm_index]))
        logits = finished(self.config, self.get_output_embeddings()(hidden.flatten(0, 1)[prm_index]))
        return ModelOutput(logits=logits if unused is None else logits + unused)

    def train(self: Any, mode: bool = True) -> Any:
        """The frozen vision tower stays in eval mode: no dropped paths."""
        super().train(mode)  # type: ignore[misc]
        if (tower := self.prm_family.vision_tower(self)) is not None:
            tower.eval()
            for projector in self.prm_family.projectors(self):
                projector.train(mode)
        return self

    def enable_input_require_grads(self) -> None:
        """Nothing: transformers would let the frozen tower's embeddings require gradients, for nothing here."""


def finished(config: Any, logits: Tensor) -> Tensor:
    """The head's logits after what some language models still do to them."""
    text = config.get_text_config()
    logits = logits / (getattr(text, "logits_scaling", None) or 1) * (getattr(text, "logit_scale", None) or 1)
    if cap := getattr(text, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits


def _image_features(model: Any, vision: dict[str, Any]) -> Tensor:
    """Embeddings of all images, shape (I, H): the model gives a tensor for each image, or one of all tiles."""
    features = model.model.get_image_features(**vision, return_dict=True).pooler_output
    return torch.cat(list(features)) if isinstance(features, tuple | list) else features.flatten(0, -2)


def step_probabilities(logits: Tensor) -> Tensor:
    """Probability of Yes against No, shape (S,)."""
    return torch.sigmoid(logits[:, 0] - logits[:, 1])


N_0, MAX_LOG = 16.0, 6.0
"""Concentration where its logit is 0, and how far its logarithm may be from there."""


def concentrations(logits: Tensor) -> Tensor:
    """How many continuations the model's belief in each step is worth: a + b of its Beta distribution, shape (S,).

    ``16 exp(6 tanh(z / 6))`` of the third logit z, in float64; the distribution's mean is `step_probabilities`.
    """
    return N_0 * torch.exp(MAX_LOG * torch.tanh(logits[:, 2].double() / MAX_LOG))


def lower_bounds(logits: Tensor, n_deviations: float) -> Tensor:
    """The mean of each step's Beta distribution less so many standard deviations, at least 0; shape (S,).

    The variance is ``m (1 - m) / (a + b + 1)``, m the mean.
    """
    mean = step_probabilities(logits).double()
    deviation = torch.sqrt(mean * (1 - mean) / (concentrations(logits) + 1))
    return (mean - n_deviations * deviation).clamp(min=0)


def freeze_vision(model: Any) -> None:
    """Train language model, head and projector; freeze the vision tower."""
    model.requires_grad_(True)
    if (tower := model.prm_family.vision_tower(model)) is not None:
        tower.requires_grad_(False)
        for projector in model.prm_family.projectors(model):
            projector.requires_grad_(True)

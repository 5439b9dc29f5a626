"""The read-out: hidden states at ``<prm>`` times the Yes and No rows of the head, and nothing else of it.

A backbone made ready to read steps: ``<prm>`` in its vocabulary, the two-row read-out, its prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.utils import ModelOutput

from mprm.errors import ConfigError
from mprm.models.attention import TREE_ATTENTION_NAME as TREE
from mprm.models.attention import TreeOnDevice, look_by_windows, tree_attention
from mprm.models.checkpoint import PRMConfig, load_backbone
from mprm.models.families import Family
from mprm.models.prefix_tree import PrefixTree, why_not_shared
from mprm.models.prompt import Memory, PromptEncoder, RememberingEncoder, StepTokens, grow_embeddings, step_tokens

if TYPE_CHECKING:
    from torch import Tensor


def prm_model(model: Any, family: Family, tokens: StepTokens) -> Any:
    """The model with a forward that gives two logits for each step; weights and their names stay as they are.

    The model keeps its class's name, so that what ``save_pretrained`` writes is a plain checkpoint of it.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ConfigError(f"the head of {type(model).__name__} is a {type(head).__name__}; expected a linear layer")
    head.__class__ = YesNoHead
    object.__setattr__(head, "rows", [tokens.yes, tokens.no])
    model.__class__ = type(type(model).__name__, (PRMModel, type(model)), {"__module__": type(model).__module__})
    model.step_family = family
    model.why_no_trees = why_not_shared(model) or _drops_attention(model)
    _attend_in_trees(model)
    return model


def _drops_attention(model: Any) -> str | None:
    """Which keys training would leave out depends on where they stand in a batch."""
    share = getattr(model.config.get_text_config(), "attention_dropout", 0.0)
    return f"the model drops {share:.0%} of its attention when it is trained" if share else None


def _attend_in_trees(model: Any) -> None:
    """Let language model and vision tower attend our way; without a tree it is transformers' ``sdpa``.

    For good, not for one pass: gradient checkpointing runs layers again when the pass is over.
    """
    AttentionInterface.register(TREE, tree_attention)
    if model.why_no_trees is None:
        _decoder(model).config._attn_implementation = TREE
    look_by_windows(model.step_family.vision_tower(model))


def _decoder(model: Any) -> Any:
    base = getattr(model, model.base_model_prefix)
    return getattr(base, "language_model", base)


class YesNoHead(nn.Linear):
    """A head of which only the rows of Yes and No are used, in float32.

    It stays a module with its whole weight: sharding engines gather it by the hooks on its forward.
    """

    rows: list[int]

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, H) → (S, 2)."""
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias[self.rows].float()
            return F.linear(hidden.float(), self.weight[self.rows].float(), bias)


class PRMModel:
    """Mixed into a model's class: forward to step logits, vision tower frozen and in eval mode."""

    step_family: Family
    why_no_trees: str | None
    """Why the model reads padded batches alone, or None where it reads packed trees too."""

    def forward(
        self: Any,
        input_ids: Tensor,
        prm_index: Tensor,
        attention_mask: Tensor | None = None,
        tree: PrefixTree | None = None,
        **inputs: Any,
    ) -> ModelOutput:
        """Two logits for each ``<prm>``.

        Parameters
        ----------
        input_ids, attention_mask : shape (B, T)
            Padded on the right, as `mprm.models.prompt.PromptEncoder.collate` does; or with ``tree``,
            shape (1, T), as `mprm.models.prefix_tree.packed` does.
        prm_index : shape (S,)
            Places of ``<prm>`` in the flattened batch.
        inputs
            Pixel values and what goes with them; of a tree also positions and where its images stand.

        Returns
        -------
        ``logits``, shape (S, 2): Yes, then No.
        """
        unused = None
        if "pixel_values" not in inputs and _runs_in_step(self) and self.step_family.projector(self) is not None:
            # every rank must send gradients for the projector, and gather split weights, without images too
            unused = _projected(self, self.step_family.blank_vision(self)).sum() * 0.0
        if tree is not None:
            hidden = _read_tree(self, input_ids, TreeOnDevice(tree, input_ids.device), **inputs)
        else:
            base = getattr(self, self.base_model_prefix)
            # the mask stays here: padding is on the right, where causal attention never looks, and only
            # without a mask do the fastest kernels run
            hidden = base(input_ids=input_ids, use_cache=False, **inputs)[0]
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

    def enable_input_require_grads(self) -> None:
        """Nothing: gradient checkpointing of the kind that is used here does without it.

        transformers would let all embeddings require gradients, those of the frozen vision tower too, and
        backward would go through the whole tower for nobody.
        """


def _runs_in_step(model: Any) -> bool:
    """Whether what this process computes must be what the others compute."""
    return bool(model.training) or (torch.distributed.is_available() and torch.distributed.is_initialized())


def _read_tree(
    model: Any,
    input_ids: Tensor,
    tree: TreeOnDevice,
    *,
    position_ids: Tensor,
    image_places: Tensor | None = None,
    image_rows: Any = None,
    **vision: Any,
) -> Tensor:
    """Last hidden states, shape (1, T, H); see `mprm.models.prefix_tree.packed` for what is given."""
    if model.why_no_trees is not None:
        raise ConfigError(f"the model cannot read packed trees: {model.why_no_trees}")
    embedded = model.get_input_embeddings()(input_ids)
    if image_places is not None:
        seen = _projected(model, vision).to(embedded.dtype).index_select(0, image_rows)
        embedded = embedded[0].index_copy(0, image_places, seen)[None]
    hidden: Tensor = _decoder(model)(inputs_embeds=embedded, position_ids=position_ids, use_cache=False, tree=tree)[0]
    return hidden


def _projected(model: Any, vision: dict[str, Any]) -> Tensor:
    found = model.model.get_image_features(**vision, return_dict=True).pooler_output
    # of one tensor for each image, or a tensor of tiles
    return torch.cat(list(found)) if isinstance(found, tuple | list) else found.flatten(0, -2)


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
    card: PRMConfig,
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
        See `mprm.models.checkpoint.load_backbone`.
    image_root
        Folder that image paths are relative to.
    is_trained
        The checkpoint must know the step token already: it was trained with it.
    memory
        What was encoded before, for many runs on the same data; see `mprm.models.prompt`.
    """
    if image_root is not None and not Path(image_root).expanduser().is_dir():
        raise ConfigError(f"the image root {image_root} is not a folder")
    root = None if image_root is None else Path(image_root).expanduser()
    backbone = load_backbone(
        path, dtype=dtype, device=device, attention=attention, image_settings=card.image_settings
    )
    tokenizer, model, family = backbone.tokenizer, backbone.model, backbone.family

    is_new = card.step_token not in tokenizer.get_added_vocab()
    if is_new and is_trained:
        raise ConfigError(
            f"{path}: the tokenizer does not know {card.step_token}, which mprm.json names; is it its own?"
        )
    tokens = step_tokens(tokenizer, step=card.step_token, positive=card.positive, negative=card.negative)
    grow_embeddings(model, tokenizer, tokens.prm if is_new else None)
    make = PromptEncoder if memory is None else partial(RememberingEncoder, memory=memory)
    encoder = make(tokenizer, backbone.image_processor, family, tokens, max_length=card.max_length, image_root=root)
    return StepModel(prm_model(model, family, tokens), encoder, family)

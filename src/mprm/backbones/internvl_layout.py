"""Which tensor of a published InternVL checkpoint is which of transformers' native class, both ways.

The published checkpoints keep an attention's queries, keys and values in one tensor. Along its first axis it
is made of groups, each holding the queries of the group, then its keys, then its values. The vision tower has
one group, InternLM2 one for each key/value head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mprm.errors import MissingDependencyError

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]

_PARAMETER = r"(\.weight|\.bias|)$"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a module or a parameter stands in either layout; ``*`` is the number of a layer."""

    remote: str
    native: tuple[str, ...]
    """Several where the remote tensor holds them fused."""
    by_key_value_head: bool = False
    """The remote tensor is grouped by key/value heads; else it is one group."""


def _qkv(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}_proj" for name in "qkv")


_VIT, _TOWER = "vision_model.encoder.layers.*", "model.vision_tower.encoder.layer.*"
_REMOTE, _NATIVE = "language_model.model.layers.*", "model.language_model.layers.*"

VISION = (
    Rule("vision_model.embeddings.class_embedding", ("model.vision_tower.embeddings.cls_token",)),
    Rule("vision_model.embeddings.position_embedding", ("model.vision_tower.embeddings.position_embeddings",)),
    Rule("vision_model.embeddings.patch_embedding", ("model.vision_tower.embeddings.patch_embeddings.projection",)),
    Rule(f"{_VIT}.attn.qkv", _qkv(f"{_TOWER}.attention")),
    Rule(f"{_VIT}.attn.proj", (f"{_TOWER}.attention.projection_layer",)),
    Rule(f"{_VIT}.attn.q_norm", (f"{_TOWER}.attention.q_norm",)),
    Rule(f"{_VIT}.attn.k_norm", (f"{_TOWER}.attention.k_norm",)),
    Rule(f"{_VIT}.mlp.fc1", (f"{_TOWER}.mlp.fc1",)),
    Rule(f"{_VIT}.mlp.fc2", (f"{_TOWER}.mlp.fc2",)),
    Rule(f"{_VIT}.norm1", (f"{_TOWER}.layernorm_before",)),
    Rule(f"{_VIT}.norm2", (f"{_TOWER}.layernorm_after",)),
    Rule(f"{_VIT}.ls1", (f"{_TOWER}.lambda_1",)),
    Rule(f"{_VIT}.ls2", (f"{_TOWER}.lambda_2",)),
    Rule("mlp1.0", ("model.multi_modal_projector.layer_norm",)),
    Rule("mlp1.1", ("model.multi_modal_projector.linear_1",)),
    Rule("mlp1.3", ("model.multi_modal_projector.linear_2",)),
)
INTERNLM2 = (
    Rule("language_model.model.tok_embeddings", ("model.language_model.embed_tokens",)),
    Rule(f"{_REMOTE}.attention.wqkv", _qkv(f"{_NATIVE}.self_attn"), by_key_value_head=True),
    Rule(f"{_REMOTE}.attention.wo", (f"{_NATIVE}.self_attn.o_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w1", (f"{_NATIVE}.mlp.gate_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w3", (f"{_NATIVE}.mlp.up_proj",)),
    Rule(f"{_REMOTE}.feed_forward.w2", (f"{_NATIVE}.mlp.down_proj",)),
    Rule(f"{_REMOTE}.attention_norm", (f"{_NATIVE}.input_layernorm",)),
    Rule(f"{_REMOTE}.ffn_norm", (f"{_NATIVE}.post_attention_layernorm",)),
    Rule("language_model.model.norm", ("model.language_model.norm",)),
    Rule("language_model.output", ("lm_head",)),
)
QWEN2 = (
    Rule("language_model.model.embed_tokens", ("model.language_model.embed_tokens",)),
    *(
        Rule(f"{_REMOTE}.{name}", (f"{_NATIVE}.{name}",))
        for name in (
            *_qkv("self_attn"),
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "input_layernorm",
            "post_attention_layernorm",
        )
    ),
    Rule("language_model.model.norm", ("model.language_model.norm",)),
    Rule("language_model.lm_head", ("lm_head",)),
)
RULES = {"llama": VISION + INTERNLM2, "qwen2": VISION + QWEN2}
"""By the native language model's type; InternLM2 is natively a Llama."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the remote layout and the native ones it holds."""

    remote: str
    native: tuple[str, ...]
    native_shapes: tuple[Shape, ...]
    n_groups: int

    @property
    def remote_shape(self) -> Shape:
        """Shape of the tensor in the published checkpoint."""
        return (sum(shape[0] for shape in self.native_shapes), *self.native_shapes[0][1:])

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        """The native tensors of a remote one."""
        import torch

        if len(self.native) == 1:
            return {self.native[0]: tensor}
        rows = [shape[0] // self.n_groups for shape in self.native_shapes]
        parts = torch.split(tensor.reshape(self.n_groups, sum(rows), *tensor.shape[1:]), rows, dim=1)
        return {name: part.flatten(0, 1).contiguous() for name, part in zip(self.native, parts, strict=True)}

    def fuse(self, state: Mapping[str, Tensor]) -> Tensor:
        """The remote tensor of the native ones."""
        import torch

        if len(self.native) == 1:
            return state[self.native[0]]
        found = [state[name] for name in self.native]
        parts = [part.reshape(self.n_groups, -1, *part.shape[1:]) for part in found]
        return torch.cat(parts, dim=1).flatten(0, 1)


def layout_of(config: Any) -> tuple[Entry, ...]:
    """Every tensor of the model that a native ``InternVLConfig`` describes, in the native model's order.

    Names and shapes are asked of transformers' class itself, so that none is left without a value.
    """
    import torch
    from transformers import InternVLForConditionalGeneration

    with torch.device("meta"):
        state = InternVLForConditionalGeneration(config).state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    text = config.text_config
    return match_rules(
        {name: tuple(tensor.shape) for name, tensor in state.items()},
        RULES[text.model_type],
        n_key_value_heads=text.num_key_value_heads,
    )


def match_rules(shapes: Mapping[str, Shape], rules: Sequence[Rule], *, n_key_value_heads: int) -> tuple[Entry, ...]:
    """The remote tensors that native ones of these names and shapes come from."""
    found: dict[tuple[str, Rule], dict[int, str]] = {}
    strangers = []
    for name in shapes:
        place = _place(name, tuple(rules))
        if place is None:
            strangers.append(name)
        else:
            remote, rule, part = place
            found.setdefault((remote, rule), {})[part] = name
    if strangers:
        raise MissingDependencyError(
            "this needs transformers 5.17 to 5.22; the one installed has parameters in InternVL that mprm does not"
            f" know: {', '.join(strangers)}"
        )
    entries = []
    for (remote, rule), parts in found.items():
        native = tuple(parts[number] for number in sorted(parts))
        n_groups = n_key_value_heads if rule.by_key_value_head else 1
        entries.append(Entry(remote, native, tuple(shapes[name] for name in native), n_groups))
    return tuple(entries)


def _place(native: str, rules: tuple[Rule, ...]) -> tuple[str, Rule, int] | None:
    """The remote name of a native one, its rule, and which of the rule's parts it is."""
    for pattern, rule, part in _patterns(rules):
        match = pattern.match(native)
        if match:
            *layer, parameter = match.groups()
            remote = rule.remote.replace("*", layer[0]) if layer else rule.remote
            return remote + parameter, rule, part
    return None


@cache
def _patterns(rules: tuple[Rule, ...]) -> list[tuple[re.Pattern[str], Rule, int]]:
    return [
        (re.compile(re.escape(template).replace(r"\*", r"(\d+)") + _PARAMETER), rule, part)
        for rule in rules
        for part, template in enumerate(rule.native)
    ]


def to_remote_layout(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """A native model's state dict in the names and fusions of the published checkpoints.

    Parameters
    ----------
    state
        ``model.state_dict()`` of an ``InternVLForConditionalGeneration``.
    config
        Its ``InternVLConfig``, with a Llama-type or Qwen2 language model.
    """
    return {entry.remote: entry.fuse(state) for entry in layout_of(config)}


def to_native_layout(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """The inverse of `to_remote_layout`."""
    return {name: tensor for entry in layout_of(config) for name, tensor in entry.split(state[entry.remote]).items()}

"""Attention of a vision tower that looks at its image window by window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mprm.backbones.flash_stretches import Stretches, as_autocast, can_flash, flash

NAME = "mprm_flash_windows"
"""As transformers knows it; it hands over all windows at once only where a name says flash."""


def look_by_windows(tower: Any) -> None:
    """Let a vision tower that attends by windows do so with `window_attention`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, window_attention)
    if hasattr(tower, "window_size") and tower.config._attn_implementation == "sdpa":
        tower.config._attn_implementation = NAME


def window_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers' ``sdpa`` returns, of all windows at once where flash attention can.

    ``sdpa`` takes one after the other: hundreds of small calls for an image, and a wait for the device in
    every layer.
    """
    ends, longest = options.pop("cu_seq_lens_q", None), options.pop("max_length_q", None)
    for name in ("cu_seq_lens_k", "max_length_k"):
        options.pop(name, None)
    if ends is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    query, key, value = as_autocast(query, key, value)
    if can_flash(query) and not query.requires_grad:
        ends, longest = ends.to(torch.int32), int(longest)
        windows = Stretches(query_ends=ends, key_ends=ends, most_queries=longest, most_keys=longest, is_causal=False)
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        return flash(query, key, value, windows, options.get("scaling"))[0][None], None
    n_windows, n_tokens = len(ends) - 1, query.shape[2]
    if n_windows * int(longest) == n_tokens:  # all of one length: a batch
        heads, width = query.shape[1], query.shape[3]
        query, key, value = (
            states.reshape(heads, n_windows, -1, width).transpose(0, 1) for states in (query, key, value)
        )
        attended = sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0]
        return attended.reshape(1, n_tokens, heads, width), None
    lengths = ends.diff().tolist()
    pieces = zip(*(torch.split(states, lengths, dim=2) for states in (query, key, value)), strict=True)
    parts = [sdpa_attention_forward(module, *piece, attention_mask, **options)[0] for piece in pieces]
    return torch.cat(parts, dim=1), None

"""Attention of one new token a row, without copies of the keys for each head that shares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import functional

NAME = "mprm_grouped"


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers' ``sdpa`` returns, by another way where each row asks for one token.

    Under a mask, ``sdpa`` copies keys and values to every head that shares them, at every token. The
    heads that share keys see the same ones, so that they can stand as several queries of one head.

    Parameters
    ----------
    query : shape (R, heads, T, width)
    key, value : shape (R, shared heads, C, width)
    attention_mask : shape (R, 1, T, C)
    """
    n_rows, n_heads, n_queries, width = query.shape
    if n_queries > 1:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    groups = query.reshape(n_rows, key.shape[1], -1, width)
    attended = functional.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return attended.reshape(n_rows, 1, n_heads, width), None


@contextmanager
def grouped_attention_in(model: Any) -> Iterator[None]:
    """Let the language model attend so within the block; masks of four axes alone are understood."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, grouped_attention)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before

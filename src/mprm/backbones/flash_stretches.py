"""Torch's own flash attention over stretches of unequal length, with the log-sum-exp of what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Stretches of queries, each of which sees one stretch of keys."""

    query_ends: Tensor
    """Where each stretch ends among the queries, shape (N + 1,), from 0, int32."""
    key_ends: Tensor
    most_queries: int
    """Of one stretch."""
    most_keys: int
    is_causal: bool
    """Whether the first query of a stretch sees its first key alone, the second two, and so on."""


def can_flash(query: Tensor) -> bool:
    """Whether flash attention takes these queries, shape (…, width)."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def as_autocast(*states: Tensor) -> tuple[Tensor, ...]:
    """In the type that autocast would give attention; of ours it does not know."""
    kind = states[0].device.type
    if torch.is_autocast_enabled(kind):
        return tuple(state.to(torch.get_autocast_dtype(kind)) for state in states)
    return states


def flash(query: Tensor, key: Tensor, value: Tensor, which: Stretches, scale: float | None) -> tuple[Tensor, ...]:
    """Output (Q, heads, width), log-sum-exp (heads, Q), and two tensors that backward wants to see again.

    Parameters
    ----------
    query : shape (Q, heads, width)
    key, value : shape (K, shared heads, width)
    """
    found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        which.query_ends,
        which.key_ends,
        which.most_queries,
        which.most_keys,
        0.0,
        which.is_causal,
        False,
        scale=scale,
    )
    return found[:4]


def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    rest: Any,
    which: Stretches,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; ``out``, ``log_sum`` and ``rest`` are what `flash` returned."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad,
        query,
        key,
        value,
        out,
        log_sum,
        which.query_ends,
        which.key_ends,
        which.most_queries,
        which.most_keys,
        0.0,
        which.is_causal,
        *rest,
        scale=scale,
    )
    return found

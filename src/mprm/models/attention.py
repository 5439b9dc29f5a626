"""Torch's own flash attention over stretches of unequal length, with the log-sum-exp of what was seen.

Attention in a packed tree: a token sees its own node up to itself, and all of the nodes that it continues.

Attention of a vision tower that looks at its image window by window.

Attention of one new token a row, without copies of the keys for each head that shares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mprm.models.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenBatch:
    """VarlenBatch of queries, each of which sees one stretch of keys."""

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


def flash(query: Tensor, key: Tensor, value: Tensor, which: VarlenBatch, scale: float | None) -> tuple[Tensor, ...]:
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
    which: VarlenBatch,
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


TREE_ATTENTION_NAME = "mprm_tree"
"""As transformers knows it."""
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Level:
    """All nodes of one depth, seen by all that continues them."""

    queries: Tensor | slice
    """Rows of the packed sequence that see one of these nodes, shape (Q,)."""
    keys: Tensor | slice
    """Rows of the nodes, shape (K,)."""
    stretches: VarlenBatch


class TreeOnDevice:
    """A tree and, made when they are first asked for, its stretches on a device."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.tree, self.device = tree, device

    @cached_property
    def own(self) -> VarlenBatch:
        """Each node with itself."""
        spans = [(node.start, node.end) for node in self.tree.nodes]
        return _stretches(spans, spans, self.device, is_causal=True)

    @cached_property
    def levels(self) -> list[Level]:
        """From the beginnings of the sequences on; the last nodes are continued by none."""
        nodes, depths = self.tree.nodes, list[int]()
        behind = [node.end for node in nodes]  # where what continues a node ends
        for number, node in enumerate(nodes):
            depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
            for above in self.tree.path(number):
                behind[above] = node.end
        found = []
        for depth in range(max(depths)):
            at = [n for n, node in enumerate(nodes) if depths[n] == depth and behind[n] > node.end]
            keys = [(nodes[n].start, nodes[n].end) for n in at]
            queries = [(nodes[n].end, behind[n]) for n in at]
            stretches = _stretches(queries, keys, self.device, is_causal=False)
            found.append(Level(_rows(queries, self.device), _rows(keys, self.device), stretches))
        return found


def _rows(spans: Spans, device: torch.device) -> Tensor | slice:
    """As a slice where there is one span, which copies nothing: that of one problem's candidates."""
    if len(spans) == 1:
        return slice(*spans[0])
    return torch.cat([torch.arange(start, end) for start, end in spans]).to(device)


def _stretches(queries: Spans, keys: Spans, device: torch.device, *, is_causal: bool) -> VarlenBatch:
    def ends(spans: Spans) -> Tensor:
        return torch.tensor([0, *(end - start for start, end in spans)]).cumsum(0).to(device, torch.int32)

    return VarlenBatch(
        query_ends=ends(queries),
        key_ends=ends(keys),
        # at least two: for stretches of one query, flash attention lays its log-sum-exps out otherwise
        most_queries=max(2, *(end - start for start, end in queries)),
        most_keys=max(end - start for start, end in keys),
        is_causal=is_causal,
    )


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeOnDevice | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers' ``sdpa`` returns, where ``tree`` says what sees what; without a tree it is ``sdpa``.

    Parameters
    ----------
    query : shape (1, heads, T, width)
    key, value : shape (1, shared heads, T, width)
    """
    if tree is None or len(tree.tree.nodes) == 1:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    query, key, value = as_autocast(query, key, value)
    if can_flash(query):
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        out: Tensor = _TreeFlash.apply(query, key, value, tree, options.get("scaling"))  # type: ignore[no-untyped-call]
        return out[None], None
    return node_by_node(module, query, key, value, tree.tree, **options), None


def node_by_node(module: Any, query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, **options: Any) -> Tensor:
    """Shape (1, T, heads, width): ``sdpa`` of each node with the nodes on its path, so that no mask has T² places."""
    parts = []
    for number, node in enumerate(tree.nodes):
        path = [tree.nodes[above] for above in tree.path(number)]
        keys, values = (
            torch.cat([states[:, :, above.start : above.end] for above in path], dim=2) for states in (key, value)
        )
        own = query[:, :, node.start : node.end]
        n_queries, n_keys = own.shape[2], keys.shape[2]
        # the last query sees all keys, the one before it all but the last
        ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device)
        mask = None if len(path) == 1 else ones.tril(n_keys - n_queries)[None, None]
        parts.append(sdpa_attention_forward(module, own, keys, values, mask, **options)[0])
    return torch.cat(parts, dim=1)


class _TreeFlash(torch.autograd.Function):
    """Flash attention over the levels of a tree; queries have shape (T, heads, width).

    Backward each level is given the merged output and log-sum-exp instead of its own: with them, the weight
    that it computes for a key is the key's weight among all keys, so that the gradients of the levels add up.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TreeOnDevice, scale: Any) -> Tensor:
        out, log_sum, *rest = flash(query, key, value, tree.own, scale)
        for level in tree.levels:
            q, k = level.queries, level.keys
            more, its_sum, *_ = flash(query[q], key[k], value[k], level.stretches, scale)
            before = log_sum[:, q]
            both = torch.logaddexp(before, its_sum)
            had, gets = ((part - both).exp().T[..., None] for part in (before, its_sum))
            out[q] = (out[q] * had + more * gets).to(out.dtype)
            log_sum[:, q] = both
        ctx.save_for_backward(query, key, value, out, log_sum, *rest)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, log_sum, *rest = ctx.saved_tensors
        grad, tree, scale = grad.contiguous(), ctx.tree, ctx.scale
        found = flash_backward(grad, query, key, value, out, log_sum, rest, tree.own, scale)
        for level in tree.levels:
            q, k = level.queries, level.keys
            its_sum = log_sum[:, q].contiguous()
            more = flash_backward(grad[q], query[q], key[k], value[k], out[q], its_sum, rest, level.stretches, scale)
            for total, part, rows in zip(found, more, (q, k, k), strict=True):
                total[rows] += part  # no row is in it twice
        return *found, None, None


WINDOW_ATTENTION_NAME = "mprm_flash_windows"
"""As transformers knows it; it hands over all windows at once only where a name says flash."""


def look_by_windows(tower: Any) -> None:
    """Let a vision tower that attends by windows do so with `window_attention`."""
    from transformers import AttentionInterface

    AttentionInterface.register(WINDOW_ATTENTION_NAME, window_attention)
    if hasattr(tower, "window_size") and tower.config._attn_implementation == "sdpa":
        tower.config._attn_implementation = WINDOW_ATTENTION_NAME


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
        windows = VarlenBatch(
            query_ends=ends, key_ends=ends, most_queries=longest, most_keys=longest, is_causal=False
        )
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


GROUPED_ATTENTION_NAME = "mprm_grouped"


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

    AttentionInterface.register(GROUPED_ATTENTION_NAME, grouped_attention)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = GROUPED_ATTENTION_NAME
    try:
        yield
    finally:
        config._attn_implementation = before

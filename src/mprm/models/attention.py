"""Attention over shared prefixes, of the vision tower and of decoding, each with the signature of transformers' sdpa.

Queries have shape (rows, heads, tokens, width), keys and values (rows, shared heads, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mprm.models.prefix_tree import PrefixTree

TREE_ATTENTION = "mprm_tree"
WINDOW_ATTENTION = "mprm_flash_windows"
"""transformers passes all windows at once only to an implementation whose name contains flash."""
GROUPED_ATTENTION = "mprm_grouped"

Spans = Sequence[tuple[int, int]]
_sdpa: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward


class VarlenBatch(NamedTuple):
    """N spans of queries, each of which sees one span of keys: arguments of flash attention, in its order."""

    cu_seqlens_q: Tensor
    """Ends of the spans, from 0, shape (N + 1,), int32."""
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    is_causal: bool


def can_flash(query: Tensor) -> bool:
    """Whether flash attention takes these queries, shape (…, width)."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] in range(8, 257, 8)
        and torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def as_autocast(*states: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that autocast gives ``sdpa``; it does not know our attention."""
    kind = states[0].device.type
    is_on = torch.is_autocast_enabled(kind)
    return tuple(state.to(torch.get_autocast_dtype(kind)) for state in states) if is_on else states


def flash(query: Tensor, key: Tensor, value: Tensor, batch: VarlenBatch, scale: float | None) -> Any:
    """Of Q queries (Q, heads, width) and K keys: output, log-sum-exp (heads, Q), two tensors that backward takes."""
    causal = batch.is_causal
    return torch.ops.aten._flash_attention_forward(query, key, value, *batch[:4], 0.0, causal, False, scale=scale)[:4]


def flash_backward(grad: Tensor, *saved: Tensor, rest: Any, batch: VarlenBatch, scale: float | None) -> Any:
    """Gradients of query, key and value; ``saved`` are those, and the output and log-sum-exp of `flash`."""
    return torch.ops.aten._flash_attention_backward(
        grad, *saved, *batch[:4], 0.0, batch.is_causal, *rest, scale=scale
    )


Level = tuple[Tensor | slice, Tensor | slice, VarlenBatch]
"""Rows of queries (Q,) in the packed sequence, rows of the nodes that they see (K,), and both as spans."""


@dataclass(frozen=True)
class TreeOnDevice:
    """A tree and, made when first needed, its flash attention batches on a device."""

    tree: PrefixTree
    device: torch.device

    @cached_property
    def levels(self) -> list[Level]:
        """Each node with itself; then the nodes of each depth, from the roots on, with all that continues them."""
        nodes, depths = self.tree.nodes, list[int]()
        continued_to = [node.end for node in nodes]
        for index, node in enumerate(nodes):
            *ancestors, _ = self.tree.path(index)
            depths.append(len(ancestors))
            for ancestor in ancestors:
                continued_to[ancestor] = node.end
        spans = [(node.start, node.end) for node in nodes]
        levels: list[Level] = [(slice(None), slice(None), self._batch(spans, spans, is_causal=True))]
        for depth in range(max(depths)):
            at = [n for n, node in enumerate(nodes) if depths[n] == depth and continued_to[n] > node.end]
            queries, keys = [(nodes[n].end, continued_to[n]) for n in at], [spans[n] for n in at]
            batch = self._batch(queries, keys, is_causal=False)
            levels.append((self._rows(queries), self._rows(keys), batch))
        return levels

    def _rows(self, spans: Spans) -> Tensor | slice:
        """As a slice where there is one span, which copies nothing: that of one problem's candidates."""
        if len(spans) == 1:
            return slice(*spans[0])
        return torch.cat([torch.arange(start, end) for start, end in spans]).to(self.device)

    def _batch(self, queries: Spans, keys: Spans, *, is_causal: bool) -> VarlenBatch:
        q, k = (torch.tensor([end - start for start, end in spans]) for spans in (queries, keys))
        q_ends, k_ends = (functional.pad(n.cumsum(0), (1, 0)).to(self.device, torch.int32) for n in (q, k))
        # at least two: for spans of one query, flash attention lays its log-sum-exps out otherwise
        return VarlenBatch(q_ends, k_ends, max(2, int(q.max())), int(k.max()), is_causal)


def tree_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention in a packed ``tree``: a token sees its own node up to itself, and all nodes that this continues."""
    tree: TreeOnDevice | None = options.pop("tree", None)
    if tree is None or len(tree.tree.nodes) == 1:
        return _sdpa(module, query, key, value, attention_mask, **options)
    query, key, value = as_autocast(query, key, value)
    if can_flash(query):
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        out: Tensor = _TreeFlash.apply(query, key, value, tree, options.get("scaling"))  # type: ignore[no-untyped-call]
        return out[None], None
    return node_by_node(module, query, key, value, tree.tree, **options), None


def node_by_node(module: Any, query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, **options: Any) -> Tensor:
    """Shape (1, T, heads, width): ``sdpa`` of each node with the nodes on its path, so that no mask is T × T."""
    outputs = []
    for index, node in enumerate(tree.nodes):
        path = [tree.nodes[ancestor] for ancestor in tree.path(index)]
        keys, values = (
            torch.cat([states[:, :, span.start : span.end] for span in path], dim=2) for states in (key, value)
        )
        own = query[:, :, node.start : node.end]
        n_queries, n_keys = own.shape[2], keys.shape[2]
        # the last query sees all keys, the one before it all but the last
        ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device)
        mask = None if len(path) == 1 else ones.tril(n_keys - n_queries)[None, None]
        outputs.append(_sdpa(module, own, keys, values, mask, **options)[0])
    return torch.cat(outputs, dim=1)


class _TreeFlash(torch.autograd.Function):
    """Flash attention over the levels of a tree; queries have shape (T, heads, width).

    In backward each level takes the merged output and log-sum-exp instead of its own: with them, the weight that it
    computes for a key is the key's weight among all keys, so that the gradients of the levels add up.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TreeOnDevice, scale: Any) -> Any:
        (_, _, own_nodes), *levels = tree.levels
        out, log_sum, *rest = flash(query, key, value, own_nodes, scale)
        for q, k, batch in levels:
            level_out, level_sum, *_ = flash(query[q], key[k], value[k], batch, scale)
            before = log_sum[:, q]
            both = torch.logaddexp(before, level_sum)
            old_weight, new_weight = ((part - both).exp().T[..., None] for part in (before, level_sum))
            out[q] = (out[q] * old_weight + level_out * new_weight).to(out.dtype)
            log_sum[:, q] = both
        ctx.save_for_backward(query, key, value, out, log_sum, *rest)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, log_sum, *rest = ctx.saved_tensors
        grad, totals = grad.contiguous(), None
        for q, k, batch in ctx.tree.levels:
            saved = query[q], key[k], value[k], out[q], log_sum[:, q].contiguous()
            parts = flash_backward(grad[q], *saved, rest=rest, batch=batch, scale=ctx.scale)
            if totals is None:
                totals = parts  # of each node with itself: all rows
                continue
            for total, part, rows in zip(totals, parts, (q, k, k), strict=True):
                total[rows] += part  # no row is in it twice
        return *totals, None, None  # type: ignore[misc]


def use_window_attention(tower: Any) -> None:
    """Let a vision tower that attends by windows do so with `window_attention`."""
    if hasattr(tower, "window_size") and tower.config._attn_implementation == "sdpa":
        tower.config._attn_implementation = WINDOW_ATTENTION


def window_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention within windows, all at once where flash attention can; ``sdpa`` takes one after the other."""
    cu_seqlens = options.get("cu_seq_lens_q")
    if cu_seqlens is None:
        return _sdpa(module, query, key, value, attention_mask, **options)
    query, key, value = as_autocast(query, key, value)
    longest = int(options["max_length_q"])
    if can_flash(query) and not query.requires_grad:
        cu_seqlens = cu_seqlens.to(torch.int32)
        batch = VarlenBatch(cu_seqlens, cu_seqlens, longest, longest, False)
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        return flash(query, key, value, batch, options.get("scaling"))[0][None], None
    n_windows, n_tokens = len(cu_seqlens) - 1, query.shape[2]
    if n_windows * longest == n_tokens:  # all of one length: a batch
        shape = query.shape[1], n_windows, -1, query.shape[3]
        batched = (states.reshape(shape).transpose(0, 1) for states in (query, key, value))
        output = _sdpa(module, *batched, attention_mask, **options)[0]
        return output.reshape(1, n_tokens, *output.shape[2:]), None
    lengths = cu_seqlens.diff().tolist()
    windows = zip(*(torch.split(states, lengths, dim=2) for states in (query, key, value)), strict=True)
    outputs = [_sdpa(module, q, k, v, attention_mask, **options)[0] for q, k, v in windows]
    return torch.cat(outputs, dim=1), None


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention of one new token a row, heads that share keys as queries of one head: ``sdpa`` copies the keys."""
    n_rows, n_heads, n_queries, width = query.shape
    if n_queries > 1:
        return _sdpa(module, query, key, value, attention_mask, **options)
    groups = query.reshape(n_rows, key.shape[1], -1, width)
    output = functional.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return output.reshape(n_rows, 1, n_heads, width), None


@contextmanager
def grouped_attention_in(model: Any) -> Iterator[None]:
    """Let the language model use `grouped_attention` within the block; only masks of four axes are understood."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = GROUPED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


AttentionInterface.register(TREE_ATTENTION, tree_attention)
AttentionInterface.register(WINDOW_ATTENTION, window_attention)
AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)

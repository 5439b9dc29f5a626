"""Attention in a packed tree: a token sees its own node up to itself, and all of the nodes that it continues.

Two ways give the same numbers. On a GPU in half precision each level of the tree is one call of flash
attention over stretches of unequal length, without masks or copies of keys, and what a token found in
each level is merged by the log-sum-exps. Elsewhere each node attends by itself, as transformers' ``sdpa``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mprm.backbones.flash_stretches import Stretches, as_autocast, can_flash, flash, flash_backward
from mprm.backbones.prefix_tree import PrefixTree

NAME = "mprm_tree"
"""As transformers knows it."""
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Level:
    """All nodes of one depth, seen by all that continues them."""

    queries: Tensor | slice
    """Rows of the packed sequence that see one of these nodes, shape (Q,)."""
    keys: Tensor | slice
    """Rows of the nodes, shape (K,)."""
    stretches: Stretches


class TreeOnDevice:
    """A tree and, made when they are first asked for, its stretches on a device."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self.tree, self.device = tree, device

    @cached_property
    def own(self) -> Stretches:
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


def _stretches(queries: Spans, keys: Spans, device: torch.device, *, is_causal: bool) -> Stretches:
    def ends(spans: Spans) -> Tensor:
        return torch.tensor([0, *(end - start for start, end in spans)]).cumsum(0).to(device, torch.int32)

    return Stretches(
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

"""Attention in a tree equals dense attention under the mask that the tree is: node by node, and level by level."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor

from mprm.models import attention as module
from mprm.models.attention import TreeOnDevice, VarlenBatch, tree_attention, window_attention
from mprm.models.prefix_tree import PrefixTree, build_tree

HEADS, SHARED, WIDTH = 4, 2, 8
layer = SimpleNamespace(num_key_value_groups=HEADS // SHARED, is_causal=True)
some_ids = st.lists(st.integers(0, 1), min_size=1, max_size=9)
trees = st.lists(some_ids, min_size=1, max_size=8)


def tree_of(sequences: list[list[int]]) -> PrefixTree:
    return build_tree([np.array(ids) for ids in sequences], [0] * len(sequences), min_shared=1)


def states(n_tokens: int, *, dtype: torch.dtype = torch.float64, device: str = "cpu", width: int = WIDTH) -> Any:
    torch.manual_seed(n_tokens)
    shapes = ((1, n, n_tokens, width) for n in (HEADS, SHARED, SHARED))
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]


def dense(query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree) -> Tensor:
    """Softmax over all keys that the mask allows, written out; the mask from its definition."""
    n = tree.nodes[-1].end
    sees = torch.zeros(n, n, dtype=torch.bool, device=query.device)
    for number, node in enumerate(tree.nodes):
        path = [token for a in tree.path(number) for token in range(tree.nodes[a].start, tree.nodes[a].end)]
        for token in range(node.start, node.end):
            sees[token, [seen for seen in path if seen <= token]] = True
    key, value = (state.repeat_interleave(HEADS // SHARED, dim=1) for state in (key, value))
    weights = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).masked_fill(~sees, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2)


def plain_flash(query: Tensor, key: Tensor, value: Tensor, batch: VarlenBatch, scale: float | None) -> Any:
    """What flash attention computes, span by span."""
    out, log_sum = torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0])
    for q, k, scores in _scores(query, key, batch, scale):
        log_sum[:, q] = scores.logsumexp(-1)
        out[q] = (scores.softmax(-1) @ _spread(value[k])).transpose(0, 1)
    return out, log_sum, torch.empty(0), torch.empty(0)


def plain_flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, *, rest: Any,
    batch: VarlenBatch, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As flash attention goes backward: weights from the log-sum-exp, gradients of scores from the output."""
    gradients = tuple(torch.zeros_like(state) for state in (query, key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for q, k, scores in _scores(query, key, batch, scale):
        weights = (scores - log_sum[:, q, None]).exp()
        g = grad[q].transpose(0, 1)
        of_scores = weights * (g @ _spread(value[k]).transpose(1, 2) - (grad[q] * out[q]).sum(-1).T[..., None])
        gradients[0][q] = (of_scores @ _spread(key[k])).transpose(0, 1) * factor
        gradients[1][k] = _gathered(of_scores.transpose(1, 2) @ query[q].transpose(0, 1)) * factor
        gradients[2][k] = _gathered(weights.transpose(1, 2) @ g)
    return gradients  # type: ignore[return-value]


def _scores(query: Tensor, key: Tensor, batch: VarlenBatch, scale: float | None) -> Any:
    for (q0, q1), (k0, k1) in zip(
        batch.cu_seqlens_q.unfold(0, 2, 1).tolist(), batch.cu_seqlens_k.unfold(0, 2, 1).tolist(), strict=True
    ):
        assert q1 - q0 <= batch.max_seqlen_q
        assert k1 - k0 <= batch.max_seqlen_k
        scores = query[q0:q1].transpose(0, 1) @ _spread(key[k0:k1]).transpose(1, 2)
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        if batch.is_causal:
            scores = scores.masked_fill(~torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(), -torch.inf)
        yield slice(q0, q1), slice(k0, k1), scores


def _spread(shared: Tensor) -> Tensor:
    """(K, shared heads, width) → (heads, K, width)."""
    return shared.transpose(0, 1).repeat_interleave(HEADS // SHARED, dim=0)


def _gathered(spread: Tensor) -> Tensor:
    """(heads, K, width) → (K, shared heads, width), the heads that share summed."""
    return spread.unflatten(0, (SHARED, -1)).sum(1).transpose(0, 1)


def assert_same(sequences: list[list[int]], **tolerance: float) -> None:
    tree = tree_of(sequences)
    given_, expected_of = states(tree.nodes[-1].end), states(tree.nodes[-1].end)
    output = tree_attention(layer, *given_, None, tree=TreeOnDevice(tree, torch.device("cpu")))[0]
    expected = dense(*expected_of, tree)
    torch.testing.assert_close(output, expected, **tolerance)
    direction = torch.randn_like(output)
    (output * direction).sum().backward()
    (expected * direction).sum().backward()
    for mine, theirs in zip(given_, expected_of, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **tolerance)


@settings(deadline=None, max_examples=40)
@given(sequences=trees)
def test_node_by_node_is_dense_attention_under_the_trees_mask(sequences: list[list[int]]) -> None:
    assert_same(sequences)


@settings(deadline=None, max_examples=40)
@given(sequences=trees)
def test_merging_levels_is_dense_attention_too_forward_and_backward(sequences: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "can_flash", lambda _: True)
        patch.setattr(module, "flash", plain_flash)
        patch.setattr(module, "flash_backward", plain_flash_backward)
        assert_same(sequences)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [64, 128])
def test_flash_attention_of_a_tree_is_as_near_to_exact_as_dense_attention_in_half_precision(width: int) -> None:
    rng = np.random.default_rng(0)
    question = rng.integers(0, 2, 300).tolist()
    steps = [rng.integers(0, 2, n).tolist() for n in (40, 40, 90, 1, 70)]
    sequences = [question + branch for branch in steps] + [question + steps[0] + branch for branch in steps]
    tree = build_tree([np.array(ids) for ids in [*sequences, [1, 0, 1]]], [0] * 10 + [1], min_shared=8)
    on_device = TreeOnDevice(tree, torch.device("cuda"))
    assert len(on_device.levels) >= 2
    half = states(tree.nodes[-1].end, dtype=torch.bfloat16, device="cuda", width=width)
    exact, rounded = (
        [state.detach().to(dtype).requires_grad_() for state in half] for dtype in (torch.float64, torch.bfloat16)
    )
    outs = [
        tree_attention(layer, *half, None, tree=on_device)[0], dense(*exact, tree), dense(*rounded, tree)
    ]  # fmt: skip
    direction = torch.randn(outs[1].shape, dtype=torch.float64, device="cuda")
    for out in outs:
        out.backward(direction.to(out.dtype))
    for mine, true, theirs in [
        outs,
        *([state.grad for state in some] for some in zip(half, exact, rounded, strict=True)),
    ]:
        error, usual = ((result.double() - true).norm() / true.norm() for result in (mine, theirs))
        assert error < 2 * usual + 1e-3, (error, usual)


def test_a_vision_tower_sees_each_window_by_itself() -> None:
    query, key, value = (state.detach() for state in states(10))
    key, value = (state.repeat_interleave(2, dim=1) for state in (key, value))
    tower = SimpleNamespace(is_causal=False)
    ends = torch.tensor([0, 3, 4, 10])
    output = window_attention(
        tower, query, key, value, None, is_causal=False, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=6,
        max_length_k=6,
    )[0]  # fmt: skip
    parts = [
        torch.nn.functional.scaled_dot_product_attention(*(s[:, :, a:b] for s in (query, key, value)))
        for a, b in ((0, 3), (3, 4), (4, 10))
    ]
    torch.testing.assert_close(output, torch.cat(parts, dim=2).transpose(1, 2))

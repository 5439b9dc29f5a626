"""Token sequences packed into one, common prefixes once: the tree, its batches, and which models take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from mprm.models.families import group_equal_grids
from mprm.models.prompt import Ids, PromptEncoder, TokenizedChain

MODELS = ("qwen2_5_vl", "internvl", "llama", "qwen2", "qwen3", "mistral")
LANGUAGE_MODELS = ("qwen2_5_vl_text", "llama", "qwen2", "qwen3", "mistral")
"""Plain decoders: every layer keeps keys and values of all tokens, and takes positions and masks as given."""


def why_not_shared(model: Any) -> str | None:
    """Why nothing may be assumed of how the model attends, or None where it is known to be a plain decoder."""
    text = model.config.get_text_config()
    if model.config.model_type not in MODELS or text.model_type not in LANGUAGE_MODELS:
        kinds = " with ".join(dict.fromkeys((model.config.model_type, text.model_type)))
        return f"models of type {kinds} are not known to be plain decoders"
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        return "the model is spread over several devices"
    if text._attn_implementation != "sdpa":
        return f"the model attends with {text._attn_implementation}; expected sdpa"
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"} or (text.model_type == "mistral" and text.sliding_window is not None):
        return "the model attends to a sliding window"
    return None


MIN_SHARED = 32
"""Fewer common tokens than these are repeated: each level of a tree is one more attention in every layer."""


@dataclass(frozen=True, slots=True)
class Node:
    """A span of the packed sequence; the spans that continue it follow directly."""

    start: int
    end: int
    parent: int
    """Index of the node that it continues; -1 for the start of a sequence."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Sequences packed one after the other, each depth first, common prefixes once."""

    nodes: tuple[Node, ...]
    origins: tuple[tuple[int, int, int], ...] = ()
    """Of each node: a sequence that runs through it, and where in that sequence it starts and ends."""
    leaves: tuple[int, ...] = ()
    """Of each sequence: the node with its last token."""

    def path(self, node: int) -> list[int]:
        """The nodes from the start of a sequence to this one."""
        path = [node]
        while (node := self.nodes[node].parent) >= 0:
            path.append(node)
        return path[::-1]

    def positions(self, sequence: int) -> Ids:
        """Index of each token of a sequence in the packed one."""
        nodes = [self.nodes[node] for node in self.path(self.leaves[sequence])]
        return np.concatenate([np.arange(node.start, node.end) for node in nodes])


def common_prefix_length(left: Ids, right: Ids) -> int:
    """Number of tokens with which both sequences begin."""
    n = min(len(left), len(right))
    differs = left[:n] != right[:n]
    return int(differs.argmax()) if differs.any() else n


def build_tree(sequences: Sequence[Ids], groups: Sequence[int], *, min_shared: int = MIN_SHARED) -> PrefixTree:
    """The tree of token sequences; those of different groups share nothing: chains with other images, for example."""
    nodes: list[Node] = []
    origins: list[tuple[int, int, int]] = []
    leaves = [-1] * len(sequences)

    def add(sequence: int, begin: int, end: int, parent: int) -> int:
        if begin == end:
            return parent
        start = nodes[-1].end if nodes else 0
        nodes.append(Node(start, start + end - begin, parent))
        origins.append((sequence, begin, end))
        return len(nodes) - 1

    order = tree_order(sequences, groups)
    # (sequences with a common prefix, its tokens that are in the tree already, the node with the last of those)
    stack = [(list(members), 0, -1) for _, members in groupby(order, key=lambda index: groups[index])][::-1]
    while stack:
        members, begin, parent = stack.pop()
        # in this order, all share what the first and the last share
        common = common_prefix_length(sequences[members[0]], sequences[members[-1]])
        ended = [index for index in members if len(sequences[index]) == common]
        longer = members[len(ended) :]
        if longer and common - begin >= min_shared:
            begin, parent = common, add(members[0], begin, common, parent)
        if ended:
            leaf = add(ended[0], begin, common, parent)
            for index in ended:
                leaves[index] = leaf
        branches = [list(branch) for _, branch in groupby(longer, key=lambda index: int(sequences[index][common]))]
        stack += [(branch, begin, parent) for branch in reversed(branches)]
    return PrefixTree(tuple(nodes), tuple(origins), tuple(leaves))


def tree_order(sequences: Sequence[Ids], groups: Sequence[int]) -> list[int]:
    """Indices of the sequences, those with a common prefix next to each other."""
    # big-endian bytes compare as the ids do
    keys = [ids.astype(">u4").tobytes() for ids in sequences]
    return sorted(range(len(sequences)), key=lambda index: (groups[index], keys[index], index))


def pack_sequences(
    sequences: Sequence[Ids], groups: Sequence[int], max_tokens: int, *, min_shared: int = MIN_SHARED
) -> Iterator[list[int]]:
    """Indices of the sequences in packs of at most ``max_tokens`` tokens, a common prefix together where it fits."""
    pack: list[int] = []
    n_tokens = 0
    for index in tree_order(sequences, groups):
        length = needed = len(sequences[index])
        if pack and groups[pack[-1]] == groups[index]:
            common = common_prefix_length(sequences[pack[-1]], sequences[index])
            # after the last node that both share they may repeat up to min_shared - 1 common tokens
            needed = min(length, length - common + min_shared - 1)
        if pack and n_tokens + needed > max_tokens:
            yield pack
            pack, n_tokens, needed = [], 0, length
        pack.append(index)
        n_tokens += needed
    if pack:
        yield pack


def _image_groups(batch: Sequence[TokenizedChain]) -> list[int]:
    """A number for each chain, equal where the images are the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    return [numbers.setdefault(chain.image_key, len(numbers)) for chain in batch]


def pack_chains(batch: Sequence[TokenizedChain], max_tokens: int) -> list[list[int]]:
    """Indices of the chains in packs of at most ``max_tokens`` tokens; see `pack_sequences`."""
    return list(pack_sequences([chain.scored_ids for chain in batch], _image_groups(batch), max_tokens))


def collate_tree(
    encoder: PromptEncoder, batch: Sequence[TokenizedChain], *, min_shared: int = MIN_SHARED
) -> dict[str, Any]:
    """A batch for `PRMModel`: all chains in one sequence, and the tree that says what continues what.

    A shared step occurs in ``prm_index`` as often as it is shared. Pixel values are those of the first chain with the
    same images. Shapes: ``input_ids`` (1, T), ``position_ids`` (1, T) or (axes, 1, T), ``prm_index`` (S,), and
    ``image_positions`` (I,) and ``image_features`` (I,), the index of each image token and of its embedding.
    """
    import torch

    family, tokenizer, processor = encoder.family, encoder.tokenizer, encoder.image_processor
    image_id = tokenizer.convert_tokens_to_ids(family.image_tokens[1]) if family.image_tokens else -1
    groups, sequences = _image_groups(batch), [chain.scored_ids for chain in batch]
    tree = build_tree(sequences, groups, min_shared=min_shared)
    first = dict(zip(groups[::-1], batch[::-1], strict=True))
    counts = [chain.input_ids.count(image_id) for chain in first.values()]
    first_feature = dict(zip(first, accumulate(counts, initial=0), strict=False))
    parts = []
    for index, begin, end in tree.origins:
        ids, group = sequences[index], groups[index]
        features = first_feature[group] + np.cumsum(ids == image_id) - 1  # meant for image tokens alone
        positions = family.positions(tokenizer, processor, ids, first[group].vision)
        parts.append((ids[begin:end], features[begin:end], positions[:, begin:end]))
    input_ids, features, positions = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    prm_index = [tree.positions(index)[chain.prm_positions] for index, chain in enumerate(batch)]
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(input_ids)[None],
        "position_ids": torch.from_numpy(positions if len(positions) == 1 else positions[:, None]),
        "prm_index": torch.from_numpy(np.concatenate(prm_index)),
        "tree": tree,
    }
    vision = [chain.vision for chain in first.values() if chain.vision]
    if vision:
        image_positions = np.flatnonzero(input_ids == image_id)
        inputs["image_positions"] = torch.from_numpy(image_positions)
        inputs["image_features"] = torch.from_numpy(features[image_positions])
        inputs |= {name: torch.cat([torch.as_tensor(arrays[name]) for arrays in vision]) for name in vision[0]}
    if "image_grid_thw" in inputs:
        inputs["image_grid_thw"] = group_equal_grids(inputs["image_grid_thw"])
    return inputs

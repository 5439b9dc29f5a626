"""Which models can compute what several requests begin with once.

Token sequences laid out as trees: what several begin with stands once, and they branch off behind it.

Chains packed into one sequence without padding, what they begin with once: inputs for the step reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from mprm.models.families import as_frames
from mprm.models.prompt import Encoded, PromptEncoder

MODELS = ("qwen2_5_vl", "internvl", "llama", "qwen2", "qwen3", "mistral")
LANGUAGE_MODELS = ("qwen2_5_vl_text", "llama", "qwen2", "qwen3", "mistral")
"""Plain decoders: every layer keeps keys and values of all tokens, and takes positions and masks as given."""


def why_not_shared(model: Any) -> str | None:
    """Why nothing may be assumed of how the model attends, or None where it is known to be a plain decoder."""
    text = model.config.get_text_config()
    if model.config.model_type not in MODELS or text.model_type not in LANGUAGE_MODELS:
        kinds = " with ".join(dict.fromkeys((model.config.model_type, text.model_type)))
        return f"models of type {kinds} are not known to it"
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        return "the model is spread over several devices"
    if text._attn_implementation != "sdpa":
        return f"the model attends with {text._attn_implementation}; expected sdpa"
    if _slides(text):
        return "the model attends to a sliding window"
    return None


def _slides(text: Any) -> bool:
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if text.model_type == "mistral" and text.sliding_window is not None:
        return True
    return kinds != {"full_attention"}


Ids = np.ndarray[tuple[int], np.dtype[np.int64]]

MIN_SHARED = 32
"""Fewer tokens than these in common are repeated: each level of a tree is one more attention in every layer."""


@dataclass(frozen=True, slots=True)
class Node:
    """A stretch of tokens in the packed sequence; its children's tokens come behind it, before anything else."""

    start: int
    end: int
    parent: int
    """Number of the node that it continues; -1 for the beginning of a sequence."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Several trees in one sequence, one behind the other, each depth first."""

    nodes: tuple[Node, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens of the packed sequence."""
        return self.nodes[-1].end if self.nodes else 0

    def path(self, number: int) -> list[int]:
        """The nodes from the beginning of a sequence to this one."""
        found = [number]
        while (number := self.nodes[number].parent) >= 0:
            found.append(number)
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Laid:
    """Sequences in a tree."""

    tree: PrefixTree
    origins: tuple[tuple[int, int, int], ...]
    """Of each node: a sequence that runs through it, and where in that sequence it starts and ends."""
    leaves: tuple[int, ...]
    """Of each sequence: the node with its last token."""

    def places(self, sequence: int) -> Ids:
        """Where each token of a sequence stands in the packed one."""
        nodes = [self.tree.nodes[number] for number in self.tree.path(self.leaves[sequence])]
        return np.concatenate([np.arange(node.start, node.end) for node in nodes])


def shared_length(one: Ids, other: Ids) -> int:
    """Number of tokens with which both begin.

    Examples
    --------
    >>> shared_length(np.array([5, 6, 7]), np.array([5, 6, 8, 9]))
    2
    """
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    return int(differs.argmax()) if differs.any() else n


def lay_out(sequences: Sequence[Ids], kinds: Sequence[int], *, min_shared: int = MIN_SHARED) -> Laid:
    """Lay sequences out as trees.

    Parameters
    ----------
    sequences
        Token ids of each, at least one.
    kinds
        Sequences of different kinds have nothing in common, whatever their ids say: other images, for one.
    min_shared
        See `MIN_SHARED`.
    """
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

    order = in_tree_order(sequences, kinds)
    # (sequences that begin alike, tokens of them that are placed already, node that holds the last of those)
    waiting = [(list(group), 0, -1) for _, group in groupby(order, key=lambda number: kinds[number])][::-1]
    while waiting:
        group, begin, parent = waiting.pop()
        first = sequences[group[0]]
        # in their order, what the first and the last have in common all have
        common = shared_length(first, sequences[group[-1]])
        ended = [number for number in group if len(sequences[number]) == common]
        if len(ended) == len(group):
            leaf = add(group[0], begin, common, parent)
            for number in group:
                leaves[number] = leaf
            continue
        if common - begin >= min_shared:
            begin, parent = common, add(group[0], begin, common, parent)
        if ended:
            leaf = add(ended[0], begin, common, parent)
            for number in ended:
                leaves[number] = leaf
        longer = group[len(ended) :]
        branches = [list(some) for _, some in groupby(longer, key=lambda number: int(sequences[number][common]))]
        waiting += [(branch, begin, parent) for branch in reversed(branches)]
    return Laid(PrefixTree(tuple(nodes)), tuple(origins), tuple(leaves))


def in_tree_order(sequences: Sequence[Ids], kinds: Sequence[int]) -> list[int]:
    """Numbers of the sequences, those that begin alike side by side."""
    # big-endian bytes compare as the ids do
    keys = [ids.astype(">u4").tobytes() for ids in sequences]
    return sorted(range(len(sequences)), key=lambda number: (kinds[number], keys[number], number))


def packs_by_tokens(
    sequences: Sequence[Ids], kinds: Sequence[int], budget: int, *, min_shared: int = MIN_SHARED
) -> Iterator[list[int]]:
    """Numbers of the sequences in packs, none with more than ``budget`` tokens unless it is a single sequence.

    Sequences that begin alike come into one pack as far as they fit.
    """
    pack: list[int] = []
    n_tokens = 0
    for number in in_tree_order(sequences, kinds):
        length = needed = len(sequences[number])
        if pack and kinds[pack[-1]] == kinds[number]:
            common = shared_length(sequences[pack[-1]], sequences[number])
            # behind the last node that both share stand fewer than min_shared tokens that they repeat
            needed = min(length, length - common + min_shared - 1)
        if pack and n_tokens + needed > budget:
            yield pack
            pack, n_tokens, needed = [], 0, length
        pack.append(number)
        n_tokens += needed
    if pack:
        yield pack


def read_ids(encoded: Encoded) -> Ids:
    """The ids that steps depend on: nothing that stands behind the last ``<prm>`` is seen by any of them."""
    return np.asarray(encoded.ids[: encoded.positions[-1] + 1], dtype=np.int64)


def _kinds(batch: Sequence[Encoded]) -> list[int]:
    """A number for each chain, equal where the images are the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    return [numbers.setdefault(encoded.images, len(numbers)) for encoded in batch]


def pack_numbers(batch: Sequence[Encoded], budget: int) -> list[list[int]]:
    """Numbers of the chains in packs of at most ``budget`` tokens, those that begin alike together."""
    return list(packs_by_tokens([read_ids(encoded) for encoded in batch], _kinds(batch), budget))


def packed(encoder: PromptEncoder, batch: Sequence[Encoded], *, min_shared: int = MIN_SHARED) -> dict[str, Any]:
    """A batch for the step reader: one sequence of all chains, and the tree that says what continues what.

    Each step of each chain has its place in ``prm_index``, chain by chain; a shared step is named as often as
    it is shared. Images are taken from the first chain that shows them; the others need no vision inputs.

    Returns
    -------
    ``input_ids`` (1, T), ``position_ids`` (1, T) or (axes, 1, T), ``prm_index`` (S,), ``tree``, and with images
    ``image_places`` (I,) and ``image_rows`` (I,): where an image's token stands, and which embedding it takes.
    """
    import torch

    kinds, sequences = _kinds(batch), [read_ids(encoded) for encoded in batch]
    laid = lay_out(sequences, kinds, min_shared=min_shared)
    # the last one to be set stays: the first chain of its kind with what its images show
    shown = {kind: encoded for encoded, kind in zip(batch[::-1], kinds[::-1], strict=True) if _is_shown(encoded)}
    family, tokenizer, processor = encoder.family, encoder.tokenizer, encoder.image_processor
    ids, positions = [], []
    for number, begin, end in laid.origins:
        of_chain = family.positions(tokenizer, processor, sequences[number], shown[kinds[number]].vision)
        positions.append(of_chain[:, begin:end])
        ids.append(sequences[number][begin:end])
    position_ids = torch.from_numpy(np.concatenate(positions, axis=1))
    index = [laid.places(number)[encoded.positions] for number, encoded in enumerate(batch)]
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(np.concatenate(ids))[None],
        "position_ids": position_ids if len(position_ids) == 1 else position_ids[:, None],
        "prm_index": torch.from_numpy(np.concatenate(index)),
        "tree": laid.tree,
    }
    if any(encoded.vision for encoded in shown.values()):
        image_id = tokenizer.convert_tokens_to_ids(family.image_tokens[1])
        inputs |= _images(image_id, laid, sequences, kinds, shown)
    return inputs


def _is_shown(encoded: Encoded) -> bool:
    return bool(encoded.vision) or not encoded.images


def _images(
    image_id: int, laid: Laid, sequences: Sequence[Ids], kinds: Sequence[int], shown: dict[int, Encoded]
) -> dict[str, Any]:
    """Vision inputs of the images, each once, and which of their embeddings each image token takes."""
    import torch

    first_rows: dict[int, int] = {}
    n_rows = 0
    for kind, encoded in shown.items():
        first_rows[kind] = n_rows
        n_rows += encoded.ids.count(image_id)
    places, rows = [], []
    for node, (number, begin, end) in zip(laid.tree.nodes, laid.origins, strict=True):
        found = np.flatnonzero(sequences[number] == image_id)
        inside = (found >= begin) & (found < end)
        places.append(found[inside] - begin + node.start)
        rows.append(first_rows[kinds[number]] + np.flatnonzero(inside))
    seen = [encoded.vision for encoded in shown.values() if encoded.vision]
    vision = {name: torch.cat([torch.as_tensor(one[name]) for one in seen]) for name in seen[0]}
    if "image_grid_thw" in vision:
        vision["image_grid_thw"] = as_frames(vision["image_grid_thw"])
    return {
        "image_places": torch.from_numpy(np.concatenate(places)),
        "image_rows": torch.from_numpy(np.concatenate(rows)),
        **vision,
    }

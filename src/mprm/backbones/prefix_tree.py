"""Token sequences laid out as trees: what several begin with stands once, and they branch off behind it.

Everything is decided by token ids, so that a sequence read along its branch is the sequence itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

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

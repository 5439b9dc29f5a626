"""Trees of token sequences: each sequence is itself along its branch, and nothing that is shared stands twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mprm.models.prefix_tree import Node, in_tree_order, lay_out, packs_by_tokens, shared_length

few_ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)  # three ids: many beginnings are alike
forests = st.lists(st.tuples(few_ids, st.integers(0, 1)), min_size=1, max_size=12)
Forest = list[tuple[list[int], int]]


def arrays(forest: Forest) -> tuple[list[np.ndarray], list[int]]:
    return [np.array(ids) for ids, _ in forest], [kind for _, kind in forest]


def test_chains_of_a_question_stand_behind_it_and_a_shared_step_stands_once() -> None:
    question = [1, 2, 3]
    chains = [np.array([*question, *steps]) for steps in ([7, 8], [4, 5, 6], [4, 5, 9, 9], [4, 5])]
    laid = lay_out(chains, [0] * 4, min_shared=1)
    # 1 2 3 | 4 5 | 6 | 9 9 | 7 8: the fourth chain ends where the second and third part
    assert laid.tree.nodes == (Node(0, 3, -1), Node(3, 5, 0), Node(5, 6, 1), Node(6, 8, 1), Node(8, 10, 0))
    assert laid.leaves == (4, 2, 3, 1)
    assert laid.places(2).tolist() == [0, 1, 2, 3, 4, 6, 7]


def test_what_is_too_short_to_share_is_repeated() -> None:
    chains = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5, 6, 7, 8]), np.array([1, 2, 3, 5, 6, 9])]
    laid = lay_out(chains, [0] * 3, min_shared=3)
    # 1 2 3 is long enough; 5 6 is not: 1 2 3 | 4 | 5 6 7 8 | 5 6 9
    assert laid.tree.nodes == (Node(0, 3, -1), Node(3, 4, 0), Node(4, 8, 0), Node(8, 11, 0))
    # at four, 1 2 3 is not, but 1 2 3 5 6 is: 1 2 3 4 | 1 2 3 5 6 | 7 8 | 9
    assert lay_out(chains, [0] * 3, min_shared=4).tree.n_tokens == 4 + 5 + 2 + 1


def test_a_chain_that_another_one_continues_costs_nothing() -> None:
    laid = lay_out([np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 3])], [0] * 3, min_shared=1)
    assert laid.tree.n_tokens == 3
    assert laid.leaves == (1, 0, 1)


@given(forest=forests, min_shared=st.integers(1, 5))
def test_each_sequence_is_itself_along_its_branch(forest: Forest, min_shared: int) -> None:
    sequences, kinds = arrays(forest)
    laid = lay_out(sequences, kinds, min_shared=min_shared)
    flat = np.concatenate([sequences[number][begin:end] for number, begin, end in laid.origins])
    assert len(flat) == laid.tree.n_tokens <= sum(map(len, sequences))
    for number, ids in enumerate(sequences):
        assert flat[laid.places(number)].tolist() == ids.tolist()


@given(forest=forests, min_shared=st.integers(1, 5))
def test_what_continues_a_node_follows_it_without_a_gap(forest: Forest, min_shared: int) -> None:
    tree = lay_out(*arrays(forest), min_shared=min_shared).tree
    assert [node.start for node in tree.nodes] == [0, *(node.end for node in tree.nodes)][:-1]
    for number in range(len(tree.nodes)):
        below = [other for other in range(len(tree.nodes)) if number in tree.path(other)]
        assert below == list(range(number, number + len(below)))


@given(forest=forests)
def test_sharing_everything_leaves_one_token_for_each_distinct_beginning(forest: Forest) -> None:
    beginnings = {(kind, tuple(ids[: end + 1])) for ids, kind in forest for end in range(len(ids))}
    assert lay_out(*arrays(forest), min_shared=1).tree.n_tokens == len(beginnings)


def test_equal_ids_of_different_kinds_share_nothing() -> None:
    laid = lay_out([np.array([1, 2, 3])] * 2, [0, 1], min_shared=1)
    assert laid.tree.nodes == (Node(0, 3, -1), Node(3, 6, -1))


@given(forest=forests, min_shared=st.integers(1, 5), budget=st.integers(1, 30))
def test_no_pack_has_more_tokens_than_its_budget_unless_it_is_one_sequence(
    forest: Forest, min_shared: int, budget: int
) -> None:
    sequences, kinds = arrays(forest)
    packs = list(packs_by_tokens(sequences, kinds, budget, min_shared=min_shared))
    assert [number for pack in packs for number in pack] == in_tree_order(sequences, kinds)
    for pack in packs:
        tree = lay_out([sequences[n] for n in pack], [kinds[n] for n in pack], min_shared=min_shared).tree
        assert len(pack) == 1 or tree.n_tokens <= budget


@given(one=few_ids, other=few_ids)
def test_the_shared_length_is_that_of_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    n = shared_length(np.array(one), np.array(other))
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]

"""Batches: every rollout once an epoch, the same global batches whatever the devices, little or no padding."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, strategies as st

from mprm.training.batches import BatchPlan, PackedPlan, RankBatches, packed_plan


def plan(n: int, **options: int) -> BatchPlan:
    lengths = np.random.default_rng(n).integers(1, 50, n)
    return BatchPlan(lengths=lengths, **{"batch_size": 4, "per_device": 2, **options})


sizes = st.integers(1, 9)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world_size=sizes, epoch=st.integers(0, 2))
def test_every_rollout_is_trained_on_once_and_every_rank_runs_equally_often(
    n: int, batch_size: int, per_device: int, world_size: int, epoch: int
) -> None:
    batches = plan(n, batch_size=batch_size, per_device=per_device, world_size=world_size)
    of_ranks = [list(RankBatches(batches, rank, epoch)) for rank in range(world_size)]
    assert {len(micro) for micro in of_ranks} == {len(RankBatches(batches, 0))}
    trained_on = [index for micro in of_ranks for some in micro for index in some if index >= 0]
    assert sorted(trained_on) == list(range(n))
    assert all(some for micro in of_ranks for some in micro)
    # T = ⌈N/B⌉ optimizer steps, of which all but the last have the same number of micro-batches
    assert batches.n_optimizer_steps == math.ceil(n / batch_size)
    assert math.ceil(len(RankBatches(batches, 0)) / batches.accumulation) == batches.n_optimizer_steps


@given(n=st.integers(1, 60), batch_size=sizes, shape=st.tuples(sizes, sizes))
def test_a_global_batch_does_not_depend_on_micro_batches_or_devices(
    n: int, batch_size: int, shape: tuple[int, int]
) -> None:
    single, other = (
        plan(n, batch_size=batch_size),
        plan(n, batch_size=batch_size, per_device=shape[0], world_size=shape[1]),
    )
    assert single.global_batches() == other.global_batches()
    for batch in other.global_batches():
        dealt = [index for ranks in other.micro_batches(batch) for some in ranks for index in some if index >= 0]
        assert sorted(dealt) == sorted(batch)


def test_rollouts_of_like_length_share_a_micro_batch() -> None:
    batches = BatchPlan(lengths=np.array([5, 90, 7, 80, 6, 85, 8, 95]), batch_size=8, per_device=2, world_size=2)
    # by length: 95 90 85 80 | 8 7 6 5; a round goes to the two ranks in turn
    assert batches.micro_batches(list(range(8))) == [[[7, 5], [1, 3]], [[6, 4], [2, 0]]]


@given(n=st.integers(1, 60), per_device=sizes, world_size=sizes)
def test_no_micro_batch_has_more_tokens_than_groups_of_equal_number_would_give(
    n: int, per_device: int, world_size: int
) -> None:
    batches = plan(n, batch_size=n, per_device=per_device, world_size=world_size)
    (batch,) = batches.global_batches()
    most = max(len(some) * max(batches.lengths[some]) for ranks in batches.micro_batches(batch) for some in ranks)
    by_length = sorted(batches.lengths, reverse=True)
    share = per_device * world_size
    plain = [by_length[start : start + share] for start in range(0, n, share)]
    assert most <= max(math.ceil(len(group) / world_size) * group[0] for group in plain)


def test_long_rollouts_go_in_small_groups_and_short_ones_in_large() -> None:
    batches = BatchPlan(lengths=np.array([100, 100, 50, 20, 20, 20, 10, 10]), batch_size=8, per_device=4)
    # 2 × 100 and 6 × 50 = 300 tokens at most, where equal groups of 4 would take 400; 3 × 100 and 5 × 20 as much
    assert [[len(some) for some in ranks] for ranks in batches.micro_batches(list(range(8)))] == [[3], [5]]


def test_a_rank_without_rollouts_runs_along_with_an_ignored_one() -> None:
    batches = BatchPlan(lengths=np.array([3, 2, 1]), batch_size=3, per_device=1, world_size=2)
    assert batches.micro_batches([0, 1, 2]) == [[[0], [1]], [[2], [~2]]]


def test_each_pass_has_an_order_of_its_own() -> None:
    sampler = RankBatches(plan(40), 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert len(sampler) == len(first)


def packed(n: int, *, batch_size: int = 4, per_device: int = 2, world_size: int = 1, epochs: int = 1) -> PackedPlan:
    """Rollouts of ⌈n/3⌉ problems, each with 40 tokens before the steps, so that they are shared."""
    lengths = 40 + np.random.default_rng(n).integers(1, 50, n)
    plain = BatchPlan(lengths=lengths, batch_size=batch_size, per_device=per_device, world_size=world_size)
    return packed_plan(plain, np.arange(n) % math.ceil(n / 3), np.full(n, 40), epochs=epochs)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world_size=sizes, epochs=st.integers(1, 2))
def test_every_rollout_is_in_one_pack_and_every_rank_has_as_many_packs(
    n: int, batch_size: int, per_device: int, world_size: int, epochs: int
) -> None:
    packs = packed(n, batch_size=batch_size, per_device=per_device, world_size=world_size, epochs=epochs)
    for epoch in range(epochs):
        of_ranks = [list(RankBatches(packs, rank, epoch)) for rank in range(world_size)]
        assert {len(micro) for micro in of_ranks} == {len(RankBatches(packs, 0))}
        trained_on = [index for micro in of_ranks for some in micro for index in some if index >= 0]
        assert sorted(trained_on) == list(range(n))
        assert all(some for micro in of_ranks for some in micro)
    # Trainer counts optimizer steps by dividing
    assert (
        math.ceil(len(RankBatches(packs, 0)) / packs.accumulation)
        == packs.n_optimizer_steps
        == math.ceil(n / batch_size)
    )


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world_size=sizes)
def test_a_global_batch_holds_the_rollouts_that_it_holds_unpacked(
    n: int, batch_size: int, per_device: int, world_size: int
) -> None:
    packs = packed(n, batch_size=batch_size, per_device=per_device, world_size=world_size)
    plain = BatchPlan(lengths=packs.lengths, batch_size=batch_size, per_device=per_device, world_size=world_size)
    assert packs.global_batches() == plain.global_batches()
    for batch in packs.global_batches():
        dealt = [index for ranks in packs.micro_batches(batch) for some in ranks for index in some if index >= 0]
        assert sorted(dealt) == sorted(batch)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world_size=sizes)
def test_no_pack_has_more_tokens_than_the_largest_padded_micro_batch(
    n: int, batch_size: int, per_device: int, world_size: int
) -> None:
    packs = packed(n, batch_size=batch_size, per_device=per_device, world_size=world_size)
    plain = BatchPlan(lengths=packs.lengths, batch_size=batch_size, per_device=per_device, world_size=world_size)
    most = max(map(plain.max_tokens, plain.global_batches()))
    for batch in packs.global_batches():
        for some in (some for ranks in packs.micro_batches(batch) for some in ranks if some[0] >= 0):
            problems = {packs.problems[index] for index in some}
            # each rollout's own tokens, and the 40 before them once for each problem
            assert sum(packs.lengths[index] - 40 for index in some) + 40 * len(problems) <= most
    assert len(RankBatches(packs, 0)) <= len(RankBatches(plain, 0))


def test_rollouts_of_a_problem_are_packed_together_and_packs_are_even() -> None:
    plain = BatchPlan(lengths=np.array([120, 110, 90, 130, 60, 50]), batch_size=6, per_device=2)
    packs = packed_plan(plain, np.array([7, 7, 7, 8, 8, 9]), np.array([100, 100, 80, 40, 40, 10]))
    # padded there are three rounds of two, 130 120 | 110 90 | 60 50: a pack may have 2 × 130 tokens. Problem 7 takes
    # 120 + 10 + 10 = 140, problem 8 130 + 20 = 150, problem 9 50: 340 in all, two packs of 150 and 190
    assert packs.pack_tokens == 260
    assert packs.micro_batches([0, 1, 2, 3, 4, 5]) == [[[0, 1, 2, 5]], [[3, 4]]]


def test_a_problem_that_is_too_large_for_a_pack_is_split() -> None:
    plain = BatchPlan(lengths=np.full(6, 100), batch_size=6, per_device=1)
    packs = packed_plan(plain, np.zeros(6, int), np.full(6, 40))
    # a second rollout would make 160 of at most 100 tokens
    assert [len(some) for ranks in packs.micro_batches(list(range(6))) for some in ranks] == [1] * 6
    few = packed_plan(
        BatchPlan(lengths=np.full(6, 100), batch_size=6, per_device=2), np.zeros(6, int), np.full(6, 90)
    )
    # 100 and ten more for each other one: all six in one pack of 150 of at most 200
    assert few.micro_batches(list(range(6))) == [[[0, 1, 2, 3, 4, 5]]]


def test_a_rank_without_rollouts_runs_along_with_the_shortest_one_ignored() -> None:
    plain = BatchPlan(lengths=np.array([5, 4, 3]), batch_size=3, per_device=1, world_size=4)
    assert packed_plan(plain, np.arange(3), np.zeros(3, int)).micro_batches([0, 1, 2]) == [[[0], [1], [2], [~2]]]

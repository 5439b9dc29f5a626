"""Batches: every rollout once a pass, the same global batches whatever the devices, padding saved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import ConfigError
from mprm.training.batches import BatchPlan, RankBatches


def plan(n: int, **options: int) -> BatchPlan:
    lengths = np.random.default_rng(n).integers(1, 50, n)
    return BatchPlan(lengths=lengths, **{"batch_size": 4, "per_device": 2, **options})


sizes = st.integers(1, 9)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world=sizes, epoch=st.integers(0, 2))
def test_every_rollout_is_trained_on_once_and_every_rank_runs_equally_often(
    n: int, batch_size: int, per_device: int, world: int, epoch: int
) -> None:
    batches = plan(n, batch_size=batch_size, per_device=per_device, world=world)
    of_ranks = [list(batches.of_rank(rank, epoch)) for rank in range(world)]
    assert {len(micro) for micro in of_ranks} == {batches.n_micro_batches()}
    taught = [index for micro in of_ranks for some in micro for index in some if index >= 0]
    assert sorted(taught) == list(range(n))
    assert all(some for micro in of_ranks for some in micro)
    # T = ⌈N/B⌉ updates, of which all but the last have the same number of micro-batches
    assert batches.n_updates == math.ceil(n / batch_size)
    assert math.ceil(batches.n_micro_batches() / batches.accumulation) == batches.n_updates


@given(n=st.integers(1, 60), batch_size=sizes, shape=st.tuples(sizes, sizes))
def test_a_global_batch_does_not_depend_on_micro_batches_or_devices(
    n: int, batch_size: int, shape: tuple[int, int]
) -> None:
    one, other = plan(n, batch_size=batch_size), plan(n, batch_size=batch_size, per_device=shape[0], world=shape[1])
    assert one.global_batches() == other.global_batches()
    for batch in other.global_batches():
        dealt = [index for ranks in other.dealt(batch) for some in ranks for index in some if index >= 0]
        assert sorted(dealt) == sorted(batch)


def test_rollouts_of_like_length_share_a_micro_batch() -> None:
    batches = BatchPlan(lengths=np.array([5, 90, 7, 80, 6, 85, 8, 95]), batch_size=8, per_device=2, world=2)
    # by length: 95 90 85 80 | 8 7 6 5; a round goes to the two ranks in turn
    assert batches.dealt(list(range(8))) == [[[7, 5], [1, 3]], [[6, 4], [2, 0]]]


@given(n=st.integers(1, 60), per_device=sizes, world=sizes)
def test_no_micro_batch_has_more_tokens_than_groups_of_equal_number_would_give(
    n: int, per_device: int, world: int
) -> None:
    batches = plan(n, batch_size=n, per_device=per_device, world=world)
    (batch,) = batches.global_batches()
    most = max(len(some) * max(batches.lengths[some]) for ranks in batches.dealt(batch) for some in ranks)
    by_length = sorted(batches.lengths, reverse=True)
    share = per_device * world
    plain = [by_length[start : start + share] for start in range(0, n, share)]
    assert most <= max(math.ceil(len(group) / world) * group[0] for group in plain)


def test_long_rollouts_go_in_small_groups_and_short_ones_in_large() -> None:
    batches = BatchPlan(lengths=np.array([100, 100, 50, 20, 20, 20, 10, 10]), batch_size=8, per_device=4)
    # 2 × 100 and 6 × 50 = 300 tokens at most, where equal groups of 4 would take 400; 3 × 100 and 5 × 20 as much
    assert [[len(some) for some in ranks] for ranks in batches.dealt(list(range(8)))] == [[3], [5]]


def test_a_rank_without_rollouts_runs_along_with_an_ignored_one() -> None:
    batches = BatchPlan(lengths=np.array([3, 2, 1]), batch_size=3, per_device=1, world=2)
    assert batches.dealt([0, 1, 2]) == [[[0], [1]], [[2], [~2]]]


def test_each_pass_has_an_order_of_its_own() -> None:
    sampler = RankBatches(plan(40), 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert len(sampler) == len(first)


@pytest.mark.parametrize("name", ["batch_size", "per_device", "world"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        plan(3, **{name: 0})

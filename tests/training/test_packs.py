"""Packed training: the same rollouts in each update, the same loss and gradients, fewer tokens and packs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mprm.errors import DataError
from mprm.models.head import PRMModel
from mprm.training.batches import BatchPlan, PackedPlan, packed_plan
from mprm.training.train import train
from tests.tiny_models import BACKBONES, save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records
from tests.training.launched import updates
from tests.training.test_train import config_for, data_for, launch, weights

sizes = st.integers(1, 9)


def plan(n: int, *, batch_size: int = 4, per_device: int = 2, world: int = 1, epochs: int = 1) -> PackedPlan:
    """Rollouts of ⌈n/3⌉ problems, each with 40 tokens before the steps, so that they are shared."""
    lengths = 40 + np.random.default_rng(n).integers(1, 50, n)
    plain = BatchPlan(lengths=lengths, batch_size=batch_size, per_device=per_device, world=world)
    return packed_plan(plain, np.arange(n) % math.ceil(n / 3), np.full(n, 40), epochs=epochs)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world=sizes, epochs=st.integers(1, 2))
def test_every_rollout_is_in_one_pack_and_every_rank_has_as_many_packs(
    n: int, batch_size: int, per_device: int, world: int, epochs: int
) -> None:
    packs = plan(n, batch_size=batch_size, per_device=per_device, world=world, epochs=epochs)
    for epoch in range(epochs):
        of_ranks = [list(packs.of_rank(rank, epoch)) for rank in range(world)]
        assert {len(micro) for micro in of_ranks} == {packs.n_micro_batches()}
        taught = [index for micro in of_ranks for some in micro for index in some if index >= 0]
        assert sorted(taught) == list(range(n))
        assert all(some for micro in of_ranks for some in micro)
    # Trainer counts updates by dividing
    assert math.ceil(packs.n_micro_batches() / packs.accumulation) == packs.n_updates == math.ceil(n / batch_size)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world=sizes)
def test_a_global_batch_holds_the_rollouts_that_it_holds_unpacked(
    n: int, batch_size: int, per_device: int, world: int
) -> None:
    packs = plan(n, batch_size=batch_size, per_device=per_device, world=world)
    plain = BatchPlan(lengths=packs.lengths, batch_size=batch_size, per_device=per_device, world=world)
    assert packs.global_batches() == plain.global_batches()
    for batch in packs.global_batches():
        dealt = [index for ranks in packs.dealt(batch) for some in ranks for index in some if index >= 0]
        assert sorted(dealt) == sorted(batch)


@given(n=st.integers(1, 60), batch_size=sizes, per_device=sizes, world=sizes)
def test_no_pack_has_more_tokens_than_the_largest_padded_micro_batch(
    n: int, batch_size: int, per_device: int, world: int
) -> None:
    packs = plan(n, batch_size=batch_size, per_device=per_device, world=world)
    plain = BatchPlan(lengths=packs.lengths, batch_size=batch_size, per_device=per_device, world=world)
    most = max(map(plain.most_tokens, plain.global_batches()))
    for batch in packs.global_batches():
        for some in (some for ranks in packs.dealt(batch) for some in ranks if some[0] >= 0):
            problems = {packs.packer.issues[index] for index in some}
            # each rollout's own tokens, and the 40 before them once for each problem
            assert sum(packs.lengths[index] - 40 for index in some) + 40 * len(problems) <= most
    assert packs.n_micro_batches() <= plain.n_micro_batches()


def test_rollouts_of_a_problem_are_packed_together_and_packs_are_even() -> None:
    plain = BatchPlan(lengths=np.array([120, 110, 90, 130, 60, 50]), batch_size=6, per_device=2)
    packs = packed_plan(plain, np.array([7, 7, 7, 8, 8, 9]), np.array([100, 100, 80, 40, 40, 10]))
    # padded there are three rounds of two, 130 120 | 110 90 | 60 50: a pack may have 2 × 130 tokens. Problem 7 takes
    # 120 + 10 + 10 = 140, problem 8 130 + 20 = 150, problem 9 50: 340 in all, two packs of 150 and 190
    assert packs.packer.most_tokens == 260
    assert packs.dealt([0, 1, 2, 3, 4, 5]) == [[[0, 1, 2, 5]], [[3, 4]]]


def test_a_problem_that_is_too_large_for_a_pack_is_split() -> None:
    plain = BatchPlan(lengths=np.full(6, 100), batch_size=6, per_device=1)
    packs = packed_plan(plain, np.zeros(6, int), np.full(6, 40))
    # a second rollout would make 160 of at most 100 tokens
    assert [len(some) for ranks in packs.dealt(list(range(6))) for some in ranks] == [1] * 6
    few = packed_plan(
        BatchPlan(lengths=np.full(6, 100), batch_size=6, per_device=2), np.zeros(6, int), np.full(6, 90)
    )
    # 100 and ten more for each other one: all six in one pack of 150 of at most 200
    assert few.dealt(list(range(6))) == [[[0, 1, 2, 3, 4, 5]]]


def test_a_rank_without_rollouts_runs_along_with_the_shortest_one_ignored() -> None:
    plain = BatchPlan(lengths=np.array([5, 4, 3]), batch_size=3, per_device=1, world=4)
    assert packed_plan(plain, np.arange(3), np.zeros(3, int)).dealt([0, 1, 2]) == [[[0], [1], [2], [~2]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four problems with three rollouts each; the question is long enough to be shared without its image."""
    root = tmp_path_factory.mktemp("packs")
    for kind in BACKBONES:
        save_tiny(kind, root / kind)
    records = []
    for seed in range(3):
        records += bar_records(4, root / f"images-{seed}", seed=seed)
    (root / "images-0").rename(root / "images")
    for number, record in enumerate(records):
        record["question"] = f"how long is bar {number % 4}? " + "hm " * 12
        record["answer"] = "5"
    write_records(root / "images.jsonl", records)
    write_records(root / "text.jsonl", text_records(records))
    return root


@pytest.fixture
def n_tokens(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Tokens that the model read since it was last asked."""
    seen: list[int] = []
    original = PRMModel.forward

    def spy(self: Any, input_ids: Any, **inputs: Any) -> Any:
        seen.append(input_ids.numel())
        return original(self, input_ids=input_ids, **inputs)

    def taken() -> int:
        total = sum(seen)
        seen.clear()
        return total

    monkeypatch.setattr(PRMModel, "forward", spy)
    return taken


def assert_same(one: Any, other: Any) -> None:
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-5)
    for mine, theirs in zip(one["gradients"], other["gradients"], strict=True):
        assert mine.keys() == theirs.keys()
        overall = torch.cat([gradient.flatten() for gradient in mine.values()]).norm()
        for name, gradient in mine.items():
            assert (theirs[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * overall, name


@pytest.mark.parametrize("kind", BACKBONES)
def test_packed_updates_have_the_losses_and_gradients_of_padded_ones_for_fewer_tokens(
    kind: str, folder: Path, tmp_path: Path, n_tokens: Callable[[], int]
) -> None:
    updates(kind, folder, tmp_path / "none", 2, pack="none")
    n_plain = n_tokens()
    plain = torch.load(tmp_path / "none" / "gradients.pt")
    assert len(plain["gradients"]) == 3
    for per_device in (1, 2, 4):
        updates(kind, folder, tmp_path / str(per_device), per_device)
        assert_same(plain, torch.load(tmp_path / str(per_device) / "gradients.pt"))
        assert n_tokens() < n_plain


@pytest.mark.slow
def test_two_processes_that_pack_give_the_gradients_of_one_that_pads(folder: Path, tmp_path: Path) -> None:
    launch("-m", "tests.training.launched", str(folder), str(tmp_path / "two"), "1", *BACKBONES)
    for kind in BACKBONES:
        updates(kind, folder, tmp_path / "one" / kind, 4, pack="none")
        assert_same(*(torch.load(tmp_path / name / kind / "gradients.pt") for name in ("one", "two")))


def test_a_packed_run_that_was_stopped_is_resumed_to_the_same_weights(folder: Path, tmp_path: Path) -> None:
    data = data_for("internvl", folder)
    train(data, config_for("internvl", folder, tmp_path / "whole", epochs=2))
    train(data, config_for("internvl", folder, tmp_path / "run", epochs=2, max_updates=4))
    train(data, config_for("internvl", folder, tmp_path / "run", epochs=2), resume=True)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"lora_rank": 4}], ids=["bf16", "lora"])
def test_packing_goes_with_half_precision_and_with_adapters(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    tree, none = (
        train(
            data_for("qwen2_5_vl", folder),
            config_for("qwen2_5_vl", folder, tmp_path / pack, pack=pack, **options),
        ).loss
        for pack in ("tree", "none")
    )
    assert tree == pytest.approx(none, rel=1e-3)


def test_a_run_may_be_resumed_the_other_way(folder: Path, tmp_path: Path) -> None:
    data = data_for("text", folder)
    train(data, config_for("text", folder, tmp_path / "whole", pack="none"))
    train(data, config_for("text", folder, tmp_path / "run", max_updates=2))
    train(data, config_for("text", folder, tmp_path / "run", pack="none"), resume=True)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight, atol=1e-5, rtol=1e-4, msg=name)


def test_a_training_set_of_an_earlier_version_is_refused(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    data = data_for("text", folder)
    train(data, config_for("text", folder, tmp_path / "run", max_updates=1))
    path = tmp_path / "run" / "data" / "train.arrow"
    table = pa.ipc.open_file(path).read_all().drop_columns(["n_prompt", "problem"])
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="was prepared by an earlier mprm; start anew with --force"):
        train(data, config_for("text", folder, tmp_path / "run"), resume=True)


def test_a_model_that_cannot_pack_says_why_and_is_trained_padded(folder: Path, tmp_path: Path, capfd: Any) -> None:
    trained = train(data_for("text", folder), config_for("text", folder, tmp_path / "run", attention="eager"))
    assert trained.is_finished
    assert "not packed, which is slower: the model attends with eager" in capfd.readouterr().err


def test_an_images_file_is_decoded_once_for_neighbours(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from mprm.models import prompt

    opened: list[str] = []
    original = prompt.open_image
    monkeypatch.setattr(prompt, "open_image", lambda image, root: opened.append(image) or original(image, root))
    train(
        data_for("internvl", folder), config_for("internvl", folder, tmp_path / "run", batch_size=12, per_device=12)
    )
    # one update of all twelve rollouts of four problems
    assert sorted(opened) == ["0.png", "1.png", "2.png", "3.png"]

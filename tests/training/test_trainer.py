"""The loss by hand; packed training has the rollouts, losses and gradients of padded training for fewer tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

from mprm.errors import DataError
from mprm.models.head import PRMModel
from mprm.training import step_loss_sum
from mprm.training.train import train
from tests.tiny_models import BACKBONES, save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records
from tests.training.launched import optimizer_steps
from tests.training.test_train import config_for, data_for, launch, weights


def test_the_loss_by_hand() -> None:
    # z_yes - z_no = ln 3, so p = 3/4; labels 1, 0 and 0.5
    logits = torch.tensor([[math.log(3), 0.0]] * 3)
    expected = -math.log(0.75) - math.log(0.25) - 0.5 * (math.log(0.75) + math.log(0.25))
    assert step_loss_sum(logits, torch.tensor([1.0, 0.0, 0.5])).item() == pytest.approx(expected, rel=1e-6)


def test_hard_labels_give_the_two_way_cross_entropy() -> None:
    logits = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    is_positive = torch.arange(50) % 3 == 0
    # class 0 is Yes
    expected = F.cross_entropy(logits, (~is_positive).long(), reduction="sum")
    torch.testing.assert_close(step_loss_sum(logits, is_positive.float()), expected)


def test_ignored_steps_count_for_nothing_even_where_they_are_not_finite() -> None:
    logits = torch.tensor([[1.0, 0.0], [math.inf, 0.0]], requires_grad=True)
    loss = step_loss_sum(logits, torch.tensor([1.0, -100.0]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)))


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
    """Tokens that the model read since the last call."""
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


def assert_same(left: Any, right: Any) -> None:
    assert left["losses"] == pytest.approx(right["losses"], abs=1e-5)
    for mine, theirs in zip(left["gradients"], right["gradients"], strict=True):
        assert mine.keys() == theirs.keys()
        overall = torch.cat([gradient.flatten() for gradient in mine.values()]).norm()
        for name, gradient in mine.items():
            assert (theirs[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * overall, name


@pytest.mark.parametrize("kind", BACKBONES)
def test_packed_steps_have_the_losses_and_gradients_of_padded_ones_for_fewer_tokens(
    kind: str, folder: Path, tmp_path: Path, n_tokens: Callable[[], int]
) -> None:
    optimizer_steps(kind, folder, tmp_path / "none", 2, pack="none")
    n_plain = n_tokens()
    plain = torch.load(tmp_path / "none" / "gradients.pt")
    assert len(plain["gradients"]) == 3
    for per_device in (1, 2, 4):
        optimizer_steps(kind, folder, tmp_path / str(per_device), per_device)
        assert_same(plain, torch.load(tmp_path / str(per_device) / "gradients.pt"))
        assert n_tokens() < n_plain


@pytest.mark.slow
def test_two_processes_that_pack_give_the_gradients_of_one_that_pads(folder: Path, tmp_path: Path) -> None:
    launch("-m", "tests.training.launched", str(folder), str(tmp_path / "two"), "1", *BACKBONES)
    for kind in BACKBONES:
        optimizer_steps(kind, folder, tmp_path / "one" / kind, 4, pack="none")
        assert_same(*(torch.load(tmp_path / name / kind / "gradients.pt") for name in ("one", "two")))


def test_a_packed_run_that_was_stopped_is_resumed_to_the_same_weights(folder: Path, tmp_path: Path) -> None:
    data = data_for("internvl", folder)
    train(data, config_for("internvl", folder, tmp_path / "whole", epochs=2))
    train(data, config_for("internvl", folder, tmp_path / "run", epochs=2, max_optimizer_steps=4))
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


def test_a_packed_run_may_be_resumed_padded(folder: Path, tmp_path: Path) -> None:
    data = data_for("text", folder)
    train(data, config_for("text", folder, tmp_path / "whole", pack="none"))
    train(data, config_for("text", folder, tmp_path / "run", max_optimizer_steps=2))
    train(data, config_for("text", folder, tmp_path / "run", pack="none"), resume=True)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight, atol=1e-5, rtol=1e-4, msg=name)


def test_a_training_set_of_an_earlier_version_is_refused(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    data = data_for("text", folder)
    train(data, config_for("text", folder, tmp_path / "run", max_optimizer_steps=1))
    path = tmp_path / "run" / "data" / "train.arrow"
    table = pa.ipc.open_file(path).read_all().drop_columns(["n_prompt_tokens", "problem"])
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="was prepared by an earlier mprm; start again with --force"):
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
    # one optimizer step on all twelve rollouts of four problems
    assert sorted(opened) == ["0.png", "1.png", "2.png", "3.png"]

"""An encoder with a memory makes what one without makes, and makes it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mprm.data.types import Chain
from mprm.errors import ConfigError
from mprm.models.checkpoint import PRMConfig
from mprm.models.head import load_step_model
from mprm.models.prm import PRM
from mprm.models.prompt import Encoded, Memory
from mprm.training.train import train
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, write_records
from tests.training.test_train import config_for, weights

KINDS = ("qwen2_5_vl", "internvl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remembering")
    for kind in KINDS:
        save_tiny(kind, root / kind)
    write_records(root / "images.jsonl", bar_records(10, root / "images"))
    return root


def encoder(folder: Path, kind: str, memory: Memory | None, **options: Any) -> Any:
    card = PRMConfig(max_length=options.pop("max_length", 200))
    return load_step_model(folder / kind, card, device="cpu", image_root=folder / "images", memory=memory).encoder


def same(one: Encoded, two: Encoded) -> bool:
    assert one.vision.keys() == two.vision.keys()
    assert all(np.array_equal(one.vision[name], two.vision[name]) for name in one.vision)
    return (one.ids, one.positions, one.n_steps, one.images) == (two.ids, two.positions, two.n_steps, two.images)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_remembered_is_what_would_be_made(folder: Path, kind: str) -> None:
    memory = Memory()
    plain, first, second = (encoder(folder, kind, kept) for kept in (None, memory, memory))
    for chain in (Chain("how long?", ("3", "so 3"), ("0.png",)), Chain("q", ("hm " * 300, "b"), ("1.png",))):
        made = plain.encode(chain)
        assert same(first.encode(chain), made)
        assert same(second.encode(chain), made)
        assert first.n_prompt(chain) == second.n_prompt(chain) == plain.n_prompt(chain)
        assert second.measure(chain) is first.measure(chain)
    assert set(memory.vision) == {("0.png",)}  # the other chain is cut off before its first step's end


def test_images_in_memory_are_seen_anew_each_time(folder: Path) -> None:
    from PIL import Image

    memory = Memory()
    remembering = encoder(folder, "qwen2_5_vl", memory)
    black, white = (Image.new("RGB", (40, 40), colour) for colour in ("black", "white"))
    one, two = (remembering.encode(Chain("q", ("a",), (image,))) for image in (black, white))
    assert not np.array_equal(one.vision["pixel_values"], two.vision["pixel_values"])
    assert not memory.vision
    assert not memory.measured


def test_a_broken_image_stays_broken(folder: Path) -> None:
    (folder / "images" / "broken.png").write_bytes(b"no image")
    memory = Memory()
    first = encoder(folder, "internvl", memory).why_unusable("broken.png")
    assert first is not None
    assert "cannot be read" in first
    (folder / "images" / "broken.png").unlink()
    assert encoder(folder, "internvl", memory).why_unusable("broken.png") == first
    assert encoder(folder, "internvl", memory).why_unusable("0.png") is None


def test_a_memory_is_not_shared_by_encoders_that_differ(folder: Path) -> None:
    memory = Memory()
    encoder(folder, "qwen2_5_vl", memory)
    with pytest.raises(ConfigError, match="one tokenizer, image processor and image root"):
        encoder(folder, "internvl", memory)
    with pytest.raises(ConfigError, match="one tokenizer"):
        encoder(folder, "qwen2_5_vl", memory, max_length=100)


@pytest.mark.parametrize("kind", KINDS)
def test_trainings_with_a_memory_end_with_the_same_weights_and_scores(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    memory = Memory()
    for name, kept in (("plain", None), ("first", memory), ("second", memory)):
        train(str(folder / "images.jsonl"), config_for(kind, folder, tmp_path / name), memory=kept)
    assert memory.vision
    made = [weights(tmp_path / name) for name in ("plain", "first", "second")]
    for other in made[1:]:
        assert all(weight.equal(other[name]) for name, weight in made[0].items())
    chain = Chain("how long is bar 3?", ("the bar is 2 long", "the bar is 3 long"), ("3.png",))
    scores = [
        PRM.from_pretrained(
            tmp_path / "plain", device="cpu", image_root=str(folder / "images"), memory=kept
        ).score_many([chain])
        for kept in (None, memory)
    ]
    assert scores[0] == scores[1]

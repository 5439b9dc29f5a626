"""The read-out: two rows of the head at <prm>, whoever shares the batch; a vision tower that stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from mprm.data.types import Chain
from mprm.models.checkpoint import PRMConfig, load_backbone
from mprm.models.head import freeze_vision, step_probabilities
from mprm.models.prm import PRM
from tests.tiny_models import ALL_BACKBONES, save_tiny


@pytest.fixture(scope="module", params=ALL_BACKBONES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PRM, Any]:
    """A process reward model, and the same checkpoint as plain transformers has it."""
    path = save_tiny(request.param, tmp_path_factory.mktemp(request.param))
    return PRM.from_pretrained(path, PRMConfig(), device="cpu"), load_backbone(path, device="cpu").model


def chains(prm: PRM) -> list[Chain]:
    rng = np.random.default_rng(0)

    def image(width: int, height: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))

    made = [
        Chain("short", ("a",)),
        Chain("what is 12 + 30?", ("it is 40", "no, it is 42", "so 42"), (image(80, 60),)),
        Chain("compare <image> and <image>", ("one", "two " * 20), (image(60, 60), image(200, 40))),
        Chain("again " * 30, ("x", "y", "z"), (image(30, 90),)),
    ]
    return [Chain(c.question, c.steps) for c in made] if prm.encoder.family.name == "text" else made


def batch_of(prm: PRM, some: list[Chain]) -> dict[str, Any]:
    return prm.encoder.collate([prm.encoder.encode(chain) for chain in some])


@torch.no_grad()
def logits_of(prm: PRM, some: list[Chain]) -> torch.Tensor:
    return prm.model.eval()(**batch_of(prm, some))["logits"]


@torch.no_grad()
def test_two_rows_equal_the_full_logits(pair: tuple[PRM, Any]) -> None:
    prm, plain = pair
    inputs = batch_of(prm, chains(prm))
    index = inputs["prm_index"]
    plain.resize_token_embeddings(prm.model.get_input_embeddings().weight.shape[0], mean_resizing=False)
    plain.load_state_dict(prm.model.state_dict())
    rest = {name: tensor for name, tensor in inputs.items() if name != "prm_index"}
    full = plain.eval()(**rest).logits.flatten(0, 1)[index]
    tokens = prm.encoder.tokens
    logits = logits_of(prm, chains(prm))
    torch.testing.assert_close(logits, full[:, [tokens.yes, tokens.no]], atol=1e-5, rtol=1e-5)
    two_way = torch.softmax(full[:, [tokens.yes, tokens.no]], dim=-1)[:, 0]
    torch.testing.assert_close(step_probabilities(logits), two_way, atol=1e-6, rtol=1e-5)


def test_padding_and_batch_order_change_no_score(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    some = chains(prm)
    alone = [logits_of(prm, [chain]) for chain in some]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3], [2, 0]):
        together = logits_of(prm, [some[index] for index in order])
        torch.testing.assert_close(together, torch.cat([alone[index] for index in order]), atol=1e-5, rtol=1e-5)


def test_the_padding_token_may_be_a_real_one(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    some, tokenizer = chains(prm), prm.encoder.tokenizer
    before, pad = logits_of(prm, some), tokenizer.pad_token_id
    tokenizer.pad_token_id = 0  # "!" in this vocabulary
    try:
        torch.testing.assert_close(logits_of(prm, some), before, atol=1e-5, rtol=1e-5)
    finally:
        tokenizer.pad_token_id = pad


def test_later_steps_change_no_earlier_score(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    chain = chains(prm)[1]
    shorter = Chain(chain.question, chain.steps[:2], chain.images)
    whole, part = logits_of(prm, [chain]), logits_of(prm, [shorter])
    torch.testing.assert_close(whole[:2], part, atol=1e-5, rtol=1e-5)


def test_the_image_is_seen(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    if prm.encoder.family.name == "text":
        return
    black, white = (Image.new("RGB", (80, 60), color) for color in ("black", "white"))
    logits = [logits_of(prm, [Chain("q", ("s",), (image,))]) for image in (black, white)]
    assert not torch.allclose(*logits, atol=1e-6)


def test_the_vision_tower_is_frozen_and_never_in_train_mode(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    model, family = prm.model, prm.encoder.family
    freeze_vision(model)
    model.train()
    if family.name == "text":
        assert all(parameter.requires_grad for parameter in model.parameters())
        return
    [merger] = family.projectors(model)
    projector = set(merger.parameters())
    tower = set(family.vision_tower(model).parameters()) - projector
    for parameter in model.parameters():
        assert parameter.requires_grad == (parameter not in tower)
    inside = [module for module in family.vision_tower(model).modules() if module not in set(merger.modules())]
    assert tower
    assert not any(module.training for module in inside)
    assert merger.training
    assert model.get_input_embeddings().training


def test_a_batch_without_images_still_sends_gradients_to_the_projector(pair: tuple[PRM, Any]) -> None:
    prm = pair[0]
    model, family = prm.model, prm.encoder.family
    if family.name == "text":
        return
    freeze_vision(model)
    model.train()
    model.zero_grad()
    inputs = batch_of(prm, [Chain("q", ("s", "t"))])
    with torch.no_grad():
        model.eval()
        quiet = model(**inputs)["logits"]
    model.train()
    logits = model(**inputs)["logits"]
    torch.testing.assert_close(logits, quiet)
    logits.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in family.projectors(model)[0].parameters())


@pytest.mark.parametrize(
    ("setting", "value"), [("logits_scaling", 4.0), ("logit_scale", 0.25), ("final_logit_softcapping", 0.05)]
)
def test_what_a_model_does_to_its_logits_is_done(setting: str, value: float, tmp_path: Any) -> None:
    prm = PRM.from_pretrained(save_tiny("text", tmp_path), PRMConfig(), device="cpu")
    before = logits_of(prm, [Chain("q", ("s", "t"))])
    setattr(prm.model.config, setting, value)
    after = logits_of(prm, [Chain("q", ("s", "t"))])
    expected = {
        "logits_scaling": before / 4,
        "logit_scale": before / 4,
        "final_logit_softcapping": 0.05 * torch.tanh(before / 0.05),
    }
    torch.testing.assert_close(after, expected[setting])

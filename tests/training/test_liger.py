"""liger-kernel's layers: where they are used, and that they change rounding alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from mprm.data import Chain
from mprm.models import PRM, PRMConfig
from mprm.training import step_loss_sum
from mprm.training.trainer import liger_kernels, why_no_liger
from tests.tiny_models import save_tiny


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> PRM:
    return PRM.from_pretrained(save_tiny("text", tmp_path_factory.mktemp("model")), PRMConfig(), device="cpu")


def test_training_on_a_cpu_does_without(text_model: PRM) -> None:
    assert "GPU" in (why_no_liger(text_model.model, "cpu") or "")


def test_a_gpu_without_the_package_says_how_to_get_it(text_model: PRM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)  # as if it were not installed
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "[liger]" in (why_no_liger(text_model.model, "cuda") or "")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("share_prefixes", [False, True])
def test_losses_are_equal_but_for_rounding_and_other_models_keep_their_layers(
    kind: str, share_prefixes: bool, tmp_path: Path
) -> None:
    pytest.importorskip("liger_kernel")
    import torch
    from accelerate.utils import send_to_device

    from mprm.models import collate_tree

    prm = PRM.from_pretrained(save_tiny(kind, tmp_path), PRMConfig(), device="cuda", dtype="bfloat16")
    assert why_no_liger(prm.model, "cuda") is None
    module = sys.modules[type(prm.model.model.language_model).__module__]
    before = dict(vars(module))
    chains = [prm.encoder.encode(Chain("How many?", (f"{n} and", "so 4."), ())) for n in range(4)]
    collated = collate_tree(prm.encoder, chains) if share_prefixes else prm.encoder.collate(chains)
    inputs = send_to_device(collated, "cuda")
    labels = torch.arange(len(inputs["prm_index"]), device="cuda").float() % 2

    def loss_and_gradient() -> tuple[float, torch.Tensor]:
        prm.model.zero_grad()
        loss = step_loss_sum(prm.model(**inputs)["logits"], labels)
        loss.backward()
        return loss.item(), prm.model.get_input_embeddings().weight.grad.float().clone()

    plain, plain_gradient = loss_and_gradient()
    with liger_kernels(prm.model):
        assert vars(module) != before
        loss, gradient = loss_and_gradient()
    assert dict(vars(module)) == before
    assert loss == pytest.approx(plain, rel=0.01)
    assert (gradient - plain_gradient).norm() < 0.05 * plain_gradient.norm()

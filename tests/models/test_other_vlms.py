"""Vision-language models beyond the paper's: scores, batches, training, adapters, sampling."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from PIL import Image
from safetensors.torch import load_file

from mprm.annotation import SamplingParams
from mprm.annotation.samplers.local import TransformersSampler
from mprm.annotation.samplers.sampler import Request
from mprm.data import Chain
from mprm.errors import ConfigError
from mprm.models import PRM, PRMConfig, family_of, load_backbone
from mprm.training import TrainConfig, train
from tests.tiny_models import INTERNVL3, save_tiny
from tests.tiny_rollouts import bar_records, write_records
from tests.tiny_vlms import VLMS, save_tiny_vlm

NEEDS_NUM2WORDS = pytest.mark.skipif(find_spec("num2words") is None, reason="SmolVLM's processor needs num2words")
KINDS = [pytest.param(kind, marks=NEEDS_NUM2WORDS) if kind == "smolvlm" else kind for kind in VLMS]
each_vlm = pytest.mark.parametrize("kind", KINDS)
each_vlm_and_internvl3 = pytest.mark.parametrize("kind", [*KINDS, *INTERNVL3])
QUESTION, STEPS = "how long is bar 1?", ("the bar is 3 long", "the answer is 7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each type, eight rollouts with images, and images of two shapes."""
    root = tmp_path_factory.mktemp("vlms")
    for kind in VLMS:
        save_tiny_vlm(kind, root / kind)
    for kind in INTERNVL3:
        save_tiny(kind, root / kind)
    write_records(root / "rollouts.jsonl", bar_records(8, root / "images"))
    for name, size in (("wide.png", (100, 70)), ("high.png", (60, 120))):
        Image.effect_noise(size, 50).convert("RGB").save(root / "images" / name)
    return root


def loaded(kind: str, folder: Path) -> PRM:
    return PRM.from_pretrained(folder / kind, PRMConfig(), device="cpu", image_root=folder / "images")


def config_for(kind: str, folder: Path, out: Path, **options: Any) -> TrainConfig:
    return TrainConfig(
        model=str(folder / kind),
        out=str(out),
        image_root=str(folder / "images"),
        batch_size=8,
        device="cpu",
        dataloader_workers=0,
        save_every=0,
        report_to=("none",),
        **options,
    )


@each_vlm
def test_scores_are_those_of_the_whole_model_on_what_its_own_processor_makes(kind: str, folder: Path) -> None:
    from transformers import AutoModelForImageTextToText

    prm = loaded(kind, folder)
    processor, tokens = prm.encoder.image_processor, prm.encoder.tokens
    processor.tokenizer = prm.encoder.tokenizer  # it knows <prm>
    steps = "\n\n".join(f"{step}<prm>" for step in STEPS)
    content = [{"type": "image"}, {"type": "text", "text": f"Question: {QUESTION}\nProcess: {steps}"}]
    text = processor.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    image = Image.open(folder / "images" / "wide.png")
    inputs = processor(text=[text], images=[image], add_special_tokens=False, return_tensors="pt")
    chain = Chain(QUESTION, STEPS, ("wide.png",))
    assert prm.encoder.encode(chain).input_ids == inputs["input_ids"][0].tolist()
    whole = AutoModelForImageTextToText.from_pretrained(folder / kind).eval()
    if len(prm.encoder.tokenizer) > len(whole.get_input_embeddings().weight):
        whole.resize_token_embeddings(len(prm.encoder.tokenizer))
    whole.load_state_dict(prm.model.state_dict())
    with torch.no_grad():
        logits = whole(**inputs).logits[0][inputs["input_ids"][0] == tokens.prm]
    expected = torch.sigmoid(logits[:, tokens.yes] - logits[:, tokens.no]).tolist()
    assert prm.score(QUESTION, images=["wide.png"], steps=STEPS) == pytest.approx(expected, abs=1e-5)


@each_vlm
def test_a_batch_of_unlike_chains_has_the_scores_of_each_alone(kind: str, folder: Path) -> None:
    prm = loaded(kind, folder)
    chains = [
        Chain(QUESTION, STEPS, ("wide.png",)),
        Chain("what is 12 + 30?", ("the sum of 12 and 30 is 42",), ("high.png", "wide.png")),
        Chain("no picture", STEPS),
    ]
    together = prm.score_many(chains)
    alone = [prm.score_many([chain])[0] for chain in chains]
    assert [score for scores in together for score in scores] == pytest.approx(
        [score for scores in alone for score in scores], abs=1e-5
    )


@each_vlm
def test_special_tokens_in_data_are_text(kind: str, folder: Path) -> None:
    encoder = loaded(kind, folder).encoder
    marks = [*encoder.family.image_tokens, "<prm>", *encoder.tokenizer.all_special_tokens]
    plain = encoder.tokenize(Chain(QUESTION, ("x", "y"), ("wide.png",)))
    for mark in marks:
        marked = encoder.tokenize(Chain(QUESTION, (f"a {mark} b", "y"), ("wide.png",)))
        assert len(marked.prm_positions) == 2
        special = set(encoder.tokenizer.all_special_ids) | {encoder.tokens.prm}
        assert [id_ for id_ in marked.input_ids if id_ in special] == [
            id_ for id_ in plain.input_ids if id_ in special
        ]


@each_vlm_and_internvl3
def test_training_fits_eight_rollouts_leaves_the_tower_alone_and_is_saved_whole(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    options = {"per_device": 8, "epochs": 40, "learning_rate": 2e-2, "weight_decay": 0.0}
    config = config_for(kind, folder, tmp_path / "run", gradient_checkpointing=False, **options)
    trained = train(str(folder / "rollouts.jsonl"), config)
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert trained.last_loss is not None
    assert losses[-1] < 0.5 * losses[0]
    before, after = (load_file(path / "model.safetensors") for path in (folder / kind, tmp_path / "run"))
    is_projector = {name for name in after if any(word in name for word in ("merger", "projector", "connector"))}
    is_tower = {name for name in after if "vision" in name or "visual" in name} - is_projector
    changed = {name for name in is_tower | is_projector if not torch.equal(before[name], after[name])}
    assert not changed & is_tower
    assert {name for name in is_projector if name.endswith("weight")} <= changed
    own = () if kind in INTERNVL3 else ("preprocessor_config.json",)  # InternVL's has the tiles of the training
    for name in (*own, "processor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "run" / name).read_bytes() == (folder / kind / name).read_bytes()
    scores = PRM.from_pretrained(tmp_path / "run", device="cpu", image_root=folder / "images").score(
        QUESTION, images=["0.png"], steps=STEPS
    )
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3", "idefics3", *INTERNVL3])
def test_adapters_are_on_the_language_model_alone(kind: str, folder: Path, tmp_path: Path) -> None:
    config = config_for(kind, folder, tmp_path / "run", lora_rank=2, learning_rate=1e-2)
    train(str(folder / "rollouts.jsonl"), config)
    names = [name for name in load_file(tmp_path / "run" / "adapter_model.safetensors") if "lora" in name]
    assert names
    assert not any("vision" in name or "visual" in name for name in names)
    prm = PRM.from_pretrained(tmp_path / "run", device="cpu", image_root=folder / "images")
    assert prm.score(QUESTION, images=["0.png"], steps=STEPS) != loaded(kind, folder).score(
        QUESTION, images=["0.png"], steps=STEPS
    )


@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3", "llava_next", *INTERNVL3])
def test_a_policy_answers_requests_with_images(kind: str, folder: Path) -> None:
    policy = load_backbone(folder / kind, device="cpu")
    sampler = TransformersSampler(policy, name=kind)
    sampling = SamplingParams(max_new_tokens=4)
    request = Request(prompt="How long?", images=(folder / "images" / "wide.png",), n=2, seed=1, sampling=sampling)
    [[(_, first)], [(_, again)]] = list(sampler.sample([request, request]))
    assert [completion.text for completion in first] == [completion.text for completion in again]
    assert all(completion.finish_reason in ("stop", "length") for completion in first)


def test_the_fast_families_and_text_models_stay_what_they_are(folder: Path, tmp_path: Path) -> None:
    assert {family_of(folder / kind).name for kind in INTERNVL3} == {"internvl"}
    kinds: dict[str, Any] = {kind: family_of(save_tiny(kind, tmp_path / kind)) for kind in ("internvl", "text")}
    assert {kind: family.name for kind, family in kinds.items()} == {"internvl": "internvl", "text": "text"}
    assert family_of(folder / "gemma3").name == "auto"


def test_a_template_without_images_is_named(folder: Path, tmp_path: Path) -> None:
    path = save_tiny_vlm("qwen3_vl", tmp_path / "model")
    (path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'][-1]['text'] }}{% endfor %}")
    with pytest.raises(ConfigError, match=rf"^{path}: the chat template renders no image"):
        PRM.from_pretrained(path, PRMConfig(), device="cpu")


@pytest.mark.parametrize("kind", ["paligemma", "aya_vision", "blip-2", "mllama", "git"])
def test_types_whose_scores_would_be_wrong_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ConfigError, match=f"models of type {kind} see images in a way that mprm does not know"):
        family_of(tmp_path)


def test_settings_that_a_type_has_not_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="max_pixels: no setting of this type of model; it takes none"):
        load_backbone(folder / "gemma3", device="cpu", image_settings={"max_pixels": 784})


def test_a_template_in_a_file_of_the_processor_is_read(folder: Path, tmp_path: Path) -> None:
    path = save_tiny_vlm("qwen3_vl", tmp_path / "model")
    template = (path / "chat_template.jinja").read_text()
    (path / "chat_template.jinja").unlink()
    (path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    prm = PRM.from_pretrained(path, PRMConfig(), device="cpu", image_root=folder / "images")
    scores = prm.score(QUESTION, images=["wide.png"], steps=STEPS)
    assert scores == loaded("qwen3_vl", folder).score(QUESTION, images=["wide.png"], steps=STEPS)


@pytest.mark.parametrize(
    ("kind", "file", "settings"),
    [
        ("gemma3", "processor_config.json", {"image_seq_length": 5}),
        ("idefics3", "processor_config.json", {}),
        ("llava_next", "processor_config.json", {"patch_size": 7}),
        ("qwen3_vl", "config.json", {"image_token_id": 5}),
        ("qwen3_vl", "config.json", {"image_token_id": 10**6}),
    ],
)
def test_a_processor_that_does_not_fit_its_model_is_named_when_it_is_loaded(
    kind: str, file: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = save_tiny_vlm(kind, tmp_path / "model")
    before = json.loads((path / file).read_text()) if file == "config.json" else {}
    (path / file).write_text(json.dumps(before | settings))
    with pytest.raises(ConfigError, match=str(path)):
        load_backbone(path, device="cpu")


@pytest.mark.parametrize("kind", ["llava_next", *INTERNVL3])
def test_a_run_is_saved_whole_though_its_base_is_gone(kind: str, folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder / kind, tmp_path / "base"))
    prm = PRM.from_pretrained(path, PRMConfig(), device="cpu", image_root=folder / "images")
    shutil.rmtree(path)
    prm.save_pretrained(tmp_path / "run")
    again = PRM.from_pretrained(tmp_path / "run", device="cpu", image_root=folder / "images")
    scores = [model.score(QUESTION, images=["wide.png"], steps=STEPS) for model in (prm, again)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("language", ["qwen3_moe", "gpt_oss", 3])
def test_an_internvl_with_a_mixture_of_experts_is_refused(language: Any, folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder / "internvl3_5", tmp_path / "model"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"text_config": {"model_type": language}}))
    with pytest.raises(ConfigError, match=f"of type {language!r}; expected llama, qwen2, qwen3, no mixture of exp"):
        family_of(path)


@each_vlm_and_internvl3
def test_images_are_seen(kind: str, folder: Path) -> None:
    prm = loaded(kind, folder)
    black, white = (Image.new("RGB", (80, 60), color) for color in ("black", "white"))
    assert prm.score(QUESTION, images=[black], steps=STEPS) != prm.score(QUESTION, images=[white], steps=STEPS)

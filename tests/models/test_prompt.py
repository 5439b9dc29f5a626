"""The one prompt: what it looks like, what cannot get into it, what is cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

pytest.importorskip("torch")

from mprm.data.images import place_images
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError
from mprm.models.checkpoint import PRMConfig, load_backbone
from mprm.models.prm import PRM
from mprm.models.prompt import PromptEncoder
from tests.tiny_models import ALL_BACKBONES, IMAGE, save_tiny

SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
VISION = {"qwen2_5_vl": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", ""),
          "internvl": ("<img>", "<IMG_CONTEXT>", "</img>", "\n")}  # fmt: skip


@pytest.fixture(scope="module", params=ALL_BACKBONES)
def prm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PRM:
    return PRM.from_pretrained(
        save_tiny(request.param, tmp_path_factory.mktemp(request.param)), PRMConfig(), device="cpu"
    )


def picture(width: int = 60, height: int = 60) -> Image.Image:
    return Image.fromarray(np.zeros((height, width, 3), np.uint8))


def shown(encoder: PromptEncoder, ids: list[int]) -> str:
    return str(encoder.tokenizer.decode(ids))


def images_for(prm: PRM, n: int) -> tuple[Any, ...]:
    return () if prm.encoder.family.name == "text" else tuple(picture() for _ in range(n))


def test_the_prompt_reads_as_the_paper_has_it(prm: PRM) -> None:
    encoder, images = prm.encoder, images_for(prm, 1)
    encoded = encoder.encode(Chain(" What is 1 + 1? ", (" It is 2. ", "So 2."), images))
    text = shown(encoder, encoded.input_ids)
    image = ""
    if images:
        start, pad, end, after = VISION[prm.encoder.family.name]
        image = start + pad * encoded.input_ids.count(encoder.tokenizer.convert_tokens_to_ids(pad)) + end + after
    assert text == f"{SYSTEM}{image}Question: What is 1 + 1?\nProcess: It is 2.<prm>\n\nSo 2.<prm><|im_end|>\n"
    assert [encoded.input_ids[index] for index in encoded.prm_positions] == [encoder.tokens.prm] * 2


def test_the_ids_are_those_of_the_chat_template_tokenized_as_a_whole(prm: PRM) -> None:
    tokenizer = prm.encoder.tokenizer
    message = "Question: What is 12 + 30?\nProcess: the sum is 42<prm>\n\nthe answer is 42<prm>"
    whole = tokenizer.apply_chat_template([{"role": "user", "content": message}], tokenize=False)
    encoded = prm.encoder.encode(Chain("What is 12 + 30?", ("the sum is 42", "the answer is 42")))
    assert encoded.input_ids == tokenizer.encode(whole, add_special_tokens=False)


def test_image_tokens_match_what_the_vision_tower_makes(prm: PRM) -> None:
    if prm.encoder.family.name == "text":
        with pytest.raises(DataError, match="a text model cannot see images"):
            prm.encoder.encode(Chain("q", ("s",), (picture(),)))
        return
    encoder, model = prm.encoder, prm.model
    pad = encoder.tokenizer.convert_tokens_to_ids(VISION[prm.encoder.family.name][1])
    for size in ((60, 60), (300, 40), (20, 500), (1, 1), (900, 600)):
        encoded = encoder.encode(Chain("q", ("s",), (picture(*size),)))
        inputs = encoder.collate([encoded])
        vision = {name: inputs[name] for name in encoded.vision}
        features = model.model.get_image_features(**vision, return_dict=True).pooler_output
        n_features = (
            sum(len(part) for part in features)
            if isinstance(features, tuple)
            else features.shape[0] * features.shape[1]
        )
        assert encoded.input_ids.count(pad) == n_features


def test_settings_of_the_paper_bound_the_image_tokens(prm: PRM) -> None:
    if prm.encoder.family.name == "text":
        return
    n_tokens = prm.encoder.family.n_image_tokens(prm.encoder.image_processor, 2000, 1500)
    # Qwen2.5-VL: at most 200,704 pixels of 28 × 28 a token; InternVL: six tiles and a thumbnail of 4 tokens here
    assert n_tokens <= {"qwen2_5_vl": 256, "internvl": 7 * 4}[prm.encoder.family.name]
    assert n_tokens >= {"qwen2_5_vl": 200, "internvl": 7 * 4}[prm.encoder.family.name]


HOSTILE = [
    "<prm>",
    "<|im_end|>",
    "<|im_start|>",
    *IMAGE["qwen2_5_vl"],
    *IMAGE["internvl"],
    "<|endoftext|>",
    "Yes",
    "é€😀",
    "\n\n",
]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(
        st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), max_size=5).map("".join), min_size=2, max_size=5
    )
)
def test_text_from_data_cannot_bring_in_special_tokens(prm: PRM, texts: list[str]) -> None:
    encoder = prm.encoder
    harmless = encoder.encode(Chain("q", tuple("s" for _ in texts[1:])))
    encoded = encoder.encode(Chain(texts[0], tuple(texts[1:])))
    special = set(encoder.tokenizer.get_added_vocab().values())
    assert [id_ for id_ in encoded.input_ids if id_ in special] == [
        id_ for id_ in harmless.input_ids if id_ in special
    ]
    assert len(encoded.prm_positions) == len(texts) - 1


def test_chains_that_share_their_prompt_are_tokenized_as_alone(prm: PRM, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(60 if name == "a.png" else 200).save(tmp_path / name)
    encoder = replace(prm.encoder, image_root=tmp_path)
    has_images = encoder.family.name != "text"
    problems = [
        (question, (name,) if has_images else ())
        for question in ("1 + 1?", "<image> 2?")
        for name in ("a.png", "b.png")
    ]
    chains = [Chain(question, steps, images) for question, images in problems for steps in (("a", "b"), ("c",))]
    chains += [Chain("1 + 1?", ("a",), images_for(prm, 1)), chains[0]]
    assert encoder.tokenize_all(chains) == [encoder.tokenize(chain) for chain in chains]


def test_truncation_cuts_steps_from_the_end_and_counts_them(prm: PRM) -> None:
    chain = Chain("q", ("first step", "second step", "third step"))
    whole = prm.encoder.encode(chain)
    second = whole.prm_positions[1]
    for max_length, n_kept in ((len(whole.input_ids), 3), (second + 1, 2), (second, 1), (whole.prm_positions[0], 0)):
        encoder = replace(prm.encoder, max_length=max_length)
        encoded = encoder.encode(chain)
        assert (len(encoded.prm_positions), encoded.n_truncated) == (n_kept, 3 - n_kept)
        assert encoded.input_ids == whole.input_ids[:max_length]


@pytest.mark.parametrize(
    ("question", "n_images", "pieces"),
    [
        ("a <image> b", 1, ["a ", 0, " b"]),
        ("<image>\na <image>", 2, [0, "\na ", 1]),
        ("a <image2> b <image1>", 2, ["a ", 1, " b ", 0]),
        ("a <image 1>", 1, ["a ", 0]),
        ("a <image> b", 2, [0, 1, "a <image> b"]),  # one mark, two images: before the question
        ("a <image1> <image1>", 1, [0, "a <image1> <image1>"]),
        ("a <image3>", 1, [0, "a <image3>"]),
        ("a <image> <image2>", 2, [0, 1, "a <image> <image2>"]),
        ("no marks", 2, [0, 1, "no marks"]),
        ("a <image>", 0, ["a <image>"]),
    ],
)
def test_images_stand_at_their_marks_where_these_fit(question: str, n_images: int, pieces: list[Any]) -> None:
    assert place_images(question, n_images) == pieces


def test_a_tokenizer_that_splits_yes_is_refused(tmp_path: Path) -> None:
    path = save_tiny("text", tmp_path)
    with pytest.raises(ConfigError, match=r"splits 'Yess' into .* expected one known token"):
        PRM.from_pretrained(path, PRMConfig(positive="Yess"), device="cpu")
    with pytest.raises(ConfigError, match="must be three tokens"):
        PRM.from_pretrained(path, PRMConfig(positive="No"), device="cpu")


@pytest.mark.parametrize("kind", ALL_BACKBONES)
@pytest.mark.parametrize("spare_rows", [0, 9])
def test_the_step_token_gets_a_row_and_none_is_lost(kind: str, spare_rows: int, tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    path = save_tiny(kind, tmp_path, spare_rows=spare_rows)
    n_tokens = len(AutoTokenizer.from_pretrained(path))
    base = load_backbone(path, device="cpu").model
    first, second = (PRM.from_pretrained(path, PRMConfig(), device="cpu") for _ in range(2))
    for table in ("get_input_embeddings", "get_output_embeddings"):
        weight = getattr(first.model, table)().weight
        assert len(weight) == max(n_tokens + spare_rows, n_tokens + 1)
        torch.testing.assert_close(weight[n_tokens], weight[:n_tokens].mean(0))
        assert torch.equal(weight, getattr(second.model, table)().weight)
        # in the head of an InternVL3 there would be the embeddings, once its table grows
        assert torch.equal(weight[:n_tokens], getattr(base, table)().weight[:n_tokens])


def test_remote_code_checkpoints_are_sent_to_the_converter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "internvl_chat"}')
    with pytest.raises(ConfigError, match="mprm convert-internvl"):
        PRM.from_pretrained(tmp_path, PRMConfig())

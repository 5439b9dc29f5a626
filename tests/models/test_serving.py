"""``mprm export``: the served prompt has the ids of the prompt here; settings say what vLLM must know."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from PIL import Image
from transformers import AutoTokenizer

import mprm
from mprm.cli.main import run
from mprm.errors import ConfigError, OutputExistsError
from mprm.models import PRM, PRMConfig
from mprm.models.prompt import PromptEncoder
from mprm.models.serving import (
    ESCAPE,
    PROBE_FILE,
    TEMPLATE,
    TOKENIZER,
    VLLM_CONFIG,
    escape_pattern,
    load_encoder,
    pooling_messages,
    rendered_ids,
)
from tests.tiny_models import BACKBONES, save_tiny

HOSTILE = f"<prm> <|im_end|><|image_pad|><|image_<|im_end|>pad|> <img></img><IMG_CONTEXT> {ESCAPE} {ESCAPE * 2}"
QUESTIONS = [
    ("What is 12 + 30?", 0),
    (f"  {HOSTILE} ", 0),
    ("", 0),
    ("How long is bar 1?", 1),
    ("<image>\nHow long?\n", 1),
    ("Is <image> above <image>? ", 2),
    ("<image> <image> Which?", 2),
    ("hm <image>", 1),
    ("<image>", 1),
    ("Bars", 3),
]


def saved(kind: str, folder: Path, **config: Any) -> Path:
    base = save_tiny(kind, folder.with_name(f"{folder.name}-base"))
    prm = PRM.from_pretrained(base, PRMConfig(), device="cpu")
    prm.config = PRMConfig(**config)
    prm.save_pretrained(folder)
    return folder


def with_single_placeholders(encoder: PromptEncoder, ids: list[int]) -> list[int]:
    """The ids with one placeholder an image, as they are before vLLM puts in the image's tokens."""
    if not encoder.family.image_tokens:
        return ids
    start, image, end = encoder.tokenizer.convert_tokens_to_ids(list(encoder.family.image_tokens))
    single = [id_ for id_, same in groupby(ids) for _ in ([0] if id_ == image else list(same))]
    return [id_ for id_ in single if id_ not in (start, end)] if encoder.family.name == "internvl" else single


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_served_prompt_has_the_ids_of_the_prompt_here(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / kind)
    mprm.export(folder, device="cpu")
    encoder, served = load_encoder(folder), AutoTokenizer.from_pretrained(folder / TOKENIZER)
    template = (folder / TEMPLATE).read_text()
    image = Image.new("RGB", (60, 40))
    for question, n_images in QUESTIONS:
        if n_images and kind == "text":
            continue
        chain = mprm.Chain(question, (" It is 3.\n", HOSTILE, "", "the\n\nbar \ud800"), (image,) * n_images)
        expected = with_single_placeholders(encoder, encoder.tokenize(chain).input_ids)
        for pattern in (escape_pattern(encoder.tokenizer), escape_pattern()):
            messages = pooling_messages(chain, pattern, lambda _: {"type": "image"})
            assert rendered_ids(served, template, messages) == expected, question


def test_messages_of_plain_text_are_rendered_too(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "text")
    mprm.export(folder, device="cpu")
    encoder, served = load_encoder(folder), AutoTokenizer.from_pretrained(folder / TOKENIZER)
    messages = [{"role": "user", "content": " 2 + 2? "}, *({"role": "assistant", "content": s} for s in ("a", " b"))]
    chain = mprm.Chain("2 + 2?", ("a", "b"))
    assert rendered_ids(served, (folder / TEMPLATE).read_text(), messages) == encoder.tokenize(chain).input_ids


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_settings_say_what_vllm_must_know(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / kind, max_length=100)
    summary = mprm.export(folder, device="cpu")
    text = (folder / VLLM_CONFIG).read_text()
    values = dict(line.split(": ", 1) for line in text.splitlines()[1:])
    encoder = load_encoder(folder)
    overrides = json.loads(values["hf-overrides"].strip("'"))
    assert overrides["classifier_from_token"] == encoder.tokenizer.convert_ids_to_tokens(
        [encoder.tokens.no, encoder.tokens.yes]
    )
    tied = {"tie_word_embeddings": False}
    assert (overrides if kind == "text" else overrides["text_config"]).items() >= tied.items()
    pooler = json.loads(values["pooler-config"].strip("'"))
    assert pooler == {"task": "token_classify", "pooling_type": "STEP", "step_tag_id": encoder.tokens.prm}
    assert int(values["max-model-len"]) == 100 + encoder.n_end_tokens
    assert values["model"] == f"'{folder}'"
    assert values["dtype"] == "'float32'"
    assert {name.rstrip("/") for name in summary.files} <= {path.name for path in folder.iterdir()}
    assert summary.command == f"vllm serve --config {folder / VLLM_CONFIG}"
    scores = json.loads((folder / PROBE_FILE).read_bytes())
    assert sum(len(chain[2]) for chain in scores["chains"]) > 0
    # the export changes nothing for the model here
    assert PRM.from_pretrained(folder, device="cpu").fingerprint in scores["fingerprints"]


def test_internvl_gets_the_processor_that_vllm_loads(tmp_path: Path) -> None:
    folder = saved("internvl", tmp_path / "internvl")
    mprm.export(folder, device="cpu")
    settings = json.loads((folder / "processor_config.json").read_bytes())
    assert settings == {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    for path in (folder, folder / TOKENIZER):  # vLLM asks both
        tokenizer = AutoTokenizer.from_pretrained(path)
        assert (tokenizer.start_image_token, tokenizer.context_image_token) == ("<img>", "<IMG_CONTEXT>")
    (folder / "processor_config.json").write_text('{"image_seq_length": 256}')
    with pytest.raises(ConfigError, match="image_seq_length is 256; expected 4"):
        mprm.export(folder, device="cpu", force=True)


def test_a_tokenizer_class_that_builds_its_own_normalizer_is_exported(tmp_path: Path) -> None:
    from transformers import Qwen2Tokenizer

    folder = saved("qwen2_5_vl", tmp_path / "qwen")
    own = json.loads((folder / "tokenizer.json").read_bytes())
    vocabulary, merges = own["model"]["vocab"], [tuple(pair) for pair in own["model"]["merges"]]
    names = json.loads((folder / "tokenizer_config.json").read_bytes())
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    from tokenizers import AddedToken

    for token in own["added_tokens"]:
        tokenizer.add_tokens([AddedToken(token["content"], special=token["special"], normalized=False)])
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    tokenizer.eos_token, tokenizer.pad_token = names["eos_token"], names["pad_token"]
    tokenizer.save_pretrained(folder)
    mprm.export(folder, device="cpu")
    served = AutoTokenizer.from_pretrained(folder / TOKENIZER)
    plain = load_encoder(folder)._plain.encode("a <prm> e\u0301")
    assert served.encode(f"a <{ESCAPE}prm> e\u0301", add_special_tokens=False) == plain


def test_an_export_elsewhere_is_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = saved("qwen2_5_vl", tmp_path / "qwen")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    mprm.export(folder, out=tmp_path / "served", device="cpu")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    chain = mprm.Chain("q", ("a", "b"))
    scores = [PRM.from_pretrained(path, device="cpu").score_many([chain]) for path in (folder, tmp_path / "served")]
    assert scores[0] == scores[1]
    with pytest.raises(OutputExistsError, match="served holds files already"):
        mprm.export(folder, out=tmp_path / "served", device="cpu")
    with pytest.raises(ConfigError, match="leave out --out"):
        mprm.export(folder, out=folder, device="cpu")
    mprm.export(folder, device="cpu")
    with pytest.raises(OutputExistsError, match=r"vllm\.yaml"):
        mprm.export(folder, device="cpu")


def test_a_lora_run_is_merged_into_a_folder_of_its_own(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = save_tiny("qwen2_5_vl", tmp_path / "base")
    prm = PRM.from_pretrained(base, PRMConfig(), device="cpu")
    settings = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    whole = saved("qwen2_5_vl", tmp_path / "whole")
    adapted = peft.get_peft_model(PRM.from_pretrained(whole, device="cpu").model, settings)
    run_folder = tmp_path / "lora"
    adapted.save_pretrained(str(run_folder))
    from mprm.models.checkpoint import write_prm_config

    prm.encoder.tokenizer.save_pretrained(str(run_folder))
    write_prm_config(run_folder, PRMConfig(base=str(whole)))
    with pytest.raises(ConfigError, match="is a LoRA adapter; name a folder for the merged weights with --out DIR"):
        mprm.export(run_folder, device="cpu")
    mprm.export(run_folder, out=tmp_path / "merged", device="cpu")
    chain = mprm.Chain("q", ("a", "b"))
    own, merged, plain = (
        PRM.from_pretrained(path, device="cpu").score_many([chain])[0]
        for path in (run_folder, tmp_path / "merged", whole)
    )
    assert merged == pytest.approx(own, abs=1e-6)
    assert merged != pytest.approx(plain, abs=1e-6)


def test_a_model_that_the_template_cannot_ask_is_refused(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "text", prompt_layout="chat")
    with pytest.raises(ConfigError, match="prompt layout chat, version 2; the server's template is of layout user"):
        mprm.export(folder, device="cpu")
    assert not (folder / VLLM_CONFIG).exists()


def test_serve_starts_vllm_with_the_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-m", "mprm", "serve", str(folder), "--", "--port", "81"]
    empty = {**os.environ, "PATH": str(tmp_path / "bin")}
    missing = subprocess.run(command, capture_output=True, text=True, env=empty)
    assert missing.returncode == 1
    assert f"write it with mprm export {folder} --for vllm" in missing.stderr
    (folder / VLLM_CONFIG).touch()
    absent = subprocess.run(command, capture_output=True, text=True, env=empty)
    if shutil.which("vllm", path=str(Path(sys.executable).parent)) is None:
        assert absent.returncode == 1
        assert "vLLM is not installed here; in an environment of its own: pip install vllm" in absent.stderr
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    started = subprocess.run(command, capture_output=True, text=True, env=empty)
    assert started.stdout == f"serve --config {folder / VLLM_CONFIG} --port 81\n"


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved("text", tmp_path / "text")
    assert run(["export", str(folder), "--for", "vllm", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert f"in {folder}." in printed
    assert f"mprm serve {folder}" in printed
    assert run(["export", str(folder), "--for", "sglang"]) == 2
    assert "unknown --for 'sglang'; expected one of vllm" in capsys.readouterr().err

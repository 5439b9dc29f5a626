"""The three layouts of the prompt: token ids by hand, against the released code's rules, and who may score with which."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

pytest.importorskip("torch")

import mprm
from mprm.data.rollout_formats import parse_mm_prm, training_text
from mprm.data.types import Chain, Issues, Rollout, Step
from mprm.errors import ConfigError
from mprm.models.checkpoint import PRM_CONFIG, PRMConfig, load_backbone, read_prm_config
from mprm.models.families import FAMILIES
from mprm.models.internvl_config import build_tokenizer
from mprm.models.prm import PRM
from mprm.models.prompt import PromptEncoder, StepTokens
from tests.models import test_internvl_convert as published
from tests.tiny_models import BACKBONES, IMAGE, save_tiny

SYSTEM = "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<prm>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDE, SQUARE = Image.new("RGB", (400, 100)), Image.new("RGB", (50, 50))
WIDE_TILES = {1: 5, 2: 4, 3: 3}
"""By number of images: of 6, 3 or 2 tiles, 4, 3 or 2 in a row are nearest to 4 : 1, and a thumbnail joins them."""


def tokenizer_with(merges_over: list[str], *, adds_bos: bool) -> Any:
    """Byte by byte, the id of a byte is its value, specials from 256 on; with texts, pairs of bytes are merged."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    backend = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in bytes_to_unicode().items()}, merges=[]))
    # no regular expression: as with SentencePiece, a token may begin with a line end and go on with a word
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if merges_over:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        backend.train_from_iterator(merges_over, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", pad_token="<s>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    if adds_bos:
        bos = tokenizer.bos_token_id
        backend = tokenizer.backend_tokenizer
        backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", bos)])
    tokenizer.chat_template = CHATML
    return tokenizer


MERGED = [
    "assistant\nQuestion: how many?\nProcess: one, two, three",
    "\nQuestion: how many?\nProcess: one",
    "\n\ntwo and <image> three",
    "user\nhow many?",
] * 5


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four tokens a tile, six tiles."""
    return load_backbone(save_tiny("internvl", tmp_path_factory.mktemp("internvl")), device="cpu").image_processor


def encoder_for(tokenizer: Any, processor: Any, layout: Any) -> PromptEncoder:
    tokens = StepTokens(tokenizer.convert_tokens_to_ids("<prm>"), 0, 1)
    return PromptEncoder(tokenizer, processor, FAMILIES["internvl"], tokens, layout=layout)


BOS, START, END, IMG, IMG_END, CONTEXT, PRM_ID = range(256, 263)
PICTURE = [IMG, *[CONTEXT] * 4, IMG_END]


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_ids_of_each_layout_written_out_by_hand(processor: Any, adds_bos: bool) -> None:
    tokenizer = tokenizer_with([], adds_bos=adds_bos)
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [BOS, START, END, IMG, IMG_END, CONTEXT, PRM_ID]
    chain = Chain(" How? ", ("One.", " Two. "), (SQUARE,))
    assert encoder_for(tokenizer, processor, "paper").tokenize(chain).input_ids == [
        *([BOS] if adds_bos else []),
        *[START, *b"system\n", *SYSTEM.encode(), END, *b"\n"],
        *[START, *b"user\n", END, *b"\n"],
        *[START, *b"assistant\n", *PICTURE, *b"\nQuestion: How?\nProcess: One.", PRM_ID, *b"\n\nTwo.", PRM_ID],
        *[END, *b"\n"],
    ]
    assert encoder_for(tokenizer, processor, "user").tokenize(chain).input_ids == [
        *[START, *b"user\n", *PICTURE, *b"\nQuestion: How?\nProcess: One.", PRM_ID, *b"\n\nTwo.", PRM_ID, END, *b"\n"]
    ]
    assert encoder_for(tokenizer, processor, "chat").tokenize(chain).input_ids == [
        *[START, *b"user\n", *PICTURE, *b"\nHow?", END, *b"\n"],
        *[START, *b"assistant\n", *b"One.", PRM_ID, *b"\n\nTwo.", PRM_ID, END, *b"\n"],
    ]


def released_ids(tokenizer: Any, value: str, n_tiles: list[int]) -> list[int]:
    """The released training code's rules for one conversation, as they are known, step by step."""
    if n_tiles and value.count("<image>") < len(n_tiles):  # it does so for one image, and fails for several
        value = "<image>\n" * len(n_tiles) + value
    for n in n_tiles:
        value = value.replace("<image>", f"<img>{'<IMG_CONTEXT>' * 4 * n}</img>", 1)
    turns = [f"<|im_start|>system\n{SYSTEM}<|im_end|>\n", "<|im_start|>user\n<|im_end|>\n"]
    turns.append(f"<|im_start|>assistant\n{value}<|im_end|>\n")
    is_added = tokenizer("").input_ids == [tokenizer.bos_token_id]
    if is_added:
        turns[0] = tokenizer.bos_token + turns[0]
    ids = []
    for turn in turns:
        own = tokenizer(turn).input_ids
        ids += own[1:] if is_added else own
    return ids


TOKENIZERS = {
    (merged, bos): tokenizer_with(MERGED if merged else [], adds_bos=bos) for merged in (0, 1) for bos in (0, 1)
}
WORDS = st.sampled_from(["<image>", "<image>\n", "<image1>", "how many?", " ", "\n", "é😀", "one", "Process:", "two"])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.lists(WORDS, min_size=1, max_size=5).map("".join).filter(str.strip),
    steps=st.lists(st.sampled_from(["one", "two and\nthree", " 4 ", "ü", "<image1> is"]), min_size=1, max_size=3),
    images=st.lists(st.sampled_from([WIDE, SQUARE]), max_size=3),
    kind=st.sampled_from(sorted(TOKENIZERS)),
)
def test_paper_gives_the_ids_of_the_released_training_code(
    processor: Any, question: str, steps: list[str], images: list[Any], kind: tuple[int, int]
) -> None:
    tokenizer = TOKENIZERS[kind]
    chain = Chain(question, tuple(steps), tuple(images))
    encoded = encoder_for(tokenizer, processor, "paper").tokenize(chain)
    tiles = [WIDE_TILES[len(images)] if image is WIDE else 1 for image in images]
    value = training_text(Rollout(question=question, steps=tuple(Step(text=text, score=0.0) for text in steps)))
    assert encoded.input_ids == released_ids(tokenizer, value, tiles)
    assert [encoded.input_ids[i] for i in encoded.prm_positions] == [tokenizer.convert_tokens_to_ids("<prm>")] * len(
        steps
    )


@pytest.mark.parametrize("value", ["<image>\nQuestion: how?\nProcess: one<prm>", "Question: how?\nProcess: one<prm>"])
def test_a_record_of_the_released_code_with_its_image_first_gives_its_ids(processor: Any, value: str) -> None:
    conversations = [{"from": "human", "value": value}, {"from": "gpt", "value": [1.0]}]
    (rollout,) = parse_mm_prm({"image": "a.png", "conversations": conversations}, Issues())
    assert rollout.question == "how?"
    tokenizer = TOKENIZERS[1, 1]
    chain = replace(rollout.chain, images=(SQUARE,))
    assert encoder_for(tokenizer, processor, "paper").tokenize(chain).input_ids == released_ids(tokenizer, value, [1])


@pytest.mark.parametrize("question", ["How long is it?", "<image>\nHow long is it?", "Is <image> long?"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_chat_goes_on_from_where_the_policy_answers(kind: str, question: str, tmp_path: Path) -> None:
    images = () if kind == "text" else (SQUARE,)
    path = save_tiny(kind, tmp_path / kind)
    policy = load_backbone(path, device="cpu")
    prm = PRM.from_pretrained(path, PRMConfig(prompt_layout="chat"), device="cpu")
    ids = prm.encoder.tokenize(Chain(question, ("the bar is 3 long", "so 3"), images)).input_ids
    prompt = policy.chat_ids(question, images)
    assert ids[: len(prompt)] == prompt
    answer = prm.encoder.tokenizer.decode(ids[len(prompt) :])
    assert answer == "the bar is 3 long<prm>\n\nso 3<prm><|im_end|>\n"


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "text"])
def test_paper_follows_the_template_of_backbones_that_the_released_code_does_not_have(
    kind: str, tmp_path: Path
) -> None:
    prm = PRM.from_pretrained(save_tiny(kind, tmp_path), PRMConfig(prompt_layout="paper"), device="cpu")
    encoded = prm.encoder.tokenize(Chain("how?", ("one",), () if kind == "text" else (SQUARE,)))
    shown = str(prm.encoder.tokenizer.decode(encoded.input_ids)).replace("<|image_pad|>", "")
    image = "" if kind == "text" else "<|vision_start|><|vision_end|>\n"
    assert shown == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
        f"<|im_start|>assistant\n{image}Question: how?\nProcess: one<prm><|im_end|>\n"
    )


HOSTILE = [*SPECIAL, *IMAGE["qwen2_5_vl"], *IMAGE["internvl"], "<|endoftext|>", "<image>", "é", "\n\n", "one"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.sampled_from(HOSTILE), max_size=4).map("".join), min_size=2, max_size=4),
    layout=st.sampled_from(["user", "paper", "chat"]),
    n_images=st.integers(0, 2),
)
def test_no_special_token_comes_out_of_data_in_any_layout(
    processor: Any, texts: list[str], layout: Any, n_images: int
) -> None:
    tokenizer = TOKENIZERS[1, 1]
    encoder, images = encoder_for(tokenizer, processor, layout), (SQUARE,) * n_images
    encoded, harmless = (
        [id_ for id_ in encoder.tokenize(Chain(question, tuple(steps), images)).input_ids if id_ in special]
        for special in [set(tokenizer.get_added_vocab().values())]
        for question, *steps in (texts, ["q"] * len(texts))
    )
    assert encoded.count(tokenizer.convert_tokens_to_ids("<prm>")) == len(texts) - 1
    assert encoded == harmless


def test_a_mark_at_the_start_leaves_no_line_end_in_the_question(processor: Any) -> None:
    encoder = encoder_for(TOKENIZERS[0, 0], processor, "user")
    marked, plain = (Chain(question, ("one",), (SQUARE,)) for question in ("<image>\nHow?", "How?"))
    assert encoder.tokenize(marked).input_ids == encoder.tokenize(plain).input_ids
    # a model of an earlier version goes on seeing what it was trained on
    old = replace(encoder, version=1)
    assert b"Question: \nHow?" in bytes(id_ for id_ in old.tokenize(marked).input_ids if id_ < 256)
    assert old.tokenize(plain).input_ids == encoder.tokenize(plain).input_ids


def test_images_of_a_question_share_the_tiles(processor: Any) -> None:
    # 6 // 5 = 1 tile each, 4 tokens here; version 1 gave each six and a thumbnail: 5 × 7 × 4 tokens
    encoder = encoder_for(TOKENIZERS[0, 0], processor, "user")
    chain = Chain("How?", ("one",), tuple(Image.new("RGB", (168, 112)) for _ in range(5)))
    for version, n_tiles in ((1, 35), (2, 5)):
        encoded = replace(encoder, version=version).encode(chain)
        assert encoded.input_ids.count(CONTEXT) == 4 * n_tiles
        assert encoded.vision["pixel_values"].shape[0] == n_tiles


@pytest.mark.parametrize("layout", ["paper", "chat"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_shared_prefixes_score_as_padded_batches_in_each_layout(kind: str, layout: Any, tmp_path: Path) -> None:
    path = save_tiny(kind, tmp_path / kind)
    images = () if kind == "text" else (WIDE, SQUARE)
    chains = [Chain("how long is bar 1? hm hm", ("one", f"step {n}"), images) for n in range(3)]
    shared, padded = (
        PRM.from_pretrained(path, PRMConfig(prompt_layout=layout), device="cpu", share_prefixes=share).score_many(
            chains
        )
        for share in (True, False)
    )
    for mine, theirs in zip(shared, padded, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.fixture(scope="module")
def paper_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model trained with the paper's layout."""
    folder = tmp_path_factory.mktemp("layout")
    save_tiny("text", folder / "model")
    records = [{"prompt": "how?", "completions": ["one", f"{n}"], "labels": [True, n > 1]} for n in range(4)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = {"device": "cpu", "report_to": ("none",), "dataloader_workers": 0, "prompt_layout": "paper"}
    mprm.train(
        str(folder / "rollouts.jsonl"),
        model=str(folder / "model"),
        out=str(folder / "run"),
        text_only=True,
        **options,
    )
    return folder / "run"


def test_a_run_keeps_its_layout_and_refuses_another(paper_run: Path, tmp_path: Path) -> None:
    assert json.loads((paper_run / PRM_CONFIG).read_text())["prompt_layout"] == "paper"
    assert json.loads((paper_run / "train.json").read_text())["prompt_layout"] == "paper"
    own = PRM.from_pretrained(paper_run, device="cpu")
    assert own.encoder.layout == PRM.from_pretrained(paper_run, device="cpu", prompt_layout="paper").encoder.layout
    benchmark, candidates = tmp_path / "benchmark.jsonl", tmp_path / "candidates.jsonl"
    benchmark.write_text(json.dumps({"id": "1", "problem": "how?", "steps": ["one", "2"], "label": 1}))
    solution = {"text": "one\n\n2", "steps": ["one", "2"]}
    candidates.write_text(json.dumps({"id": "1", "question": "how?", "answer": "2", "candidates": [solution]}))
    options = {"model": str(paper_run), "device": "cpu"}
    refused = pytest.raises(ConfigError, match=r"prm_config.json: .*trained with prompt layout paper; .* with user")
    with refused:
        mprm.evaluate(str(benchmark), **options, threshold=0.5, prompt_layout="user")
    with refused:
        mprm.rerank(str(candidates), **options, prompt_layout="user")
    result = mprm.evaluate(str(benchmark), **options, threshold=0.5, draws=0)
    assert result.models[0].table.scores.tolist() == pytest.approx(own.score("how?", (), ["one", "2"]))
    other = PRM(own.model, replace(own.encoder, layout="user"), own.config, name="", fingerprint="")
    assert other.score("how?", (), ["one", "2"]) != pytest.approx(own.score("how?", (), ["one", "2"]))


def test_a_config_without_a_layout_is_of_the_user_layout(tmp_path: Path) -> None:
    (tmp_path / PRM_CONFIG).write_text('{"prompt_version": 1}')
    assert read_prm_config(tmp_path).prompt_layout == "user"
    with pytest.raises(ConfigError, match=r"trained with prompt layout user; .* with chat"):
        read_prm_config(tmp_path, "chat")


def test_a_model_of_the_papers_code_is_scored_once_its_layout_is_named(paper_run: Path, tmp_path: Path) -> None:
    expected = PRM.from_pretrained(paper_run, device="cpu").score("how?", (), ["one", "2"])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in paper_run.glob("*.*"):
        if path.name not in (PRM_CONFIG, "train.json") and path.is_file():
            (foreign / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="--prompt-layout paper"):
        PRM.from_pretrained(foreign, device="cpu")
    prm = PRM.from_pretrained(foreign, device="cpu", prompt_layout="paper")
    assert prm.score("how?", (), ["one", "2"]) == expected
    assert prm.fingerprint != PRM.from_pretrained(foreign, device="cpu", prompt_layout="user").fingerprint
    with pytest.raises(ConfigError, match="the tokenizer does not know <prm>"):
        PRM.from_pretrained(save_tiny("text", tmp_path / "base"), device="cpu", prompt_layout="paper")


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("question", ["the cat", "<image>\nthe cat", "is <image> the cat", " the  é"])
def test_paper_holds_for_the_converted_tokenizer_of_internvl2_5_8b(
    question: str, prefix: int, processor: Any, tmp_path: Path
) -> None:
    """SentencePiece without and with a dummy prefix, which each text between two special tokens gets."""
    published.write_internlm2_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(published.sentencepiece_bytes(published.PIECES, prefix=prefix))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"][published.INTERNLM2_VOCABULARY] = {"content": "<prm>", **published.SPECIAL}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = build_tokenizer(tmp_path, vocab_size=published.INTERNLM2_VOCABULARY + 1)
    encoded = encoder_for(tokenizer, processor, "paper").tokenize(Chain(question, ("the A", "B"), (WIDE,)))
    value = f"Question: {question.strip()}\nProcess: the A<prm>\n\nB<prm>"
    assert encoded.input_ids == released_ids(tokenizer, value, [5])
    assert encoded.input_ids[:2] == tokenizer.convert_tokens_to_ids(["<s>", "<|im_start|>"])

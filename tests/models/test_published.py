"""Process reward models that others trained: scores against each published procedure, written out one chain at a time."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2Model,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM, Qwen2ForTokenClassification

import mprm
from mprm.cli.evaluate import run_evaluate
from mprm.cli.rerank import run_rerank
from mprm.data.types import Chain
from mprm.errors import ConfigError, DataError
from mprm.models.families import FAMILIES
from mprm.models.internvl_convert import convert_internvl
from mprm.models.prm import PRM
from tests.models.test_internvl_convert import write_checkpoint
from tests.tiny_models import CHAT, save_tiny, tiny_tokenizer

INTERNVL = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
LLAMA3 = (
    "<s>{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "initializer_range": 0.2, "tie_word_embeddings": False}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 4096}
TEXT_LAYOUTS = ("qwen-math", "math-shepherd", "rlhflow", "skywork", "trl")
LAYOUTS = ("visualprm", *TEXT_LAYOUTS)
TOLD = ("visualprm", "math-shepherd", "rlhflow")
"""Layouts that a plain config does not tell."""
QUESTION = "What is 12 + 30 - 2?"
CHAINS = [
    Chain(QUESTION, ("The sum is 42.", "Less 2, that is 40 - 0.", "So 40.")),
    Chain(QUESTION, ("It is 7.",)),
    Chain("How long is the bar?\nGive a number.", ("\nThe bar is 3 long;\nor 4?", "", " the answer is: 3 ")),
]


def with_tokens(*tokens: str, template: str = CHAT, bos: str | None = None) -> Any:
    """The tiny tokenizer with further tokens; two line ends are one token, as in Qwen's and Llama's."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = tiny_tokenizer("text")
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary, merges = pipeline["model"]["vocab"], pipeline["model"]["merges"]
    vocabulary["ĊĊ"] = vocabulary.pop("".join(merges.pop()))
    merges.append(["Ċ", "Ċ"])
    backend = Tokenizer.from_str(json.dumps(pipeline))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    if bos is not None:
        tokenizer.bos_token = bos
    return tokenizer


def shepherd_tokenizer() -> Any:
    """Of SentencePiece's kind, as Mistral's: a space is a letter of the word after it, bytes stand in for the rest."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "к",
        "и",
        "ки",
        "▁ки",
        "▁+",
        "▁-",
    ]
    pieces += [chr(code) for code in range(33, 127)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("к", "и"), ("▁", "ки"), ("▁", "+"), ("▁", "-")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


class PublishedQwenMath(torch.nn.Module):
    """The body and the head of Qwen2.5-Math-PRM, under the names of its weights."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.model = Qwen2Model(config)
        size = config.hidden_size
        self.score = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 2))

    def forward(self, input_ids: Any) -> Any:
        return self.score(self.model(input_ids).last_hidden_state)


class PublishedSkywork(torch.nn.Module):
    """The language model and the value head of Skywork-o1-Open-PRM."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.language_model = Qwen2ForCausalLM(config)
        self.summary = torch.nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: Any) -> Any:
        hidden = self.language_model(input_ids, output_hidden_states=True).hidden_states[-1]
        return self.summary(hidden).squeeze(-1)


def save_config(folder: Path, config: Any, **changes: Any) -> None:
    config.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def save(layout: str, folder: Path) -> tuple[Path, Any, Any]:
    """A small random checkpoint with the published names, its tokenizer, and the model as published."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "visualprm":
        from transformers import InternVLForConditionalGeneration

        save_tiny("internvl", folder)
        model = InternVLForConditionalGeneration.from_pretrained(folder)
        model.lm_head.weight.data *= 20
        model.save_pretrained(folder)
        return folder, tiny_tokenizer("internvl"), model.eval()
    if layout == "math-shepherd":
        tokenizer = shepherd_tokenizer()
        model = MistralForCausalLM(MistralConfig(vocab_size=len(tokenizer), **SIZES))
        model.save_pretrained(folder)
    elif layout == "rlhflow":
        tokenizer = with_tokens(
            "<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", template=LLAMA3, bos="<s>"
        )
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SIZES))
        model.save_pretrained(folder)
    elif layout == "trl":
        tokenizer = with_tokens()
        model = Qwen2ForTokenClassification(Qwen2Config(vocab_size=len(tokenizer), num_labels=2, **SIZES))
        model.score.weight.data *= 5
        model.save_pretrained(folder)
    elif layout == "qwen-math":
        tokenizer = with_tokens("<extra_0>")
        config = Qwen2Config(vocab_size=len(tokenizer), **SIZES)
        model = PublishedQwenMath(config)
        model.score[2].weight.data *= 5
        code = {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"}
        save_config(folder, config, architectures=["Qwen2ForProcessRewardModel"], auto_map=code)
        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    else:
        tokenizer = with_tokens(bos="<|endoftext|>")
        config = Qwen2Config(vocab_size=len(tokenizer), **SIZES)
        model = PublishedSkywork(config)
        head = {f"v_head.summary.{name}": tensor.data for name, tensor in model.summary.named_parameters()}
        save_config(folder, config, architectures=["Qwen2ForPrmModel"])
        save_file(model.language_model.state_dict() | head, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save_pretrained(folder)
    return folder, AutoTokenizer.from_pretrained(folder), model.eval()  # Qwen2's class splits digits


def published_visualprm(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    """A conversation for each step, with all before it answered with +; the next token is + or -."""
    n_images = chain.question.count("<image>") or len(chain.images)
    question = chain.question if "<image>" in chain.question else "<image>\n" * n_images + chain.question
    vision = {}
    if chain.images:
        processor = FAMILIES["internvl"].image_processor(tokenizer.folder, {"max_patches": 12})
        tiles = [
            torch.stack(list(map(torch.as_tensor, processor([image], max_patches=12)["pixel_values"])))
            for image in chain.images
        ]
        vision = {"pixel_values": torch.cat(tiles)}
    text, scores = f"<|im_start|>system\n{INTERNVL}<|im_end|>\n", []
    for index, step in enumerate(chain.steps):
        user = step if index else f"### Question:\n{question}\n\n### Solution Process:\n{step}"
        text += f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
        query = text
        for part in tiles if chain.images else ():
            query = query.replace("<image>", "<img>" + "<IMG_CONTEXT>" * 4 * len(part) + "</img>", 1)
        ids = tokenizer(query, return_tensors="pt").input_ids
        logits = model(input_ids=ids, **vision).logits[:, -1, tokenizer.convert_tokens_to_ids(["+", "-"])]
        scores.append(logits.softmax(dim=-1)[0, 0].item())
        text += "+<|im_end|>\n"
    return scores


def published_qwen_math(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    system = "Please reason step by step, and put your final answer within \\boxed{}."
    answer = "<extra_0>".join(chain.steps) + "<extra_0>"
    turns = [("system", system), ("user", chain.question), ("assistant", answer)]
    messages = [{"role": role, "content": content} for role, content in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    ids = tokenizer.encode(text, return_tensors="pt")
    probabilities = model(ids).softmax(dim=-1)
    return probabilities[ids == tokenizer.convert_tokens_to_ids("<extra_0>")][:, 1].tolist()


def published_math_shepherd(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    candidates, tag = tokenizer.encode("+ -")[1:], tokenizer.encode("ки")[-1]
    ids = torch.tensor([tokenizer.encode(f"{chain.question} " + "\n".join(f"{step} ки" for step in chain.steps))])
    scores = model(ids).logits[:, :, candidates].softmax(dim=-1)[:, :, 0]
    return scores[ids == tag].tolist()


def published_rlhflow(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    conversation, scores = [], []
    for index, step in enumerate(chain.steps):
        content = step.strip() if index else f"{chain.question} {step.strip()}"
        conversation += [{"role": "user", "content": content}, {"role": "assistant", "content": "+"}]
        ids = tokenizer.apply_chat_template(conversation, return_tensors="pt", return_dict=True)["input_ids"]
        scores.append(model(ids).logits[:, -3, candidates].softmax(dim=-1)[0, 0].item())
    return scores


def published_skywork(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    ids = tokenizer.encode(tokenizer.bos_token + chain.question + "\n")
    end, flags = tokenizer.encode("\n")[-1], []
    for step in chain.steps:
        ids += [*(tokenizer.encode(step) if step else []), end]
        flags.append(len(ids) - 1)
    return torch.sigmoid(model(torch.tensor([ids])))[0, flags].tolist()


def published_trl(tokenizer: Any, model: Any, chain: Chain) -> list[float]:
    ids, ends = tokenizer(chain.question, add_special_tokens=False)["input_ids"], []
    for step in chain.steps:
        ids = ids + tokenizer(step, add_special_tokens=False)["input_ids"] + tokenizer.encode("\n")
        ends.append(len(ids) - 1)
    return model(torch.tensor([ids])).logits.softmax(dim=-1)[0, ends, 1].tolist()


PUBLISHED: dict[str, Callable[[Any, Any, Chain], list[float]]] = {
    "visualprm": published_visualprm,
    "qwen-math": published_qwen_math,
    "math-shepherd": published_math_shepherd,
    "rlhflow": published_rlhflow,
    "skywork": published_skywork,
    "trl": published_trl,
}


class Checkpoints(dict[str, tuple[Path, Any, Any]]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, layout: str) -> tuple[Path, Any, Any]:
        self[layout] = save(layout, self.folder / layout)
        self[layout][1].folder = str(self.folder / layout)
        return self[layout]

    def prm(self, layout: str, **options: Any) -> PRM:
        told = layout if layout in TOLD else None
        return PRM.from_pretrained(self[layout][0], device="cpu", prm_layout=told, **options)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("published"))


def expected(checkpoints: Checkpoints, layout: str, chains: Sequence[Chain]) -> list[list[float]]:
    with torch.no_grad():
        return [PUBLISHED[layout](*checkpoints[layout][1:], chain) for chain in chains]


def close(scores: Sequence[Sequence[float]]) -> list[Any]:
    return [pytest.approx(list(chain), abs=1e-5) for chain in scores]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_those_of_the_published_procedure(layout: str, share: bool, checkpoints: Checkpoints) -> None:
    prm = checkpoints.prm(layout, share_prefixes=share)
    right = expected(checkpoints, layout, CHAINS)
    assert [len(scores) for scores in right] == [3, 1, 3]
    assert max(map(max, right)) - min(map(min, right)) > 0.02  # a score read elsewhere would be another
    assert prm.score_many(CHAINS) == close(right)
    assert [prm.score_many([chain])[0] for chain in CHAINS] == close(right)
    assert prm.score(QUESTION, (), CHAINS[0].steps) == pytest.approx(right[0], abs=1e-5)
    assert prm.score_many([Chain(QUESTION, ())]) == [[]]


def test_images_stand_where_visualprm_has_them(checkpoints: Checkpoints) -> None:
    wide, square = Image.radial_gradient("L").resize((800, 80)), Image.linear_gradient("L").resize((60, 60))
    chains = [
        Chain("How long?", ("a", "b c"), (wide,)),
        Chain("Is <image> like <image>\n?", ("yes", "no"), (wide, square)),
        Chain("How long?", ("a", "b c"), (wide, square)),
        Chain("How long?", ("a", "b c")),
    ]
    pictures = [Chain(c.question, c.steps, tuple(image.convert("RGB") for image in c.images)) for c in chains]
    right = expected(checkpoints, "visualprm", pictures)
    assert right[0] != close([right[3]])[0]
    assert checkpoints.prm("visualprm").score_many(pictures) == close(right)


SPECIALS = [
    "<extra_0>",
    " ки",
    "ки",
    "<|im_end|>\n<|im_start|>assistant\n+<|im_end|>",
    "<|eot_id|>",
    "\n",
    "+",
    "</s>",
    "<img>",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_step_says_moves_no_score_to_another_step(layout: str, checkpoints: Checkpoints) -> None:
    prm = checkpoints.prm(layout)
    middle = " and ".join(["It is", *SPECIALS, "so"])
    chain = Chain(f"What{middle}?", ("First", middle, "last"))
    scores = prm.score_many([chain])[0]
    # a step's score is that of the chain that ends with it
    prefixes = [Chain(chain.question, chain.steps[:n]) for n in (1, 2, 3)]
    assert scores == pytest.approx([prm.score_many([prefix])[0][-1] for prefix in prefixes], abs=1e-5)
    ids = prm.encoder.tokenize(chain).input_ids
    for token in prm.encoder.tokenizer.get_added_vocab().values():
        plain = prm.encoder.tokenize(Chain("What", ("First", "m", "last"))).input_ids
        assert ids.count(token) == plain.count(token)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_beyond_the_models_length_have_no_score(layout: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    whole = checkpoints.prm(layout)
    positions = whole.encoder.tokenize(CHAINS[0]).prm_positions
    short = shutil.copytree(checkpoints[layout][0], tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    config.get("text_config", config)["max_position_embeddings"] = positions[1] + 1
    (short / "config.json").write_text(json.dumps(config))
    prm = PRM.from_pretrained(short, device="cpu", prm_layout=layout)
    scores = prm.score_many([CHAINS[0]])[0]
    assert scores[:2] == pytest.approx(whole.score_many([CHAINS[0]])[0][:2], abs=1e-5)
    assert len(scores) == 3
    assert math.isnan(scores[2])
    config.get("text_config", config)["max_position_embeddings"] = positions[0]
    (short / "config.json").write_text(json.dumps(config))
    prm = PRM.from_pretrained(short, device="cpu", prm_layout=layout)
    assert all(map(math.isnan, prm.score_many([CHAINS[0]])[0]))


def test_a_converted_visualprm_is_recognised(tmp_path: Path) -> None:
    for name in ("InternVLRewardModel", "InternVLChatModel"):
        source = tmp_path / name
        write_checkpoint(source, "qwen2")
        config = json.loads((source / "config.json").read_text())
        config["auto_map"] = {"AutoModel": f"modeling_internvl_chat.{name}"}
        (source / "config.json").write_text(json.dumps(config))
        convert_internvl(str(source), str(tmp_path / f"{name}-native"))
    told = json.loads((tmp_path / "InternVLRewardModel-native/config.json").read_text())
    plain = json.loads((tmp_path / "InternVLChatModel-native/config.json").read_text())
    assert told.pop("prm_layout") == "visualprm"
    assert told == plain
    assert PRM.from_pretrained(tmp_path / "InternVLRewardModel-native", device="cpu").prm_layout == "visualprm"


def test_a_layout_in_the_config_is_recognised_and_another_can_be_told(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints["rlhflow"][0], tmp_path / "told")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"prm_layout": "rlhflow"}))
    prm = PRM.from_pretrained(folder, device="cpu")
    assert prm.prm_layout == "rlhflow"
    assert prm.score_many(CHAINS) == checkpoints.prm("rlhflow").score_many(CHAINS)
    with pytest.raises(
        ConfigError, match=r"the tokenizer does not fit the layout math-shepherd: it splits 'ки' into"
    ):
        PRM.from_pretrained(folder, device="cpu", prm_layout="math-shepherd")
    with pytest.raises(ConfigError, match="told is a published model of the layout rlhflow; copy its folder"):
        prm.save_pretrained(tmp_path / "saved")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    Image.linear_gradient("L").resize((90, 60)).save(folder / "a.png")
    solutions = [
        {
            "id": f"{number}",
            "generator": "x",
            "problem": f"{number} + 1?",
            "steps": ["It is so.", f"It is {number + 1}."],
            "final_answer_correct": number % 2 == 0,
            "label": -1 if number % 2 == 0 else 1,
        }
        for number in range(4)
    ]
    (folder / "gsm8k.json").write_text(json.dumps(solutions))
    pictured = {
        "image": ["a.png"],
        "question": "How long?",
        "answer": "4",
        "response": {"steps": ["I see 4.", "So 4."], "process_correctness": [1, -1]},
        "policy_model": "x",
        "data_source": "MathVision",
    }
    (folder / "test.jsonl").write_text(json.dumps(pictured) + "\n")
    for name, images in (("text", []), ("pictured", ["a.png"])):
        candidates = [
            {"text": "It is 1.\n\nSo 1.", "steps": ["It is 1.", "So 1."]},
            {"text": "2", "steps": ["So 2."]},
        ]
        record = {
            "id": "1",
            "source": "s",
            "question": "How?",
            "images": images,
            "answer": "1",
            "candidates": candidates,
        }
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_commands_score_with_it(layout: str, checkpoints: Checkpoints, data: Path, tmp_path: Path) -> None:
    has_images = layout == "visualprm"
    model = ["--model", str(checkpoints[layout][0]), "--device", "cpu", "--image-root", str(data)]
    model += ["--prm-layout", layout] if layout in TOLD else []
    prm = checkpoints.prm(layout, image_root=data)
    benchmark = [str(data / ("test.jsonl" if has_images else "gsm8k.json")), *([] if has_images else ["--text-only"])]
    out = ["--threshold", "0.5", "--draws", "10", "--out", str(tmp_path / "eval")]
    assert run_evaluate([*benchmark, *model, *out]) == 0
    lines = [json.loads(line) for line in (tmp_path / "eval/scores.jsonl").read_text().splitlines()]
    steps = (
        (["I see 4.", "So 4."], ["a.png"], "How long?") if has_images else (["It is so.", "It is 1."], [], "0 + 1?")
    )
    assert lines[0]["scores"] == pytest.approx(prm.score(steps[2], steps[1], steps[0]), abs=1e-5)
    recorded = json.loads((tmp_path / "eval/metrics.json").read_text())["config"]
    assert recorded["prm_layout"] == (layout if layout in TOLD else None)
    candidates = str(data / ("pictured.jsonl" if has_images else "text.jsonl"))
    assert run_rerank([candidates, *model, "--draws", "10", "--out", str(tmp_path / "rerank")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "rerank/scores.jsonl").read_text().splitlines()]
    images = ["a.png"] if has_images else []
    assert lines[0]["scores"] == pytest.approx(prm.score("How?", images, ["It is 1.", "So 1."]), abs=1e-5)


@pytest.mark.parametrize("layout", TEXT_LAYOUTS)
def test_a_text_layout_refuses_images(layout: str, checkpoints: Checkpoints, data: Path) -> None:
    with pytest.raises(DataError, match=r"^image a.png cannot be used: a text model cannot see images"):
        checkpoints.prm(layout, image_root=data).score("How long?", ["a.png"], ["a"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_model_without_its_tokenizer_is_refused(
    layout: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints[layout][0], tmp_path / "bare")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"bare: the tokenizer .*: copy them, tokenizer.json first, from the orig"):
        PRM.from_pretrained(folder, device="cpu", prm_layout=layout)


def test_wrong_layouts_and_missing_heads_are_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    def refused(folder: Path, message: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=message) as error:
            PRM.from_pretrained(folder, device="cpu", **options)
        assert "\n" not in str(error.value)

    plain, qwen = checkpoints["rlhflow"][0], checkpoints["qwen-math"][0]
    refused(
        plain, r"not trained by mprm train: .* or --prm-layout visualprm, qwen-math, math-shepherd, rlhflow, skywork"
    )
    refused(
        plain,
        "the layout visualprm is of models of the family internvl; this one is of .* text",
        prm_layout="visualprm",
    )
    refused(checkpoints["visualprm"][0], "the layout trl is of models of the family text", prm_layout="trl")
    refused(plain, r"the weights do not fit config.json; 2 missing keys: score", prm_layout="trl")
    refused(plain, r"the weights do not fit config.json; 2 missing keys: v_head.summary", prm_layout="skywork")
    refused(qwen, r"missing keys: lm_head.weight", prm_layout="rlhflow")
    headless = shutil.copytree(qwen, tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    save_file(
        {n: w for n, w in weights.items() if n != "score.2.bias"}, headless / "model.safetensors", {"format": "pt"}
    )
    refused(headless, r"headless: the weights do not fit config.json; 1 missing keys: score.2.bias")
    other = shutil.copytree(qwen, tmp_path / "other")
    with_tokens().save_pretrained(other)
    refused(other, r"the tokenizer does not fit the layout qwen-math: it splits '<extra_0>' into")
    with_tokens("<extra_0>", template="").save_pretrained(other)
    (other / "chat_template.jinja").unlink(missing_ok=True)
    refused(other, rf"^{other}: the tokenizer has no chat template")
    with_tokens("<extra_0>", template="{{ 1 + '1' }}").save_pretrained(other)
    refused(other, rf"^{other}: the chat template cannot render a conversation: unsupported operand")
    config = Qwen2Config(vocab_size=500, num_labels=3, **SIZES)
    Qwen2ForTokenClassification(config).save_pretrained(tmp_path / "three")
    with_tokens().save_pretrained(tmp_path / "three")
    refused(tmp_path / "three", "was not trained by mprm train")
    refused(tmp_path / "three", "the layout trl does not fit the model: the model has 3 labels", prm_layout="trl")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/prm_config.json").write_text("{}")
    refused(tmp_path / "ours", "ours is read at <prm>: leave out --prm-layout", prm_layout="trl")
    refused(plain, "is read at <prm>", prm_layout="rlhflow", prompt_layout="paper")


@pytest.mark.parametrize(
    ("labels", "is_reversed"),
    [
        (("LABEL_0", "LABEL_1"), False),
        (("incorrect", "correct"), False),
        (("-", "+"), False),
        (("correct", "incorrect"), True),
        (("Good", "Bad"), True),
        (("positive", "negative"), True),
        (("Yes", "No"), True),
        (("1", "0"), True),
    ],
)
def test_the_labels_of_a_token_classifier_tell_which_is_correct(
    labels: tuple[str, str], is_reversed: bool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints["trl"][0], tmp_path / "labelled")
    config = json.loads((folder / "config.json").read_text()) | {"id2label": dict(zip("01", labels, strict=True))}
    (folder / "config.json").write_text(json.dumps(config))
    expected = np.concatenate(checkpoints.prm("trl").score_many(CHAINS))
    for layout in (None, "trl"):
        scores = PRM.from_pretrained(folder, device="cpu", prm_layout=layout).score_many(CHAINS)
        assert np.concatenate(scores) == pytest.approx(1 - expected if is_reversed else expected, abs=1e-5)


@pytest.mark.parametrize(
    "labels", [("O", "B-PER"), ("LABEL_1", "LABEL_0"), ("correct", "yes"), ("no error", "error")]
)
def test_labels_that_do_not_tell_need_the_layout(
    labels: tuple[str, str], checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints["trl"][0], tmp_path / "ner")
    config = json.loads((folder / "config.json").read_text()) | {"id2label": dict(zip("01", labels, strict=True))}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"ner was not trained by mprm train: its labels are .*--prm-layout trl takes the last"
    ):
        PRM.from_pretrained(folder, device="cpu")
    told = PRM.from_pretrained(folder, device="cpu", prm_layout="trl")
    assert told.score_many(CHAINS) == checkpoints.prm("trl").score_many(CHAINS)


@pytest.mark.parametrize(
    "changes",
    [
        {"prm_layout": [], "architectures": {}},
        {"prm_layout": {"a": 1}, "architectures": [None]},
        {"architectures": ["Qwen2ForTokenClassification"], "id2label": {"0": "a"}},
    ],
)
def test_odd_values_in_a_config_tell_no_layout(
    changes: dict[str, Any], checkpoints: Checkpoints, tmp_path: Path
) -> None:
    config = json.loads((checkpoints["rlhflow"][0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError, match="was not trained by mprm train"):
        PRM.from_pretrained(tmp_path, device="cpu")


def test_an_unknown_layout_is_answered_with_the_known(checkpoints: Checkpoints, data: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown prm_layout 'qwen'; did you mean qwen-math\? Expected one of visualprm"
    ):
        mprm.evaluate(str(data / "gsm8k.json"), str(checkpoints["trl"][0]), prm_layout="qwen")
    with pytest.raises(
        ConfigError, match=r"unknown prm_layout 'qwen'; did you mean qwen-math\? Expected one of visualprm"
    ):
        PRM.from_pretrained(checkpoints["trl"][0], prm_layout="qwen")

"""Converting a checkpoint in the published layout, against the published equations written out here."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from mprm.cli.internvl import run_internvl as run
from mprm.errors import ConfigError, DataError, InputNotFoundError, MprmError, OutputExistsError
from mprm.models import ConvertInternVLConfig, convert_internvl
from mprm.models.internvl_config import (
    build_tokenizer,
    native_config,
    read_published_config,
    sentencepiece_backend,
)
from mprm.models.internvl_convert import native_layout

HEADS, KEY_VALUE_HEADS, VISION_HEADS = 4, 2, 2
SIDE, PATCH = 28, 7  # 4 × 4 patches, so 4 image tokens after the pixel shuffle
IMAGE_TOKENS = 4

# ---------------------------------------------------------------- the published layout, made small


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece_bytes(
    pieces: list[tuple[str, float, int]],
    *,
    model_type: int = 2,
    prefix: int = 0,
    spaces: int = 0,
    charsmap: bytes = b"",
) -> bytes:
    """A tokenizer.model file: pieces are field 1, the trainer's settings 2, the normalizer's 3."""
    message = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in pieces
    )
    message += field(2, field(3, model_type) + field(35, 1))
    return message + field(3, field(1, b"identity") + field(2, charsmap) + field(3, prefix) + field(4, spaces))


WORDS = ["th", "the", "▁the", "▁t", "▁", "t", "h", "e", "c", "a", "A", "B", "\n"]
PIECES: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *((word, float(-rank), 1) for rank, word in enumerate(WORDS)),
    *((f"[UNUSED_TOKEN_{number}]", 0.0, 4) for number in range(3)),
]
FIRST = 3 + 256
ID = {text: number for number, (text, _, _) in enumerate(PIECES)}
UNUSED = ID["[UNUSED_TOKEN_0]"]
"""[UNUSED_TOKEN_0] stays, the next two become <|im_end|> and <|im_start|>, as InternLM2 has it."""
INTERNLM2_ADDED = {
    "<unk>": 0,
    "<s>": 1,
    "</s>": 2,
    "<|im_end|>": UNUSED + 1,
    "<|im_start|>": UNUSED + 2,
    "<img>": UNUSED + 3,
    "</img>": UNUSED + 4,
    "<IMG_CONTEXT>": UNUSED + 5,
}
INTERNLM2_VOCABULARY = UNUSED + 6

SPECIAL = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_internlm2_tokenizer(folder: Path, **changes: Any) -> None:
    (folder / "tokenizer.model").write_bytes(sentencepiece_bytes(PIECES))
    write_json(folder / "added_tokens.json", {text: n for text, n in INTERNLM2_ADDED.items() if n > UNUSED})
    write_json(folder / "special_tokens_map.json", {"bos_token": "<s>", "unk_token": {"content": "<unk>"}})
    config = {
        "added_tokens_decoder": {str(n): {"content": text, **SPECIAL} for text, n in INTERNLM2_ADDED.items()},
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "tokenizer_class": "InternLM2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "model_max_length": 8192,
        **changes,
    }
    write_json(folder / "tokenizer_config.json", config)


QWEN2_ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<img>", "</img>", "<IMG_CONTEXT>"]
QWEN3_ADDED = [*QWEN2_ADDED[:4], "<think>", "</think>", *QWEN2_ADDED[4:]]
PLAIN_ADDED = ("<tool_call>", "<think>", "</think>")


def write_qwen_tokenizer(folder: Path, added_tokens: list[str]) -> int:
    """256 bytes, three words and the added tokens; returns how many."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {text: n for n, text in enumerate([*sorted(ByteLevel.alphabet()), "th", "the", "Ġthe"])}
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ the\n", encoding="utf-8")
    added = {len(vocabulary) + n: text for n, text in enumerate(added_tokens)}
    write_json(folder / "added_tokens.json", {text: n for n, text in added.items()})
    decoder = {str(n): {"content": text, **SPECIAL, "special": text not in PLAIN_ADDED} for n, text in added.items()}
    config = {
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write_json(folder / "tokenizer_config.json", config)
    return len(vocabulary) + len(added)


def published_config(config: InternVLConfig) -> dict[str, Any]:
    """The config.json that a published checkpoint of this size would have."""
    text, vision = config.text_config, config.vision_config
    is_llama = text.model_type == "llama"
    names = {"llama": "InternLM2", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    rope = dict(text.rope_parameters)
    scaling = {"type": rope["rope_type"], "factor": rope["factor"]} if "factor" in rope else None
    if scaling and not is_llama:
        scaling["rope_type"] = scaling["type"]  # InternVL3 has both names
    llm = {
        "architectures": [f"{names[text.model_type]}ForCausalLM"],
        "model_type": names[text.model_type].lower(),
        **{
            name: getattr(text, name)
            for name in (
                "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
                "hidden_act max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id"
            ).split()
        },
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling,
        "tie_word_embeddings": False,
        **({"bias": text.attention_bias} if is_llama else {"layer_types": ["full_attention"] * 2}),
        **({"head_dim": text.head_dim, "attention_bias": False} if text.model_type == "qwen3" else {}),
    }
    vit = {
        "architectures": ["InternVisionModel"],
        "model_type": "intern_vit_6b",
        **{
            name: getattr(vision, name)
            for name in "hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act norm_type "
            "layer_norm_eps".split()
        },
        "image_size": SIDE,
        "patch_size": PATCH,
        "qkv_bias": vision.attention_bias,
        "qk_normalization": vision.use_qk_norm,
        "drop_path_rate": 0.0,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer_factor": 1.0,
        "use_flash_attn": True,
    }
    return {
        "architectures": ["InternVLChatModel"],
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "model_type": "internvl_chat",
        "llm_config": llm,
        "vision_config": vit,
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": SIDE,
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "use_thumbnail": True,
        "torch_dtype": "bfloat16",
    }


KINDS = ("internlm2", "internlm2-bias-6b-vit", "qwen2", "internvl3", "internvl3_5", "internvl3_5-6b-vit")
QWEN = {kind: "qwen3" if "3_5" in kind else "qwen2" for kind in KINDS[2:]}


def native_model(kind: str, *, vocab_size: int, image_token_id: int) -> InternVLForConditionalGeneration:
    """A small model, every parameter of it random: a norm left at ones would not tell where it went."""
    is_6b = kind.endswith("-6b-vit")
    common = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 2,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
    if kind == "internvl3" or kind not in QWEN:
        rope |= {"rope_type": "dynamic", "factor": 2.0}
    if kind not in QWEN:
        text: Any = LlamaConfig(**common, rope_parameters=rope, attention_bias=is_6b)
    elif QWEN[kind] == "qwen2":
        text = Qwen2Config(**common, rope_parameters=rope)
    else:
        text = Qwen3Config(**common, rope_parameters=rope, head_dim=12)  # not hidden / heads, as in 0.6B and 32B
    vision = InternVLVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=VISION_HEADS,
        image_size=[SIDE, SIDE],
        patch_size=[PATCH, PATCH],
        attention_bias=not is_6b,
        use_qk_norm=is_6b,
        norm_type="rms_norm" if is_6b else "layer_norm",
    )
    config = InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=image_token_id,
        image_seq_length=IMAGE_TOKENS,
        tie_word_embeddings=False,
    )
    model = InternVLForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


def published_state(model: InternVLForConditionalGeneration) -> dict[str, Any]:
    """The weights in the published layout, every module written out."""
    state, published = model.state_dict(), {}
    text = model.config.text_config

    def put(name: str, *natives: str, n_groups: int = 1) -> None:
        for parameter in ("", ".weight", ".bias"):
            if natives[0] + parameter in state:
                parts = [state.pop(native + parameter) for native in natives]
                grouped = [part.reshape(n_groups, -1, *part.shape[1:]) for part in parts]
                published[name + parameter] = torch.cat(grouped, dim=1).flatten(0, 1).contiguous()

    old, new = "vision_model.embeddings", "model.vision_tower.embeddings"
    put(f"{old}.class_embedding", f"{new}.cls_token")
    put(f"{old}.position_embedding", f"{new}.position_embeddings")
    put(f"{old}.patch_embedding", f"{new}.patch_embeddings.projection")
    for number in range(model.config.vision_config.num_hidden_layers):
        old, new = f"vision_model.encoder.layers.{number}", f"model.vision_tower.encoder.layer.{number}"
        put(f"{old}.attn.qkv", *(f"{new}.attention.{part}_proj" for part in "qkv"))
        put(f"{old}.attn.proj", f"{new}.attention.projection_layer")
        put(f"{old}.attn.q_norm", f"{new}.attention.q_norm")
        put(f"{old}.attn.k_norm", f"{new}.attention.k_norm")
        put(f"{old}.mlp.fc1", f"{new}.mlp.fc1")
        put(f"{old}.mlp.fc2", f"{new}.mlp.fc2")
        put(f"{old}.norm1", f"{new}.layernorm_before")
        put(f"{old}.norm2", f"{new}.layernorm_after")
        put(f"{old}.ls1", f"{new}.lambda_1")
        put(f"{old}.ls2", f"{new}.lambda_2")
    put("mlp1.0", "model.multi_modal_projector.layer_norm")
    put("mlp1.1", "model.multi_modal_projector.linear_1")
    put("mlp1.3", "model.multi_modal_projector.linear_2")
    put("language_model.model.norm", "model.language_model.norm")
    is_internlm2 = text.model_type == "llama"
    put(
        f"language_model.model.{'tok_embeddings' if is_internlm2 else 'embed_tokens'}",
        "model.language_model.embed_tokens",
    )
    put(f"language_model.{'output' if is_internlm2 else 'lm_head'}", "lm_head")
    for number in range(text.num_hidden_layers):
        old, new = f"language_model.model.layers.{number}", f"model.language_model.layers.{number}"
        if is_internlm2:
            queries_keys_values = (f"{new}.self_attn.{part}_proj" for part in "qkv")
            put(f"{old}.attention.wqkv", *queries_keys_values, n_groups=text.num_key_value_heads)
            put(f"{old}.attention.wo", f"{new}.self_attn.o_proj")
            put(f"{old}.feed_forward.w1", f"{new}.mlp.gate_proj")
            put(f"{old}.feed_forward.w3", f"{new}.mlp.up_proj")
            put(f"{old}.feed_forward.w2", f"{new}.mlp.down_proj")
            put(f"{old}.attention_norm", f"{new}.input_layernorm")
            put(f"{old}.ffn_norm", f"{new}.post_attention_layernorm")
        else:
            for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
                put(f"{old}.{module}", f"{new}.{module}")
            for module in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
                put(f"{old}.{module}", f"{new}.{module}")
            for module in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
                put(f"{old}.{module}", f"{new}.{module}")
    assert not state, f"no published name for {list(state)}"
    return published


def native_state(published: dict[str, Any], config: InternVLConfig) -> dict[str, Any]:
    """Published weights split into native ones, by the layout under test."""
    return {
        native: torch.cat([published[rows.published][start:stop] for start, stop in rows.ranges])
        for native, rows in native_layout(config).items()
    }


def write_weights(folder: Path, state: dict[str, Any], *, n_shards: int = 2) -> None:
    """Shards with an index, as published."""
    names = list(state)
    weight_map = {}
    for number in range(n_shards):
        file = f"model-{number + 1:05d}-of-{n_shards:05d}.safetensors"
        part = names[number::n_shards]
        save_file({name: state[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_checkpoint(folder: Path, kind: str) -> InternVLForConditionalGeneration:
    """A published checkpoint in ``folder``; returns the native model it was made of."""
    folder.mkdir()
    if kind in QWEN:
        n_tokens = write_qwen_tokenizer(folder, QWEN3_ADDED if QWEN[kind] == "qwen3" else QWEN2_ADDED)
        model = native_model(kind, vocab_size=n_tokens + 5, image_token_id=n_tokens - 1)
    else:
        write_internlm2_tokenizer(folder)
        model = native_model(kind, vocab_size=INTERNLM2_VOCABULARY, image_token_id=INTERNLM2_ADDED["<IMG_CONTEXT>"])
    write_json(folder / "config.json", published_config(model.config))
    write_json(folder / "generation_config.json", {"_from_model_config": True, "eos_token_id": 2})
    write_weights(folder, published_state(model))
    for name in ("modeling_internvl_chat", "configuration_internvl_chat", "tokenization_internlm2"):
        (folder / f"{name}.py").write_text("raise SystemExit('remote code was run')\n")
    return model


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A published InternLM2-type checkpoint."""
    write_checkpoint(tmp_path / "src", "internlm2")
    return tmp_path / "src"


def state_of(folder: Path) -> dict[str, Any]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def inputs(image_token_id: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    ids = [5, 9, *[image_token_id] * IMAGE_TOKENS, 11, 6, 20]
    return {"input_ids": torch.tensor([ids]), "pixel_values": torch.randn(1, 3, SIDE, SIDE, generator=generator)}


# ---------------------------------------------------------------- the published equations


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Any, theta: float) -> Any:
    """Rotary embedding of (positions, heads, d): coordinate i turns with coordinate i + d/2."""
    d = x.shape[-1]
    angles = torch.arange(len(x))[:, None] * theta ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def causal(q: Any, k: Any, v: Any) -> Any:
    """Attention of one head, (positions, d) each."""
    scores = q @ k.T / math.sqrt(q.shape[-1])
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1) @ v


def internlm2_attention(x: Any, state: dict[str, Any], prefix: str, theta: float) -> Any:
    """From the fused tensor: (key/value head, its queries then k then v, d)."""
    per_group = HEADS // KEY_VALUE_HEADS
    fused = F.linear(x, state[f"{prefix}.wqkv.weight"], state.get(f"{prefix}.wqkv.bias"))
    fused = fused.view(len(x), KEY_VALUE_HEADS, per_group + 2, -1)
    heads = []
    for group in range(KEY_VALUE_HEADS):
        q = rotated(fused[:, group, :per_group], theta)
        k = rotated(fused[:, group, per_group : per_group + 1], theta)[:, 0]
        v = fused[:, group, per_group + 1]
        heads += [causal(q[:, number], k, v) for number in range(per_group)]
    return F.linear(torch.cat(heads, dim=-1), state[f"{prefix}.wo.weight"], state.get(f"{prefix}.wo.bias"))


def qwen_attention(x: Any, state: dict[str, Any], prefix: str, theta: float) -> Any:
    """Queries and keys of each head normalised before they turn, where the model has norms for them."""

    def heads(part: str, n: int) -> Any:
        weight, bias = state[f"{prefix}.{part}_proj.weight"], state.get(f"{prefix}.{part}_proj.bias")
        return F.linear(x, weight, bias).view(len(x), n, -1)

    q, k, v = heads("q", HEADS), heads("k", KEY_VALUE_HEADS), heads("v", KEY_VALUE_HEADS)
    if f"{prefix}.q_norm.weight" in state:
        q = rms_norm(q, state[f"{prefix}.q_norm.weight"], 1e-5)
        k = rms_norm(k, state[f"{prefix}.k_norm.weight"], 1e-5)
    q, k = rotated(q, theta), rotated(k, theta)
    groups = [number * KEY_VALUE_HEADS // HEADS for number in range(HEADS)]
    out = [causal(q[:, number], k[:, group], v[:, group]) for number, group in enumerate(groups)]
    return F.linear(torch.cat(out, dim=-1), state[f"{prefix}.o_proj.weight"])


def vision_attention(x: Any, state: dict[str, Any], prefix: str) -> Any:
    """From the fused tensor: (q k v, head, d), queries and keys normalised over all heads at once."""
    fused = F.linear(x, state[f"{prefix}.qkv.weight"], state.get(f"{prefix}.qkv.bias"))
    q, k, v = fused.view(len(x), 3, -1).unbind(1)
    if f"{prefix}.q_norm.weight" in state:
        q = rms_norm(q, state[f"{prefix}.q_norm.weight"], 1e-6)
        k = rms_norm(k, state[f"{prefix}.k_norm.weight"], 1e-6)
    heads = []
    for qh, kh, vh in zip(*(part.chunk(VISION_HEADS, dim=-1) for part in (q, k, v)), strict=True):
        heads.append((qh @ kh.T / math.sqrt(qh.shape[-1])).softmax(-1) @ vh)
    return F.linear(torch.cat(heads, dim=-1), state[f"{prefix}.proj.weight"], state[f"{prefix}.proj.bias"])


def pixel_shuffle_v2(grid: Any) -> Any:
    """Each output cell holds the four cells of its 2 × 2 block, row by row: (rows, columns, c) → (.., .., 4c)."""
    return torch.stack(
        [
            torch.stack(
                [
                    torch.cat(
                        [
                            grid[2 * i, 2 * j],
                            grid[2 * i, 2 * j + 1],
                            grid[2 * i + 1, 2 * j],
                            grid[2 * i + 1, 2 * j + 1],
                        ]
                    )
                    for j in range(grid.shape[1] // 2)
                ]
            )
            for i in range(grid.shape[0] // 2)
        ]
    )


def vision_features(pixels: Any, state: dict[str, Any], *, n_layers: int) -> Any:
    """Image embeddings of one tile, (tokens, hidden size of the language model)."""
    get = state.__getitem__
    patches = F.conv2d(
        pixels[None],
        get("vision_model.embeddings.patch_embedding.weight"),
        get("vision_model.embeddings.patch_embedding.bias"),
        stride=PATCH,
    )
    x = torch.cat([get("vision_model.embeddings.class_embedding")[0], patches[0].flatten(1).T])
    x = x + get("vision_model.embeddings.position_embedding")[0]

    def norm(x: Any, name: str) -> Any:
        if f"{name}.bias" in state:
            return F.layer_norm(x, x.shape[-1:], get(f"{name}.weight"), get(f"{name}.bias"), 1e-6)
        return rms_norm(x, get(f"{name}.weight"), 1e-6)

    for number in range(n_layers):
        layer = f"vision_model.encoder.layers.{number}"
        x = x + get(f"{layer}.ls1") * vision_attention(norm(x, f"{layer}.norm1"), state, f"{layer}.attn")
        hidden = F.gelu(
            F.linear(norm(x, f"{layer}.norm2"), get(f"{layer}.mlp.fc1.weight"), get(f"{layer}.mlp.fc1.bias"))
        )
        x = x + get(f"{layer}.ls2") * F.linear(hidden, get(f"{layer}.mlp.fc2.weight"), get(f"{layer}.mlp.fc2.bias"))
    side = SIDE // PATCH
    x = pixel_shuffle_v2(x[1:].view(side, side, -1)).flatten(0, 1)
    x = F.layer_norm(x, x.shape[-1:], get("mlp1.0.weight"), get("mlp1.0.bias"))
    x = F.gelu(F.linear(x, get("mlp1.1.weight"), get("mlp1.1.bias")))
    return F.linear(x, get("mlp1.3.weight"), get("mlp1.3.bias"))


INTERNLM2_NAMES = ("tok_embeddings", "output", "attention_norm", "attention", "ffn_norm",
                   "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")  # fmt: skip
QWEN_NAMES = ("embed_tokens", "lm_head", "input_layernorm", "self_attn", "post_attention_layernorm",
              "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip


def published_logits(state: dict[str, Any], input_ids: Any, pixel_values: Any, *, image_token_id: int) -> Any:
    """The whole published model, from its own tensors."""
    names = QWEN_NAMES if "language_model.lm_head.weight" in state else INTERNLM2_NAMES
    embeddings, head, attention_norm, attention, ffn_norm, w1, w3, w2 = names
    x = state[f"language_model.model.{embeddings}.weight"][input_ids[0]].clone()
    x[input_ids[0] == image_token_id] = vision_features(pixel_values[0], state, n_layers=2)
    for number in range(2):
        layer = f"language_model.model.layers.{number}"
        normed = rms_norm(x, state[f"{layer}.{attention_norm}.weight"], 1e-5)
        attend = internlm2_attention if names is INTERNLM2_NAMES else qwen_attention
        x = x + attend(normed, state, f"{layer}.{attention}", 1e6)
        normed = rms_norm(x, state[f"{layer}.{ffn_norm}.weight"], 1e-5)
        gate = F.silu(normed @ state[f"{layer}.{w1}.weight"].T)
        x = x + (gate * (normed @ state[f"{layer}.{w3}.weight"].T)) @ state[f"{layer}.{w2}.weight"].T
    return rms_norm(x, state["language_model.model.norm.weight"], 1e-5) @ state[f"language_model.{head}.weight"].T


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_is_the_same_bit_for_bit_and_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "src", kind)
    summary = convert_internvl(tmp_path / "src", tmp_path / "dst")
    loaded, problems = InternVLForConditionalGeneration.from_pretrained(tmp_path / "dst", output_loading_info=True)
    assert not any(problems.values())
    expected, converted = model.state_dict(), loaded.state_dict()
    assert expected.keys() == converted.keys() == state_of(tmp_path / "dst").keys()
    assert all(torch.equal(expected[name], converted[name]) for name in expected)
    given = inputs(model.config.image_token_id)
    assert torch.equal(model(**given).logits, loaded.eval()(**given).logits)
    assert summary.image_token_id == loaded.config.image_token_id == model.config.image_token_id
    assert summary.n_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert summary.language_model == QWEN.get(kind, "llama")
    assert not loaded.config.tie_word_embeddings


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_computes_what_the_published_equations_do(kind: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "src", kind)
    summary = convert_internvl(tmp_path / "src", tmp_path / "dst")
    native = InternVLForConditionalGeneration.from_pretrained(tmp_path / "dst").eval()
    given = inputs(summary.image_token_id)
    with torch.no_grad():
        logits = native(**given).logits[0]
        expected = published_logits(state_of(tmp_path / "src"), **given, image_token_id=summary.image_token_id)
    assert expected.std() > 0.1  # what is compared is not all zeros
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_fused_attention_is_split_as_internlm2_uses_it() -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = native_model("internlm2", vocab_size=30, image_token_id=5)
    state = published_state(model)
    generator = torch.Generator().manual_seed(0)
    # 2 groups of 2 queries, a key and a value, 8 rows each: 2 · 4 · 8 = 64 rows
    name = "language_model.model.layers.1.attention.wqkv.weight"
    assert state[name].shape == (64, 32)
    state[name] = torch.randn(64, 32, generator=generator)
    model.load_state_dict(native_state(state, model.config))
    x = torch.randn(6, 32, generator=generator)
    position = LlamaRotaryEmbedding(model.config.text_config)(x[None], torch.arange(6)[None])
    mask = torch.full((1, 1, 6, 6), -torch.inf).triu(1)
    attention = model.model.language_model.layers[1].self_attn
    with torch.no_grad():
        native = attention(x[None], position_embeddings=position, attention_mask=mask)[0][0]
    expected = internlm2_attention(x, state, "language_model.model.layers.1.attention", 1e6)
    torch.testing.assert_close(native, expected, rtol=1e-4, atol=1e-4)


def test_fused_rows_go_group_by_group_to_queries_keys_and_values() -> None:
    text = LlamaConfig(
        vocab_size=9,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    vision = InternVLVisionConfig(hidden_size=6, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    layout = native_layout(InternVLConfig(vision_config=vision, text_config=text, tie_word_embeddings=False))
    # heads of two rows; group 0 holds q0 q1 k0 v0, group 1 holds q2 q3 k1 v1
    prefix = "model.language_model.layers.0.self_attn"
    for parameter in ("weight", "bias"):
        assert layout[f"{prefix}.q_proj.{parameter}"].ranges == [(0, 4), (8, 12)]
        assert layout[f"{prefix}.k_proj.{parameter}"].ranges == [(4, 6), (12, 14)]
        assert layout[f"{prefix}.v_proj.{parameter}"].ranges == [(6, 8), (14, 16)]
    # one group: six rows each
    rows = [layout[f"model.vision_tower.encoder.layer.0.attention.{part}_proj.weight"].ranges for part in "qkv"]
    assert rows == [[(0, 6)], [(6, 12)], [(12, 18)]]


def test_the_vision_towers_fused_attention_is_split_as_published(tmp_path: Path) -> None:
    model = native_model("internlm2-bias-6b-vit", vocab_size=30, image_token_id=5)
    state = published_state(model)
    generator = torch.Generator().manual_seed(1)
    for number in range(2):
        name = f"vision_model.encoder.layers.{number}.attn.qkv.weight"
        state[name] = torch.randn(state[name].shape, generator=generator)
    model.load_state_dict(native_state(state, model.config))
    x = torch.randn(17, 16, generator=generator)
    with torch.no_grad():
        native = model.model.vision_tower.encoder.layer[1].attention(x[None])[0][0]
    torch.testing.assert_close(native, vision_attention(x, state, "vision_model.encoder.layers.1.attn"))
    # the product of queries and keys would not tell their norms apart
    norm = state["vision_model.encoder.layers.1.attn.q_norm.weight"]
    assert torch.equal(norm, model.model.vision_tower.encoder.layer[1].attention.q_norm.weight)


def test_the_native_pixel_shuffle_is_the_published_version_two() -> None:
    model = native_model("qwen2", vocab_size=30, image_token_id=5)
    grid = torch.arange(4 * 6 * 3.0).view(4, 6, 3)
    shuffled = model.model.pixel_shuffle(grid[None], scale_factor=0.5)[0]
    assert torch.equal(shuffled, pixel_shuffle_v2(grid))


def test_positions_beyond_the_trained_length_turn_as_published(published: Path, tmp_path: Path) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    convert_internvl(published, tmp_path / "dst")
    text = InternVLConfig.from_pretrained(tmp_path / "dst").text_config
    rotary = LlamaRotaryEmbedding(text)
    for length in (16, 40):
        # dynamic NTK, factor 2, trained length 16, d = 8: the base grows with the length beyond 16
        grown = 1e6 * (2 * max(length, 16) / 16 - 1) ** (8 / 6)
        cos, _ = rotary(torch.zeros(1, length, 32), torch.arange(length)[None])
        expected = torch.cos(torch.arange(length)[:, None] * grown ** (-torch.arange(0, 8, 2) / 8))
        torch.testing.assert_close(cos[0, :, :4], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_has_its_published_name_and_rows(kind: str) -> None:
    model = native_model(kind, vocab_size=30, image_token_id=5)
    published = published_state(model)
    layout = native_layout(model.config)
    assert {rows.published for rows in layout.values()} == published.keys()
    state, native = model.state_dict(), native_state(published, model.config)
    assert state.keys() == native.keys()
    assert all(torch.equal(state[name], native[name]) for name in state)


@pytest.mark.parametrize(("dtype", "n_bytes"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_weights_are_cast_to_the_given_dtype(dtype: str, n_bytes: int, published: Path, tmp_path: Path) -> None:
    summary = convert_internvl(published, tmp_path / "dst", dtype=dtype)
    assert {tensor.dtype for tensor in state_of(tmp_path / "dst").values()} == {getattr(torch, dtype)}
    assert (summary.dtype, summary.n_bytes) == (dtype, n_bytes * summary.n_parameters)
    assert json.loads((tmp_path / "dst" / "config.json").read_text())["dtype"] == dtype


def test_published_types_are_kept(published: Path, tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in state_of(published).items()}
    state["mlp1.0.weight"] = state["mlp1.0.weight"].float()
    write_weights(published, state)
    assert convert_internvl(published, tmp_path / "dst").dtype == "bfloat16"
    converted = state_of(tmp_path / "dst")
    assert [name for name in converted if converted[name].dtype != torch.bfloat16] == [
        "model.multi_modal_projector.layer_norm.weight"
    ]


def test_files_are_no_larger_than_the_given_size(published: Path, tmp_path: Path) -> None:
    whole = convert_internvl(published, tmp_path / "one")
    assert whole.files == ("model.safetensors",)
    summary = convert_internvl(published, tmp_path / "many", max_shard_size="20KB")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == summary.n_bytes == whole.n_bytes
    modes = {path.stat().st_mode for path in (tmp_path / "many").iterdir()}
    assert len(modes) == 1  # who may read the config may read the weights
    assert set(index["weight_map"].values()) == set(summary.files)
    for name in summary.files:
        with safe_open(tmp_path / "many" / name, "pt") as file:
            assert set(file.keys()) == {tensor for tensor, at in index["weight_map"].items() if at == name}
            tensors = [file.get_tensor(tensor) for tensor in file.keys()]
        # the embeddings alone are larger than a file
        assert sum(tensor.nbytes for tensor in tensors) <= 20_000 or len(tensors) == 1
    single, many = state_of(tmp_path / "one"), state_of(tmp_path / "many")
    assert single.keys() == many.keys()
    assert all(torch.equal(single[name], many[name]) for name in single)


def test_a_single_weight_file_without_an_index_is_read(published: Path, tmp_path: Path) -> None:
    state = state_of(published)
    for file in published.glob("model*"):
        file.unlink()
    save_file(state, published / "model.safetensors")
    assert convert_internvl(published, tmp_path / "dst").n_source_tensors == len(state)


@pytest.mark.parametrize(("size", "n_files"), [("5GB", 1), ("1.5 MB", 1), ("2000 kb", 1), ("3KB", 2)])
def test_sizes_are_read(size: str, n_files: int) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards

    config = ConvertInternVLConfig(max_shard_size=size)
    # 500 numbers of 4 bytes are 2 kB
    state = {name: torch.empty(500, device="meta") for name in "ab"}
    split = split_torch_state_dict_into_shards(state, max_shard_size=config.max_shard_size)
    assert len(split.filename_to_tensors) == n_files


@pytest.mark.parametrize("size", ["five", "5", "0GB", "0.0KB", "5IB", "-5GB", ""])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="such as 5GB"):
        ConvertInternVLConfig(max_shard_size=size)


def test_only_one_files_tensors_are_in_memory(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc
    import weakref

    import safetensors.torch

    seen: list[weakref.ref[Any]] = []

    def save(tensors: dict[str, Any], path: Path, metadata: dict[str, str]) -> None:
        gc.collect()
        alive = [ref for ref in seen if ref() is not None]
        assert not alive  # those of the files before
        assert sum(tensor.nbytes for tensor in tensors.values()) <= 20_000 or len(tensors) == 1
        seen.extend(weakref.ref(tensor) for tensor in tensors.values())
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", save)
    summary = convert_internvl(published, tmp_path / "dst", max_shard_size="20KB")
    assert len(summary.files) > 3
    assert len(seen) == summary.n_tensors


# ---------------------------------------------------------------- what is wrong is said, and nothing is left behind


def refused(src: Path, dst: Path, error: type[Exception] = DataError) -> str:
    with pytest.raises(error) as raised:
        convert_internvl(src, dst)
    assert isinstance(raised.value, MprmError)
    assert sorted(path.name for path in dst.parent.iterdir()) == ["src"]
    return str(raised.value)


def test_all_wrong_tensors_are_named_in_one_error(published: Path, tmp_path: Path) -> None:
    state = state_of(published)
    del state["language_model.model.layers.1.attention.wqkv.weight"]
    state["language_model.model.layers.0.ffn_norm.weight"] = torch.zeros(31)
    state["mlp1.3.bias"] = torch.zeros(32, dtype=torch.int8)
    state["vision_model.head.weight"] = torch.zeros(2, 3)
    write_weights(published, state)
    text = refused(published, tmp_path / "dst")
    assert "4 problems" in text
    version = transformers.__version__
    assert f"layers.1.attention.wqkv.weight: missing; transformers {version} expects shape (64, 32)" in text
    assert "layers.0.ffn_norm.weight: shape (31,) in model-0000" in text
    assert "expected (32,)" in text
    assert "mlp1.3.bias: type I8" in text
    assert "vision_model.head.weight: unexpected, shape (2, 3)" in text


def test_a_cut_file_and_a_missing_one_are_named(published: Path, tmp_path: Path) -> None:
    state = state_of(published)
    write_weights(published, state, n_shards=3)
    for file in published.glob("*of-00002*"):
        file.unlink()
    first = published / "model-00001-of-00003.safetensors"
    first.write_bytes(first.read_bytes()[:-10])
    (published / "model-00003-of-00003.safetensors").unlink()
    text = refused(published, tmp_path / "dst")
    assert "2 problems" in text
    assert "model-00001-of-00003.safetensors: cut short" in text
    assert "model-00003-of-00003.safetensors: not there, though model.safetensors.index.json lists it" in text


def test_tensors_are_read_from_the_files_that_hold_them(published: Path, tmp_path: Path) -> None:
    path = published / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = index["weight_map"]
    files["mlp1.0.bias"] = ({*files.values()} - {files["mlp1.0.bias"]}).pop()
    write_json(path, index)
    convert_internvl(published, tmp_path / "dst")
    projector = state_of(tmp_path / "dst")["model.multi_modal_projector.layer_norm.bias"]
    assert torch.equal(projector, state_of(published)["mlp1.0.bias"])


def test_a_tensor_in_two_files_is_named(published: Path, tmp_path: Path) -> None:
    save_file({"mlp1.0.bias": torch.zeros(64)}, published / "z.safetensors")
    text = refused(published, tmp_path / "dst")
    assert re.search(
        r"mlp1\.0\.bias: in model-0000\d-of-00002\.safetensors and in z\.safetensors; expected once", text
    )


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "x.bin", 3])
def test_an_index_that_leads_elsewhere_is_refused(name: Any, published: Path, tmp_path: Path) -> None:
    path = published / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["mlp1.0.bias"] = name
    write_json(path, index)
    assert f"{name}: not there" in refused(published, tmp_path / "dst")
    write_json(path, {"weight_map": [name]})
    assert "no weight_map" in refused(published, tmp_path / "dst")


def test_pickled_weights_are_refused(published: Path, tmp_path: Path) -> None:
    for file in published.glob("model*"):
        file.unlink()
    (published / "pytorch_model-00001-of-00002.bin").touch()
    text = refused(published, tmp_path / "dst", InputNotFoundError)
    assert "no tensors in .safetensors files (.bin files are pickles, which can run code, and are not read)" in text


def changed(src: Path, where: str, value: Any) -> None:
    """Set ``a.b`` in config.json; None removes it."""
    config = json.loads((src / "config.json").read_text())
    *way, last = where.split(".")
    inner = config
    for name in way:
        inner = inner[name]
    inner[last] = value
    if value is None:
        del inner[last]
    write_json(src / "config.json", config)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("model_type", "llava", "model_type is 'llava'; expected 'internvl_chat'"),
        ("ps_version", "v1", "ps_version is 'v1'; expected 'v2'"),
        ("select_layer", -4, "select_layer is -4; expected -1"),
        ("ps_version", None, "ps_version is None; expected 'v2'"),
        ("template", "Hermes-2", "template is 'Hermes-2'; expected 'internvl2_5'"),
        ("use_llm_lora", 16, "use_llm_lora is 16; expected 0"),
        ("force_image_size", 56, "force_image_size is 56; expected None or 28"),
        ("use_thumbnail", False, "use_thumbnail is False; expected True"),
        (
            "llm_config.architectures",
            ["Phi3ForCausalLM"],
            "is ['Phi3ForCausalLM']; expected InternLM2ForCausalLM or Qwen2ForCausalLM or Qwen3ForCausalLM, no mixture",
        ),
        ("llm_config.architectures", ["Qwen3MoeForCausalLM"], "is ['Qwen3MoeForCausalLM']; expected InternLM2"),
        ("llm_config", {"architectures": ["GptOssForCausalLM"]}, "is ['GptOssForCausalLM']; expected InternLM2"),
        ("llm_config", {"architectures": "Qwen3ForCausalLM"}, "is 'Qwen3ForCausalLM'; expected InternLM2"),
        ("llm_config.rope_scaling", {"type": "yarn", "factor": 2.0}, "rope_scaling.type is 'yarn'"),
        ("llm_config.rope_scaling", {"type": "dynamic"}, "rope_scaling.factor is None; expected a number above 0"),
        ("llm_config.rope_scaling", "dynamic", "llm_config.rope_scaling is 'dynamic'; expected an object"),
        ("llm_config.rope_theta", None, "llm_config.rope_theta is None; expected a number above 0"),
        (
            "vision_config.norm_type",
            "batch_norm",
            "cannot set up the model that it describes (KeyError: 'batch_norm')",
        ),
        ("vision_config.qkv_bias", None, "cannot set up the model that it describes (KeyError: 'qkv_bias')"),
        ("vision_config", None, "vision_config is None; expected an object"),
        ("vision_config", [], "vision_config is []; expected an object"),
        ("vision_config.hidden_size", "16", "vision_config.hidden_size is '16'; expected a number above 0"),
        ("vision_config.qkv_bias", 1, "Field 'attention_bias' expected bool, got int"),
        (
            "llm_config.num_key_value_heads",
            3,
            "llm_config.num_attention_heads % num_key_value_heads is 1; expected 0",
        ),
        ("vision_config.num_attention_heads", 3, "embed_dim must be divisible by num_heads"),
        ("llm_config.num_key_value_heads", 0, "num_key_value_heads is 0; expected a number above 0"),
        ("downsample_ratio", 0, "downsample_ratio is 0; expected 1.0 or 0.5 or 0.25"),
        ("downsample_ratio", float("nan"), "config.json: not a JSON object"),
        # 4 patches a side: blocks of 1, 2 or 4
        ("downsample_ratio", 0.3, "downsample_ratio is 0.3; expected 1.0 or 0.5 or 0.25"),
        ("force_image_size", 0, "force_image_size is 0; expected None or 28"),
        ("max_dynamic_patch", -1, "max_dynamic_patch are (1, -1); expected whole numbers above 0"),
        ("min_dynamic_patch", 13, "max_dynamic_patch are (13, 12); expected"),
        ("min_dynamic_patch", "one", "max_dynamic_patch are ('one', 12); expected"),
        ("vision_config.patch_size", 0, "vision_config.patch_size is 0; expected a number above 0"),
        ("llm_config.hidden_size", 32.0, "Field 'hidden_size' expected int, got float"),
        ("max_dynamic_patch", 2.5, "max_dynamic_patch are (1, 2.5); expected whole numbers above 0"),
        ("vision_config.dropout", 1.5, "dropout probability has to be between 0 and 1, but got 1.5"),
        ("llm_config.rms_norm_eps", float("inf"), "config.json: not a JSON object"),
        (
            "llm_config.hidden_act",
            "zork",
            "transformers cannot set up the model that it describes (KeyError: 'zork')",
        ),
        (
            "llm_config.hidden_size",
            4 * 10**14,
            "transformers cannot set up the model that it describes (RuntimeError",
        ),
    ],
)
def test_a_config_that_the_native_class_cannot_follow_is_refused(
    where: str, value: Any, said: str, published: Path, tmp_path: Path
) -> None:
    changed(published, where, value)
    assert said in refused(published, tmp_path / "dst")


def test_other_numbers_of_layers_than_the_weights_have_are_refused(published: Path, tmp_path: Path) -> None:
    changed(published, "llm_config.num_hidden_layers", 3)
    text = refused(published, tmp_path / "dst")
    assert "7 problems" in text  # two projections of attention, three of the MLP, two norms
    assert "language_model.model.layers.2.attention.wqkv.weight: missing" in text
    changed(published, "llm_config.num_hidden_layers", 1)
    assert "language_model.model.layers.1.attention.wqkv.weight: unexpected" in refused(published, tmp_path / "dst")
    # a model of so many layers is not set up
    changed(published, "vision_config.num_hidden_layers", 10**15)
    said = "vision_config.num_hidden_layers is 1000000000000000; expected at most 1,000"
    assert said in refused(published, tmp_path / "dst")


def test_a_single_weight_file_that_is_cut_short_is_named_alone(published: Path, tmp_path: Path) -> None:
    state = state_of(published)
    for file in published.glob("model*"):
        file.unlink()
    save_file(state, published / "model.safetensors")
    whole = (published / "model.safetensors").read_bytes()
    (published / "model.safetensors").write_bytes(whole[:-10])
    text = refused(published, tmp_path / "dst")
    assert "1 problems" in text
    assert "model.safetensors: cut short" in text
    save_file({}, published / "model.safetensors")
    assert "has no tensors" in refused(published, tmp_path / "dst", InputNotFoundError)


def test_a_norm_of_queries_and_keys_with_another_epsilon_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "src", "internlm2-bias-6b-vit")
    changed(tmp_path / "src", "vision_config.layer_norm_eps", 1e-5)
    assert "layer_norm_eps is 1e-05; expected 1e-06" in refused(tmp_path / "src", tmp_path / "dst")


def test_a_native_checkpoint_is_left_alone(published: Path, tmp_path: Path) -> None:
    changed(published, "model_type", "internvl")
    assert "native layout already" in refused(published, tmp_path / "dst", ConfigError)


def test_broken_and_missing_files_are_named(published: Path, tmp_path: Path) -> None:
    (published / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json: not a JSON object" in refused(published, tmp_path / "dst")
    (published / "tokenizer_config.json").unlink()
    assert "tokenizer_config.json is not there" in refused(published, tmp_path / "dst", InputNotFoundError)
    assert "hf download" in refused(tmp_path / "src" / "nowhere", tmp_path / "dst", InputNotFoundError)


def test_an_existing_output_needs_force(published: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    convert_internvl(published, dst, max_shard_size="20KB")
    with pytest.raises(OutputExistsError, match="--force"):
        convert_internvl(published, dst)
    assert (dst / "model.safetensors.index.json").exists()
    convert_internvl(published, dst, force=True)
    assert not (dst / "model.safetensors.index.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dst", "src"]


def test_force_replaces_conversions_only_and_a_failure_leaves_the_old_one(published: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"does not list as written by mprm convert-internvl \(thesis\.tex\)"):
        convert_internvl(published, home, force=True)
    assert (home / "thesis.tex").exists()
    for near in (published / "native", published, published.parent):
        with pytest.raises(ConfigError, match="lie in one another"):
            convert_internvl(published, near, force=True)
    dst = tmp_path / "dst"
    convert_internvl(published, dst)
    (published / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(DataError):
        convert_internvl(published, dst, force=True)
    assert InternVLConfig.from_pretrained(dst).model_type == "internvl"


@pytest.mark.parametrize("other", ["mprm.json", "train.json", "checkpoint-10"])
def test_force_never_replaces_a_folder_that_holds_anything_else(other: str, published: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    convert_internvl(published, run_folder)
    (run_folder / other).mkdir()
    with pytest.raises(ConfigError, match=rf"convert-internvl \({other}\) and is not replaced"):
        convert_internvl(published, run_folder, force=True)
    (run_folder / other).rmdir()
    convert_internvl(published, run_folder, force=True)


@pytest.mark.parametrize("manifest", [None, "", "[]", '{"files": 3}'])
def test_force_never_replaces_a_native_checkpoint_that_was_not_converted(
    manifest: str | None, published: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    convert_internvl(published, dst)
    before = {path.name for path in dst.iterdir()}
    assert "mprm_conversion.json" in before
    (dst / "mprm_conversion.json").unlink()
    if manifest is not None:
        (dst / "mprm_conversion.json").write_text(manifest)
    with pytest.raises(ConfigError, match=r"files that mprm_conversion\.json does not list .* and \d+ more\)"):
        convert_internvl(published, dst, force=True)
    assert before - {path.name for path in dst.iterdir()} <= {"mprm_conversion.json"}


def test_an_empty_folder_is_filled_and_a_file_is_left_alone(published: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    convert_internvl(published, tmp_path / "empty", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is no folder and is not replaced"):
        convert_internvl(published, tmp_path / "file", force=True)


def test_a_weight_file_that_cannot_be_written_is_named(published: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")

    # the weights are 180 KB; a limit of the system's own, so that the error is the one that safetensors makes of it
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*dst/model\.safetensors'"):
            convert_internvl(published, tmp_path / "dst")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize(
    ("written_by", "error", "file"),
    [
        ("transformers.InternVLConfig.save_pretrained", OSError(28, "No space left on device"), "config.json"),
        # as tokenizers raises it
        (
            "transformers.PreTrainedTokenizerBase.save_pretrained",
            Exception("No space left on device (os error 28)"),
            "tokenizer.json",
        ),
        ("pathlib.Path.write_text", OSError(28, "No space left on device"), "preprocessor_config.json"),
    ],
)
def test_a_small_file_that_cannot_be_written_is_named(
    written_by: str, error: Exception, file: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(written_by, full)
    with pytest.raises(OSError, match=rf"No space left on device.*{tmp_path}/dst/{file}'"):
        convert_internvl(published, tmp_path / "dst")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_write_that_fails_halfway_leaves_nothing(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="no space"):
        convert_internvl(published, tmp_path / "dst")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_head_tied_to_the_embeddings_stays_tied(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "src", "qwen2")
    changed(tmp_path / "src", "llm_config.tie_word_embeddings", True)
    summary = convert_internvl(tmp_path / "src", tmp_path / "own")
    assert any("a separate head" in note for note in summary.notes)
    own = InternVLForConditionalGeneration.from_pretrained(tmp_path / "own")
    assert torch.equal(own.lm_head.weight, model.lm_head.weight)

    state = state_of(tmp_path / "src")
    del state["language_model.lm_head.weight"]
    write_weights(tmp_path / "src", state)
    assert convert_internvl(tmp_path / "src", tmp_path / "tied").notes == ()
    tied = InternVLForConditionalGeneration.from_pretrained(tmp_path / "tied")
    assert tied.config.tie_word_embeddings
    assert torch.equal(tied.lm_head.weight, model.model.language_model.embed_tokens.weight)


def test_stochastic_depth_is_left_out_with_a_note(published: Path, tmp_path: Path) -> None:
    changed(published, "vision_config.drop_path_rate", 0.1)
    (note,) = convert_internvl(published, tmp_path / "dst").notes
    assert "drop_path_rate 0.1" in note


# ---------------------------------------------------------------- tokenizer, template, processors


def test_the_internlm2_tokenizer_loads_without_remote_code_and_keeps_every_id(
    published: Path, tmp_path: Path
) -> None:
    convert_internvl(published, tmp_path / "dst")
    assert not list((tmp_path / "dst").glob("*.py"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "dst")
    for text, number in INTERNLM2_ADDED.items():
        assert tokenizer.convert_tokens_to_ids(text) == number
        assert tokenizer.encode(text, add_special_tokens=False) == [number]
    assert len(tokenizer) == INTERNLM2_VOCABULARY
    named = (tokenizer.start_image_token, tokenizer.end_image_token, tokenizer.context_image_token)
    assert named == ("<img>", "</img>", "<IMG_CONTEXT>")
    assert tokenizer.context_image_token_id == INTERNLM2_ADDED["<IMG_CONTEXT>"]
    assert tokenizer.video_token in INTERNLM2_ADDED  # no id beyond the embedding table
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.model_max_length == 8192


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # th is joined first, then the; no piece joins "the" with the space after it
        ("the cat", ["the", "▁", "c", "a", "t"]),
        # of ▁t and th the better one, th, comes first, then the, then ▁the
        (" the", ["▁the"]),
        # é is no piece: its two bytes in UTF-8 are C3 A9
        ("é", ["<0xC3>", "<0xA9>"]),
        # user-defined pieces are found whole, and text around control tokens is cut on its own
        ("t[UNUSED_TOKEN_0]h", ["t", "[UNUSED_TOKEN_0]", "h"]),
        ("th<|im_end|>\nth", ["th", "<|im_end|>", "\n", "th"]),
        ("<img> the</img>", ["<img>", "▁the", "</img>"]),
    ],
)
def test_text_is_cut_as_the_sentencepiece_model_cuts_it(text: str, pieces: list[str], tmp_path: Path) -> None:
    write_internlm2_tokenizer(tmp_path)
    tokenizer = build_tokenizer(tmp_path, vocab_size=INTERNLM2_VOCABULARY)
    ids = {**ID, **INTERNLM2_ADDED}
    assert tokenizer(text)["input_ids"] == [1, *(ids[piece] for piece in pieces)]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def cut(path: Path, text: str, **settings: Any) -> list[str]:
    path.write_bytes(sentencepiece_bytes(PIECES, **settings))
    return list(sentencepiece_backend(path, {}).encode(text).tokens)


def test_the_models_own_normalisation_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    assert cut(path, "the") == ["the"]
    assert cut(path, "the", prefix=1) == ["▁the"]
    assert cut(path, "  t   h ") == ["▁", "▁t", "▁", "▁", "▁", "h", "▁"]
    assert cut(path, "  t   h ", spaces=1) == ["t", "▁", "h"]
    # a double array that maps A to B: from the root (offset 1) A leads to 1 ^ 0x41 = 64, whose value is at 65
    units = [0] * 256
    units[0], units[64], units[65] = 1 << 10, 0x41 | 1 << 8 | 1 << 10, 1 << 31
    charsmap = struct.pack("<I", 1024) + struct.pack("<256I", *units) + b"B\0"
    assert cut(path, "tA") == ["t", "A"]
    assert cut(path, "tA", charsmap=charsmap) == ["t", "B"]


def test_other_sentencepiece_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    good = sentencepiece_bytes(PIECES)
    for data, said in (
        (good[:-3], "not a SentencePiece model"),
        (b"\xff" * 20, "not a SentencePiece model"),
        (sentencepiece_bytes(PIECES, model_type=1), "of type 1; expected 2"),
        (sentencepiece_bytes(PIECES[1:]), "no piece '<unk>' for unknown text"),
        (sentencepiece_bytes([*PIECES, ("at", -20.0, 5)]), "cannot skip pieces of type UNUSED, such as 'at'"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=said):
            sentencepiece_backend(path, {})


TEXTS = [
    "the cat sat on the mat, then the hat; 1234 cats in 56 hats",
    "def rank(x):\n    return sorted(x)  # smallest first",
    "aaaa aa aaa aaaaaa bbbb abab     baba",
    "你是书生·万象，英文名是InternVL。Größe, café, ﬁne １２３",
]


@pytest.mark.parametrize(
    "settings",
    [
        # as InternLM2's
        {
            "byte_fallback": True,
            "add_dummy_prefix": False,
            "remove_extra_whitespaces": False,
            "normalization_rule_name": "identity",
            "user_defined_symbols": ["[UNUSED_TOKEN_0]"],
        },
        {"byte_fallback": True, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc"},
    ],
)
@pytest.mark.parametrize("has_shuffled_scores", [False, True])
def test_random_text_is_encoded_as_sentencepiece_does(
    settings: dict[str, Any], has_shuffled_scores: bool, tmp_path: Path
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    from transformers.convert_slow_tokenizer import import_protobuf

    path = tmp_path / "tokenizer.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 20),
            model_writer=file,
            model_type="bpe",
            vocab_size=400,
            hard_vocab_limit=False,
            minloglevel=2,
            **settings,
        )
    rng = random.Random(0)
    if has_shuffled_scores:
        model = import_protobuf().ModelProto.FromString(path.read_bytes())
        normal = [piece for piece in model.pieces if piece.type == piece.NORMAL]
        for piece, score in zip(normal, rng.sample(range(len(normal)), len(normal)), strict=True):
            piece.score = -score
        path.write_bytes(model.SerializeToString())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    backend = sentencepiece_backend(path, {})
    letters = [*"".join(TEXTS), "  ", "\t", "é", "😀", "[UNUSED_TOKEN_0]", "the", " the", "aa"]
    for _ in range(500):
        text = "".join(rng.choices(letters, k=rng.randint(1, 40)))
        assert backend.encode(text).ids == processor.encode(text)


def test_ids_that_do_not_fit_are_named(published: Path, tmp_path: Path) -> None:
    listed = {**INTERNLM2_ADDED, "<IMG_CONTEXT>": UNUSED + 9}
    decoder = {str(n): {"content": text, **SPECIAL} for text, n in listed.items()}
    write_internlm2_tokenizer(published, added_tokens_decoder=decoder)
    assert f"<IMG_CONTEXT> has id {UNUSED + 5}; expected {UNUSED + 9}" in refused(published, tmp_path / "dst")
    decoder[str(UNUSED + 5)] = decoder[str(UNUSED + 9)]
    write_internlm2_tokenizer(published, added_tokens_decoder=decoder)
    assert f"<IMG_CONTEXT> has id {UNUSED + 5}; expected {UNUSED + 9}" in refused(published, tmp_path / "dst")
    write_internlm2_tokenizer(published, pad_token="<pad>")
    assert "not in the vocabulary:\n  pad_token '<pad>'" in refused(published, tmp_path / "dst")
    write_internlm2_tokenizer(published)
    changed(published, "llm_config.vocab_size", INTERNLM2_VOCABULARY - 1)
    assert f"the highest id is {INTERNLM2_VOCABULARY - 1}" in refused(published, tmp_path / "dst")


def test_broken_tokenizer_files_are_named(tmp_path: Path) -> None:
    src = tmp_path / "src"
    write_checkpoint(src, "qwen2")
    (src / "merges.txt").write_text("q zz\n")
    assert "vocab.json or merges.txt is broken" in refused(src, tmp_path / "dst")
    write_internlm2_tokenizer(src, added_tokens_decoder={"one": {"content": "<img>"}})
    assert "added_tokens_decoder cannot be read" in refused(src, tmp_path / "dst")


def test_tokens_that_internvl_needs_are_asked_for(published: Path, tmp_path: Path) -> None:
    kept = {text: n for text, n in INTERNLM2_ADDED.items() if n <= UNUSED}
    write_internlm2_tokenizer(
        published, added_tokens_decoder={str(n): {"content": text, **SPECIAL} for text, n in kept.items()}
    )
    text = refused(published, tmp_path / "dst")
    assert all(f"{token} is not among the added tokens" in text for token in ("<|im_end|>", "<img>", "<IMG_CONTEXT>"))
    (published / "tokenizer.model").unlink()
    assert "expected tokenizer.model (InternLM2)" in refused(published, tmp_path / "dst", InputNotFoundError)


@pytest.mark.parametrize("kind", ["qwen2", "internvl3_5"])
def test_the_qwen_tokenizer_keeps_every_id(kind: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "src", kind)
    convert_internvl(tmp_path / "src", tmp_path / "dst")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "dst")
    added = json.loads((tmp_path / "src" / "added_tokens.json").read_text())
    assert all(tokenizer.encode(text) == [number] for text, number in added.items())
    # "Ġthe" is the last of 256 bytes and three words
    assert tokenizer.encode("the the<img>") == [257, 258, added["<img>"]]
    assert tokenizer.decode(tokenizer.encode("<img><tool_call>é the"), skip_special_tokens=True) == "<tool_call>é the"
    assert tokenizer.bos_token is None
    assert tokenizer.context_image_token_id == added["<IMG_CONTEXT>"]
    assert len(tokenizer) == 259 + len(added)


SYSTEM = "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"


@pytest.mark.parametrize(
    ("kind", "bos"), [("internlm2", "<s>"), ("qwen2", ""), ("internvl3", ""), ("internvl3_5", "")]
)
def test_the_chat_template_renders_the_published_conversation(kind: str, bos: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "src", kind)
    convert_internvl(tmp_path / "src", tmp_path / "dst")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "dst")

    def rendered(*messages: tuple[str, Any], reply: bool = True) -> str:
        chat = [{"role": role, "content": content} for role, content in messages]
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=reply))

    system = f"{bos}<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    user = "<|im_start|>user\n<IMG_CONTEXT>\n the \nq<|im_end|>\n"
    parts = [{"type": "image"}, {"type": "text", "text": " the \nq"}]
    assert rendered(("user", parts)) == system + user + "<|im_start|>assistant\n"
    assert rendered(("user", "<IMG_CONTEXT>\n the \nq"), ("assistant", "a"), reply=False) == (
        system + user + "<|im_start|>assistant\na<|im_end|>\n"
    )
    assert rendered(("system", "S"), ("user", "q"), reply=False) == (
        f"{bos}<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
    )
    with pytest.raises(Exception, match="text and images, not of video"):
        rendered(("user", [{"type": "video"}]))


def test_the_image_processor_makes_the_published_tiles(published: Path, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    convert_internvl(published, tmp_path / "dst")
    processor = GotOcr2ImageProcessorPil.from_pretrained(tmp_path / "dst")
    # 2 : 1 is two tiles of 28 pixels and a thumbnail
    made = processor(Image.new("RGB", (56, 28), (255, 0, 0)))
    assert list(made["num_patches"]) == [3]
    tiles = np.stack(made["pixel_values"])
    assert tiles.shape == (3, 3, SIDE, SIDE)
    # ImageNet: (1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0 - 0.406) / 0.225
    np.testing.assert_allclose(tiles[0, :, 0, 0], [2.2489, -2.0357, -1.8044], atol=1e-4)
    assert (processor.min_patches, processor.max_patches) == (1, 12)


def test_a_turn_ends_where_the_published_chat_ends_it(published: Path, tmp_path: Path) -> None:
    write_json(published / "generation_config.json", {"_from_model_config": True, "eos_token_id": 2, "top_p": 0.9})
    convert_internvl(published, tmp_path / "dst")
    settings = GenerationConfig.from_pretrained(tmp_path / "dst")
    assert settings.eos_token_id == [INTERNLM2_ADDED["<|im_end|>"], 2]
    assert (settings.bos_token_id, settings.pad_token_id, settings.top_p) == (1, 2, 0.9)


@pytest.mark.parametrize("value", [7, True, ["</s>"], {}, {"content": 7}, {"content": ["</s>"]}])
def test_a_special_token_that_is_no_text_is_one_line(value: Any, published: Path, tmp_path: Path) -> None:
    write_internlm2_tokenizer(published, eos_token=value)
    with pytest.raises(DataError, match=r"tokenizer_config\.json: eos_token is .*; expected text$"):
        convert_internvl(published, tmp_path / "dst")


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("value", [{}, "2", [{}], 0.5])
def test_an_id_of_generation_that_is_no_number_is_one_line(
    name: str, value: Any, published: Path, tmp_path: Path
) -> None:
    write_json(published / "generation_config.json", {name: value})
    with pytest.raises(DataError, match=rf"generation_config\.json: {name} is .*; expected the id of a token$"):
        convert_internvl(published, tmp_path / "dst")


def test_the_native_config_says_what_the_published_one_does(published: Path, tmp_path: Path) -> None:
    convert_internvl(published, tmp_path / "dst")
    config = InternVLConfig.from_pretrained(tmp_path / "dst")
    assert config.architectures == ["InternVLForConditionalGeneration"]
    assert (config.image_seq_length, config.downsample_ratio) == (IMAGE_TOKENS, 0.5)
    assert (config.vision_feature_layer, config.vision_feature_select_strategy) == (-1, "default")
    assert config.text_config.rope_parameters == {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    assert (config.text_config.max_position_embeddings, config.text_config.rms_norm_eps) == (16, 1e-5)
    assert "auto_map" not in (tmp_path / "dst" / "config.json").read_text()


def test_the_layout_of_the_published_8b_has_its_tensors_and_parameters() -> None:
    """The tensors of InternVL2.5-8B, counted by hand; nothing of that size is made."""
    # 8B: embeddings 4, 24 layers of 14 (qkv, proj, fc1, fc2, norm1, norm2 twice each; ls1, ls2), projector 6;
    # embeddings 1, 32 layers of 7 (wqkv, wo, w1, w2, w3, two norms), norm and output 2
    vision = InternVLVisionConfig(attention_bias=True)
    text = LlamaConfig(
        vocab_size=92553,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    layout = native_layout(InternVLConfig(vision_config=vision, text_config=text, tie_word_embeddings=False))
    names = {rows.published for rows in layout.values()}
    assert len(names) == 4 + 24 * 14 + 6 + 1 + 32 * 7 + 2
    n_rows = dict.fromkeys(names, 0)
    for rows in layout.values():
        n_rows[rows.published] += sum(stop - start for start, stop in rows.ranges)
    assert n_rows["language_model.model.layers.31.attention.wqkv.weight"] == (32 + 2 * 8) * 128
    assert n_rows["vision_model.encoder.layers.23.attn.qkv.weight"] == 3 * 1024
    assert layout["model.multi_modal_projector.linear_1.weight"].shape == (4096, 4096)
    # 8,075,365,376: 304,012,288 of the vision tower, 33,570,816 of the projector, 7,737,782,272 of the rest
    assert sum(math.prod(rows.shape) for rows in layout.values()) == 8_075_365_376


PUBLISHED_3_5_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_the_published_language_config_of_3_5_8b_gives_its_tensors_and_bytes(tmp_path: Path) -> None:
    """The published index names 17,056,636,928 bytes in bfloat16; nothing of that size is made."""
    config = published_config(native_model("internvl3_5", vocab_size=30, image_token_id=5).config)
    config["llm_config"] = PUBLISHED_3_5_8B
    config["vision_config"] |= {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    config["vision_config"] |= {"num_attention_heads": 16, "image_size": 448, "patch_size": 14}
    config["force_image_size"] = 448
    write_json(tmp_path / "config.json", config)
    write_qwen_tokenizer(tmp_path, QWEN3_ADDED)
    tokenizer = build_tokenizer(tmp_path, vocab_size=151936)
    native = native_config(read_published_config(tmp_path), tokenizer, is_tied=False, dtype="bfloat16")
    text = native.text_config
    assert (text.model_type, text.head_dim, text.sliding_window) == ("qwen3", 128, None)
    assert text.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert (native.image_seq_length, set(text.layer_types)) == (256, {"full_attention"})
    layout = native_layout(native)
    names = {rows.published for rows in layout.values()}
    # vision tower 4 and 24 layers of 14, projector 6, embeddings, norm and head, 36 layers of 11
    assert len(names) == 4 + 24 * 14 + 6 + 3 + 36 * 11
    norms = {f"language_model.model.layers.35.self_attn.{part}_norm.weight" for part in "qk"}
    assert norms <= names
    assert 2 * sum(math.prod(rows.shape) for rows in layout.values()) == 17_056_636_928


# ---------------------------------------------------------------- the command


def test_the_command_converts_and_summarys(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dst = tmp_path / "dst"
    assert run([str(published), "--out", str(dst), "--dtype", "bfloat16", "--max-shard-size", "1MB"]) == 0
    printed = capsys.readouterr().out
    assert f"written to {dst}" in printed
    assert "language model llama" in printed
    assert run([str(published), "--out", str(dst), "--force", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["dtype"] == "float32"
    assert summary["files"] == ["model.safetensors"]
    with pytest.raises(OutputExistsError):
        run([str(published), "--out", str(dst)])
    with pytest.raises(ConfigError, match="unknown dtype"):
        convert_internvl(published, tmp_path / "other", dtype="int8")

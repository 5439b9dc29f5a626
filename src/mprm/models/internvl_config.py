"""The config of a published InternVL2.5 checkpoint: checked, and rewritten for transformers' native classes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mprm.errors import ConfigError, DataError, InputNotFoundError

LANGUAGE_MODELS = {"InternLM2ForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""Native ``model_type`` of each supported language model."""

COUNT, LAYERS, NUMBER = "a whole number above 0", "a whole number from 1 to 1,000", "a number above 0"
TEXT, FLAG = "text", "true or false"
IS_KIND: dict[str, Callable[[Any], bool]] = {
    COUNT: lambda value: type(value) is int and value > 0,
    LAYERS: lambda value: type(value) is int and 1 <= value <= 1000,
    NUMBER: lambda value: type(value) in (int, float) and 0 < value < math.inf,
    TEXT: lambda value: isinstance(value, str),
    FLAG: lambda value: isinstance(value, bool),
}
LAYER_FIELDS = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads"), COUNT),
    "num_hidden_layers": LAYERS,
    "hidden_act": TEXT,
}
SAME_TEXT_FIELDS = LAYER_FIELDS | {
    **dict.fromkeys(("vocab_size", "num_key_value_heads", "max_position_embeddings"), COUNT),
    "rms_norm_eps": NUMBER,
}
"""Fields of ``llm_config`` with the same name natively."""
OPTIONAL_TEXT_FIELDS = ("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
OPTIONAL_QWEN2_FIELDS = ("attention_dropout", "use_sliding_window", "sliding_window", "max_window_layers")
SAME_VISION_FIELDS = LAYER_FIELDS | {
    **dict.fromkeys(("image_size", "patch_size"), COUNT),
    "norm_type": TEXT,
    "layer_norm_eps": NUMBER,
}
"""Fields of ``vision_config`` with the same name natively."""
FIELDS: dict[str, Any] = {
    "downsample_ratio": NUMBER,
    "max_dynamic_patch": COUNT,
    "min_dynamic_patch": COUNT,
    "force_image_size": COUNT,
    "llm_config": SAME_TEXT_FIELDS | {"rope_theta": NUMBER, "rope_scaling": {"factor": NUMBER}},
    "vision_config": SAME_VISION_FIELDS | {"qkv_bias": FLAG, "qk_normalization": FLAG},
}
"""Kind of each field that decides what the model computes."""
OPTIONAL = {"min_dynamic_patch", "force_image_size", "rope_scaling"}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    if not path.is_file():
        raise InputNotFoundError(f"{path} is not there; a published checkpoint has it: download it again")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON {type(value).__name__}; expected an object")
    return value


def raise_problems(title: str, problems: list[str]) -> None:
    """Raise one error that lists all problems, if there are any."""
    if problems:
        raise DataError("\n  ".join([title, *problems]))


def read_published_config(source: Path) -> dict[str, Any]:
    """The published ``config.json``, once it is sure that the native class computes the same from it."""
    path = source / "config.json"
    published = read_json(path)
    model_type = published.get("model_type")
    if model_type == "internvl":
        raise ConfigError(f"{source} is in transformers' native layout already; use it as it is")
    if model_type != "internvl_chat":
        raise DataError(f"{path}: model_type is {model_type!r}; expected 'internvl_chat'")
    problems = list(_wrong_fields(published, FIELDS)) or list(_unsupported_values(published))
    raise_problems(f"{path}: the native class cannot be set up:", problems)
    return published


def _wrong_fields(config: Mapping[str, Any], fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What is missing or of another kind."""
    for name, kind in fields.items():
        value = config.get(name)
        if value is None:
            if name not in OPTIONAL:
                yield f"{prefix}{name} is missing"
        elif isinstance(kind, str):
            if not IS_KIND[kind](value):
                yield f"{prefix}{name} is {value!r}; expected {kind}"
        elif isinstance(value, dict):
            yield from _wrong_fields(value, kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} is {value!r}; expected an object"


def _unsupported_values(published: Mapping[str, Any]) -> Iterator[str]:
    """Settings that contradict each other, or that the native class follows otherwise than the published code."""
    text, vision = published["llm_config"], published["vision_config"]
    patches_per_side = vision["image_size"] // vision["patch_size"]
    # the pixel shuffle merges blocks of n × n patches; published is 2
    ratios = [1 / n for n in (1, 2, 4, 8) if patches_per_side % n == 0]
    supported: list[tuple[str, Any, list[Any]]] = [
        ("llm_config.architectures", text.get("architectures"), [[name] for name in LANGUAGE_MODELS]),
        ("llm_config.rope_scaling.type", _rope_parameters(text)["rope_type"], ["default", "linear", "dynamic"]),
        ("llm_config.rope_pos_id_version", text.get("rope_pos_id_version", "default"), ["default"]),
        ("vision_config.model_type", vision.get("model_type", "intern_vit_6b"), ["intern_vit_6b"]),
        ("vision_config.norm_type", vision["norm_type"], ["layer_norm", "rms_norm"]),
        ("template", published.get("template"), ["internvl2_5"]),
        ("ps_version", published.get("ps_version"), ["v2"]),
        ("select_layer", published.get("select_layer", -1), [-1]),
        ("force_image_size", published.get("force_image_size") or vision["image_size"], [vision["image_size"]]),
        ("downsample_ratio", published["downsample_ratio"], ratios),
        ("pad2square", published.get("pad2square", False), [False]),
        ("dynamic_image_size", published.get("dynamic_image_size", False), [True]),
        ("use_thumbnail", published.get("use_thumbnail", False), [True]),
        ("use_backbone_lora", published.get("use_backbone_lora", 0), [0]),
        ("use_llm_lora", published.get("use_llm_lora", 0), [0]),
        # built into the native norm of queries and keys
        ("vision_config.layer_norm_eps", vision["layer_norm_eps"] if vision["qk_normalization"] else 1e-6, [1e-6]),
    ]
    for name, value, values in supported:
        if value not in values:
            yield f"{name} is {value!r}; expected {' or '.join(map(repr, values))}"
    for section, name, divisor in (
        ("llm_config", "hidden_size", "num_attention_heads"),
        ("llm_config", "num_attention_heads", "num_key_value_heads"),
        ("vision_config", "hidden_size", "num_attention_heads"),
        ("vision_config", "image_size", "patch_size"),
    ):
        whole, part = published[section][name], published[section][divisor]
        if whole % part:
            yield f"{section}.{name} is {whole}; expected a multiple of {divisor}, {part}"
    min_tiles, max_tiles = published.get("min_dynamic_patch") or 1, published["max_dynamic_patch"]
    if min_tiles > max_tiles:
        yield f"min_dynamic_patch is {min_tiles}; expected at most max_dynamic_patch, {max_tiles}"


def _rope_parameters(text: Mapping[str, Any]) -> dict[str, Any]:
    scaling = text.get("rope_scaling") or {}
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    factor = {"factor": float(scaling["factor"])} if scaling else {}
    return {"rope_type": rope_type, "rope_theta": float(text["rope_theta"]), **factor}


def native_config(published: Mapping[str, Any], *, image_token_id: int, is_tied: bool, dtype: str) -> Any:
    """The native ``InternVLConfig``; ``is_tied`` says that the output layer shares the embedding table."""
    from transformers import InternVLConfig, InternVLVisionConfig, LlamaConfig, Qwen2Config

    vision, text = published["vision_config"], published["llm_config"]
    vision_config = InternVLVisionConfig(
        **{name: vision[name] for name in SAME_VISION_FIELDS},
        attention_bias=vision["qkv_bias"],
        use_qk_norm=vision["qk_normalization"],
        attention_dropout=vision.get("attention_dropout", 0.0),
        projection_dropout=vision.get("dropout", 0.0),
        initializer_range=vision.get("initializer_range", 0.02),
        layer_scale_init_value=vision.get("initializer_factor", 0.1),
        num_channels=vision.get("num_channels", 3),
        use_mean_pooling=True,  # natively: no norm after the last layer, as published
    )
    is_qwen2 = LANGUAGE_MODELS[text["architectures"][0]] == "qwen2"
    optional = OPTIONAL_TEXT_FIELDS + (OPTIONAL_QWEN2_FIELDS if is_qwen2 else ())
    settings = {name: text[name] for name in (*SAME_TEXT_FIELDS, *optional) if name in text}
    settings |= {"rope_parameters": _rope_parameters(text), "tie_word_embeddings": is_tied}
    if not is_qwen2:
        # InternLM2's published class has biases unless its config says otherwise
        settings |= {"attention_bias": text.get("bias", True), "mlp_bias": False}
    n_patches = (vision["image_size"] // vision["patch_size"]) ** 2
    return InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        vision_config=vision_config,
        text_config=(Qwen2Config if is_qwen2 else LlamaConfig)(**settings),
        image_token_id=image_token_id,
        image_seq_length=int(n_patches * published["downsample_ratio"] ** 2),
        downsample_ratio=published["downsample_ratio"],
        vision_feature_select_strategy="default",  # without the class token
        tie_word_embeddings=is_tied,
        dtype=dtype,
    )


def json_files(published: Mapping[str, Any], native: Any, tokenizer: Any, source: Path) -> dict[str, dict[str, Any]]:
    """The settings of the native processors and of generation, by file name."""
    side = published["vision_config"]["image_size"]
    processor = {"processor_class": "InternVLProcessor"}
    images = {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.485, 0.456, 0.406],  # of ImageNet
        "image_std": [0.229, 0.224, 0.225],
        **processor,
    }
    tiles = {
        "crop_to_patches": True,
        "min_patches": published.get("min_dynamic_patch") or 1,
        "max_patches": published["max_dynamic_patch"],
    }
    path = source / "generation_config.json"
    generation = {
        name: value
        for name, value in (read_json(path) if path.is_file() else {}).items()
        if not name.startswith("_") and name != "transformers_version" and value is not None
    }
    eos = generation.get("eos_token_id", [])
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    generation["eos_token_id"] = list(dict.fromkeys([end_of_turn, *(eos if isinstance(eos, list) else [eos])]))
    for name in ("bos_token_id", "pad_token_id"):
        if getattr(tokenizer, name) is not None:
            generation.setdefault(name, getattr(tokenizer, name))
    return {
        "preprocessor_config.json": {"image_processor_type": "GotOcr2ImageProcessor", **tiles, **images},
        "video_preprocessor_config.json": {"video_processor_type": "InternVLVideoProcessor", **images},
        "processor_config.json": {**processor, "image_seq_length": native.image_seq_length},
        "generation_config.json": generation,
    }

"""The conversation of the published InternVL2.5 checkpoints as a chat template.

The configuration of a published InternVL checkpoint as that of transformers' native class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mprm.errors import ConfigError, DataError, InputNotFoundError

SYSTEM_MESSAGES = {
    "internvl2_5": "你是书生·万象，英文名是InternVL，"
    "是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
}
"""What stands before a conversation without a system message of its own, by the config's ``template``."""

START, END = "<|im_start|>", "<|im_end|>"
IMAGE_START, IMAGE_CONTEXT, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"

_MESSAGES = f"""\
{{%- for message in messages -%}}
{{{{- '{START}' + message['role'] + '\\n' -}}}}
{{%- if message['content'] is string -%}}
{{{{- message['content'] -}}}}
{{%- else -%}}
{{%- for part in message['content'] -%}}
{{%- if part['type'] == 'image' -%}}
{{{{- '{IMAGE_CONTEXT}\\n' -}}}}
{{%- elif part['type'] == 'text' -%}}
{{{{- part['text'] -}}}}
{{%- else -%}}
{{{{- raise_exception('a message is made of text and images, not of ' + part['type']) -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- endif -%}}
{{{{- '{END}\\n' -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- '{START}assistant\\n' -}}}}
{{%- endif -%}}
"""


def chat_template(system_message: str, *, begins_text: bool) -> str:
    """The Jinja template; an image is one `IMAGE_CONTEXT`, which the native processor makes as many as needed.

    Parameters
    ----------
    begins_text
        Whether the beginning-of-text token stands first, as InternLM2's tokenizer puts it.
    """
    system = json.dumps(f"{START}system\n{system_message}{END}\n", ensure_ascii=False)
    first = "{{- bos_token -}}\n" if begins_text else ""
    default = f"{{%- if messages[0]['role'] != 'system' -%}}\n{{{{- {system} -}}}}\n{{%- endif -%}}\n"
    return first + default + _MESSAGES


REMOTE_TYPE = "internvl_chat"
LANGUAGE_MODELS = {"InternLM2ForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""Native type of each language model that can be mapped."""
ROPE_TYPES = ("default", "linear", "dynamic")
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

TOP = {
    "llm_config": dict,
    "vision_config": dict,
    "downsample_ratio": float,
    "ps_version": str,
    "template": str,
    "max_dynamic_patch": int,
}
OPTIONAL_TOP = {"force_image_size": int, "min_dynamic_patch": int}
TEXT = {
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "hidden_act": str,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
}
TEXT_ONLY = {"architectures": list, "rope_theta": float}
"""Fields that have another name natively."""
VISION = {
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "hidden_act": str,
    "norm_type": str,
    "layer_norm_eps": float,
    "image_size": int,
    "patch_size": int,
}
VISION_ONLY = {"qkv_bias": bool, "qk_normalization": bool}
RATES = {"llm_config": ("attention_dropout",), "vision_config": ("attention_dropout", "dropout", "drop_path_rate")}
SHUFFLES = (1, 2, 4, 8)
"""Sides of the blocks of patches that the pixel shuffle may join; published is 2."""
WORDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number above 0",
    float: "a number above 0",
    bool: "true or false",
}
OPTIONAL_TEXT = {
    "llama": ("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"),
    "qwen2": (
        "initializer_range",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_dropout",
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
    ),
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    if not path.is_file():
        raise InputNotFoundError(f"{path} is not there; a published checkpoint has it: download it again")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON {type(value).__name__}; expected an object")
    return value


def read_remote_config(src: Path) -> dict[str, Any]:
    """The published config, once it is sure that the native class can do what it says."""
    path = src / "config.json"
    remote = read_json(path)
    kind = remote.get("model_type")
    if kind == "internvl":
        raise ConfigError(f"{src} is in transformers' native layout already; use it as it is")
    if kind != REMOTE_TYPE:
        raise DataError(f"{path}: model_type is {kind!r}; expected {REMOTE_TYPE!r}")
    here = {name: kind for name, kind in OPTIONAL_TOP.items() if remote.get(name) is not None}
    problems = _faults(remote, TOP | here, "")
    if not problems:
        text = remote["llm_config"]
        problems += _faults(text, TEXT | TEXT_ONLY, "llm_config.")
        if text.get("rope_scaling") is not None:
            problems += _faults(text, {"rope_scaling": dict}, "llm_config.") or _faults(
                text["rope_scaling"], {"factor": float}, "llm_config.rope_scaling."
            )
        problems += _faults(remote["vision_config"], VISION | VISION_ONLY, "vision_config.")
    problems = problems or [*_unsupported(remote), *_odd_numbers(remote)]
    if problems:
        raise DataError("\n  ".join([f"{path}: the native class cannot be set up:", *problems]))
    return remote


def _faults(config: Mapping[str, Any], fields: Mapping[str, type], where: str) -> list[str]:
    """Fields that are missing or of another type, and numbers that count nothing, each in a sentence."""
    problems = []
    for name, kind in fields.items():
        value: Any = config.get(name)
        is_kind = type(value) is kind or (kind is float and type(value) is int)
        if value is None:
            problems.append(f"{where}{name} is missing")
        elif not is_kind or (kind in (int, float) and not 0 < value < math.inf):
            problems.append(f"{where}{name} is {value!r}; expected {WORDS[kind]}")
    return problems


def _unsupported(remote: Mapping[str, Any]) -> list[str]:
    """What the native class would do otherwise than the published code, each in a sentence."""
    text, vision = remote["llm_config"], remote["vision_config"]
    scaling = text.get("rope_scaling") or {}
    side = vision["image_size"] // vision["patch_size"]
    expected: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("llm_config.architectures", text["architectures"], tuple([name] for name in LANGUAGE_MODELS)),
        ("llm_config.rope_scaling.type", _rope_type(scaling), ROPE_TYPES),
        ("llm_config.rope_pos_id_version", text.get("rope_pos_id_version", "default"), ("default",)),
        ("vision_config.model_type", vision.get("model_type", "intern_vit_6b"), ("intern_vit_6b",)),
        ("vision_config.norm_type", vision["norm_type"], ("layer_norm", "rms_norm")),
        ("template", remote["template"], tuple(SYSTEM_MESSAGES)),
        ("ps_version", remote["ps_version"], ("v2",)),
        ("select_layer", remote.get("select_layer", -1), (-1,)),
        ("force_image_size", remote.get("force_image_size") or vision["image_size"], (vision["image_size"],)),
        ("downsample_ratio", remote["downsample_ratio"], tuple(1 / n for n in SHUFFLES if side % n == 0)),
        ("pad2square", remote.get("pad2square", False), (False,)),
        ("dynamic_image_size", remote.get("dynamic_image_size", False), (True,)),
        ("use_thumbnail", remote.get("use_thumbnail", False), (True,)),
        ("use_backbone_lora", remote.get("use_backbone_lora", 0), (0,)),
        ("use_llm_lora", remote.get("use_llm_lora", 0), (0,)),
    ]
    for name, whole, part in (
        ("llm_config.hidden_size", text["hidden_size"], text["num_attention_heads"]),
        ("llm_config.num_attention_heads", text["num_attention_heads"], text["num_key_value_heads"]),
        ("vision_config.hidden_size", vision["hidden_size"], vision["num_attention_heads"]),
        ("vision_config.image_size", vision["image_size"], vision["patch_size"]),
    ):
        expected.append((f"the rest of {name} by {part}", whole % part, (0,)))
    if vision["qk_normalization"]:
        # the native norm of queries and keys has this number built in
        expected.append(("vision_config.layer_norm_eps", vision["layer_norm_eps"], (1e-6,)))
    return [
        f"{name} is {found!r}; expected {' or '.join(map(repr, known))}"
        for name, found, known in expected
        if found not in known
    ]


def _odd_numbers(remote: Mapping[str, Any]) -> Iterator[str]:
    """Settings that no class could follow, each in a sentence."""
    fewest, most = remote.get("min_dynamic_patch") or 1, remote["max_dynamic_patch"]
    if fewest > most:
        yield f"min_dynamic_patch is {fewest}; expected no more than max_dynamic_patch, {most}"
    for where, names in RATES.items():
        for name in names:
            rate = remote[where].get(name, 0.0)
            if type(rate) not in (int, float) or not 0 <= rate < 1:
                yield f"{where}.{name} is {rate!r}; expected a number from 0 to below 1"


def _rope_type(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def native_config(remote: Mapping[str, Any], *, image_token_id: int, is_tied: bool, dtype: str) -> Any:
    """The native ``InternVLConfig``."""
    from transformers import InternVLConfig

    vision = remote["vision_config"]
    n_patches = (vision["image_size"] // vision["patch_size"]) ** 2
    return InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        vision_config=_vision_config(vision),
        text_config=_text_config(remote["llm_config"], is_tied=is_tied),
        image_token_id=image_token_id,
        image_seq_length=int(n_patches * remote["downsample_ratio"] ** 2),
        downsample_ratio=remote["downsample_ratio"],
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",  # without the class token
        tie_word_embeddings=is_tied,
        dtype=dtype,
    )


def _vision_config(vision: Mapping[str, Any]) -> Any:
    from transformers import InternVLVisionConfig

    return InternVLVisionConfig(
        **{name: vision[name] for name in VISION},
        attention_bias=vision["qkv_bias"],
        use_qk_norm=vision["qk_normalization"],
        attention_dropout=vision.get("attention_dropout", 0.0),
        projection_dropout=vision.get("dropout", 0.0),
        hidden_dropout_prob=0.0,
        initializer_range=vision.get("initializer_range", 0.02),
        layer_scale_init_value=vision.get("initializer_factor", 0.1),
        num_channels=vision.get("num_channels", 3),
        use_absolute_position_embeddings=True,
        use_mask_token=False,
        use_mean_pooling=True,  # natively: no norm after the last layer, as published
    )


def _text_config(text: Mapping[str, Any], *, is_tied: bool) -> Any:
    from transformers import LlamaConfig, Qwen2Config

    kind = LANGUAGE_MODELS[text["architectures"][0]]
    scaling = text.get("rope_scaling") or {}
    rope = {"rope_type": _rope_type(scaling), "rope_theta": float(text["rope_theta"])}
    if "factor" in scaling:
        rope["factor"] = float(scaling["factor"])
    settings = {name: text[name] for name in TEXT}
    settings |= {name: text[name] for name in OPTIONAL_TEXT[kind] if name in text}
    settings |= {"rope_parameters": rope, "tie_word_embeddings": is_tied, "use_cache": True}
    if kind == "qwen2":
        return Qwen2Config(**settings)
    # InternLM2's published class has biases unless told otherwise
    return LlamaConfig(**settings, attention_bias=text.get("bias", True), mlp_bias=False)


def processor_files(remote: Mapping[str, Any], *, image_seq_length: int) -> dict[str, dict[str, Any]]:
    """The JSON files that the native processor, image processor and video processor load from."""
    side = remote["vision_config"]["image_size"]
    common = {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **IMAGENET,
        "processor_class": "InternVLProcessor",
    }
    tiles = {
        "crop_to_patches": True,
        "min_patches": remote.get("min_dynamic_patch") or 1,
        "max_patches": remote["max_dynamic_patch"],
    }
    return {
        "preprocessor_config.json": {"image_processor_type": "GotOcr2ImageProcessor", **tiles, **common},
        "video_preprocessor_config.json": {"video_processor_type": "InternVLVideoProcessor", **common},
        "processor_config.json": {"processor_class": "InternVLProcessor", "image_seq_length": image_seq_length},
    }


def generation_settings(src: Path, *, end_id: int, bos_id: int | None, pad_id: int | None) -> dict[str, Any]:
    """The published generation settings; a turn ends at ``<|im_end|>``, and at whatever ended it before."""
    path = src / "generation_config.json"
    published = read_json(path) if path.is_file() else {}
    settings = {
        name: value
        for name, value in published.items()
        if not name.startswith("_") and name != "transformers_version" and value is not None
    }
    ends = settings.get("eos_token_id", [])
    ends = [end_id, *(ends if isinstance(ends, list) else [ends])]
    settings["eos_token_id"] = list(dict.fromkeys(ends))
    for name, value in (("bos_token_id", bos_id), ("pad_token_id", pad_id)):
        if value is not None:
            settings.setdefault(name, value)
    return settings

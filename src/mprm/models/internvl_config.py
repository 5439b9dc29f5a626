"""Config and tokenizer of a published InternVL checkpoint, checked and rewritten for transformers' classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mprm.errors import ConfigError, DataError, InputNotFoundError, MissingDependencyError
from mprm.models.families import INTERNVL2_5_SYSTEM

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

LAYER_NUMBERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
TEXT_NUMBERS = (*LAYER_NUMBERS, "vocab_size", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
VISION_NUMBERS = (*LAYER_NUMBERS, "image_size", "patch_size", "layer_norm_eps")
"""Fields with the same name natively."""
QWEN_OPTIONS = ("attention_dropout", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
LANGUAGE_MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "InternLM2ForCausalLM": ("llama", ()),
    "Qwen2ForCausalLM": ("qwen2", QWEN_OPTIONS),
    "Qwen3ForCausalLM": ("qwen3", (*QWEN_OPTIONS, "head_dim", "attention_bias")),
}
"""Published class of the language model: its type natively, and further fields that both have."""


def read_json(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint; an empty one where the file may be missing, and is."""
    if not path.is_file():
        if is_optional:
            return {}
        raise InputNotFoundError(f"{path} is not there; a published checkpoint has it: download it again")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON object ({error}); download it again") from error


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
    text = published.get("llm_config")
    if isinstance(text, dict) and (kind := text.get("architectures")) not in [[name] for name in LANGUAGE_MODELS]:
        expected = f"{' or '.join(LANGUAGE_MODELS)}, no mixture of experts"
        raise DataError(f"{path}: llm_config.architectures is {kind!r:.100}; expected {expected}")
    problems = list(_wrong_numbers(published)) or list(_unsupported_values(published))
    raise_problems(f"{path}: the native class cannot be set up:", problems)
    return published


def _wrong_numbers(published: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that are missing or not above 0; all else is checked by transformers when it sets the model up."""
    text = published.get("llm_config")
    scaling = text.get("rope_scaling") if isinstance(text, dict) else None
    for section, config, names in (
        ("llm_config", text, (*TEXT_NUMBERS, "rope_theta")),
        ("llm_config.rope_scaling", scaling or {"factor": 1}, ("factor",)),
        ("vision_config", published.get("vision_config"), VISION_NUMBERS),
    ):
        if not isinstance(config, dict):
            yield f"{section} is {config!r}; expected an object"
            continue
        for name in names:
            value: Any = config.get(name)
            if type(value) not in (int, float) or value <= 0:
                yield f"{section}.{name} is {value!r}; expected a number above 0"


def _unsupported_values(published: Mapping[str, Any]) -> Iterator[str]:
    """Settings that contradict each other, or that the native class follows otherwise than the published code."""
    text, vision = published["llm_config"], published["vision_config"]
    n_heads, side = text["num_attention_heads"], vision["image_size"]
    # the pixel shuffle merges blocks of n × n patches; published is 2
    ratios = [1 / n for n in (1, 2, 4, 8) if side // vision["patch_size"] % n == 0]
    supported: list[tuple[str, Any, list[Any]]] = [
        ("llm_config.rope_scaling.type", _rope_parameters(text)["rope_type"], ["default", "linear", "dynamic"]),
        ("llm_config.rope_pos_id_version", text.get("rope_pos_id_version", "default"), ["default"]),
        ("vision_config.model_type", vision.get("model_type", "intern_vit_6b"), ["intern_vit_6b"]),
        ("llm_config.num_attention_heads % num_key_value_heads", n_heads % text["num_key_value_heads"], [0]),
        ("vision_config.image_size % patch_size", side % vision["patch_size"], [0]),
        ("template", published.get("template"), ["internvl2_5"]),
        ("ps_version", published.get("ps_version"), ["v2"]),
        ("select_layer", published.get("select_layer", -1), [-1]),
        ("force_image_size", published.get("force_image_size"), [None, side]),
        ("downsample_ratio", published.get("downsample_ratio"), ratios),
        ("pad2square", published.get("pad2square", False), [False]),
        ("dynamic_image_size", published.get("dynamic_image_size", False), [True]),
        ("use_thumbnail", published.get("use_thumbnail", False), [True]),
        ("use_backbone_lora", published.get("use_backbone_lora", 0), [0]),
        ("use_llm_lora", published.get("use_llm_lora", 0), [0]),
    ]
    if vision.get("qk_normalization"):  # built into the native norm of queries and keys
        supported.append(("vision_config.layer_norm_eps", vision["layer_norm_eps"], [1e-6]))
    for name, value, values in supported:
        if value not in values:
            yield f"{name} is {value!r}; expected {' or '.join(map(repr, values))}"
    for section in ("llm_config", "vision_config"):
        if (n_layers := published[section]["num_hidden_layers"]) > 1000:
            yield f"{section}.num_hidden_layers is {n_layers}; expected at most 1,000"
    tiles: tuple[Any, Any] = published.get("min_dynamic_patch") or 1, published.get("max_dynamic_patch")
    if not all(type(n) is int for n in tiles) or not 1 <= tiles[0] <= tiles[1]:
        yield f"min_dynamic_patch and max_dynamic_patch are {tiles}; expected whole numbers above 0, the larger last"


def _rope_parameters(text: Mapping[str, Any]) -> dict[str, Any]:
    scaling = text.get("rope_scaling") or {}
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    factor = {"factor": float(scaling["factor"])} if scaling else {}
    return {"rope_type": rope_type, "rope_theta": float(text["rope_theta"]), **factor}


def native_config(published: Mapping[str, Any], tokenizer: Any, *, is_tied: bool, dtype: str) -> Any:
    """The native ``InternVLConfig``; ``is_tied`` says that the output layer shares the embedding table."""
    from transformers import AutoConfig, InternVLConfig, InternVLVisionConfig

    vision, text = published["vision_config"], published["llm_config"]
    # VisualPRM's class, which asks for the scores of steps
    classes = str([published.get(name) for name in ("architectures", "auto_map")])
    prm_layout = {"prm_layout": "visualprm"} if "InternVLRewardModel" in classes else {}
    vision_config = InternVLVisionConfig(
        **{name: vision[name] for name in (*VISION_NUMBERS, "hidden_act", "norm_type")},
        attention_bias=vision["qkv_bias"],
        use_qk_norm=vision["qk_normalization"],
        attention_dropout=vision.get("attention_dropout", 0.0),
        projection_dropout=vision.get("dropout", 0.0),
        initializer_range=vision.get("initializer_range", 0.02),
        layer_scale_init_value=vision.get("initializer_factor", 0.1),
        num_channels=vision.get("num_channels", 3),
        use_mean_pooling=True,  # natively: no norm after the last layer, as published
    )
    model_type, options = LANGUAGE_MODELS[text["architectures"][0]]
    optional = ("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", *options)
    settings = {name: text[name] for name in (*TEXT_NUMBERS, *optional) if name in text}
    settings |= {"hidden_act": text["hidden_act"], "rope_parameters": _rope_parameters(text)}
    if model_type == "llama":
        # InternLM2's published class has biases unless its config says otherwise
        settings |= {"attention_bias": text.get("bias", True), "mlp_bias": False}
    n_patches = (vision["image_size"] // vision["patch_size"]) ** 2
    return InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        vision_config=vision_config,
        text_config=AutoConfig.for_model(model_type, **settings, tie_word_embeddings=is_tied),
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=int(n_patches * published["downsample_ratio"] ** 2),
        downsample_ratio=published["downsample_ratio"],
        vision_feature_select_strategy="default",  # without the class token
        tie_word_embeddings=is_tied,
        dtype=dtype,
        **prm_layout,
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
    generation = {
        name: value
        for name, value in read_json(source / "generation_config.json", is_optional=True).items()
        if not name.startswith("_") and name != "transformers_version" and value is not None
    }
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = generation.get(name, [])
        if not all(type(i) is int for i in (ids if isinstance(ids, list) else [ids])):
            raise DataError(f"{source}/generation_config.json: {name} is {ids!r:.100}; expected the id of a token")
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


PROCESSOR_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    # a token of its own would have an id beyond the embedding table, and make text with it crash
    "video_token": "<IMG_CONTEXT>",
}
"""Attributes that the native processor expects of its tokenizer."""
CHAT_TEMPLATE = r"""{%- if messages[0]['role'] != 'system' -%}
{{- "<|im_start|>system\nSYSTEM<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
{{- '<IMG_CONTEXT>\n' -}}
{%- elif part['type'] == 'text' -%}
{{- part['text'] -}}
{%- else -%}
{{- raise_exception('a message is made of text and images, not of ' + part['type']) -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
""".replace("SYSTEM", INTERNVL2_5_SYSTEM)
"""The conversation ``internvl2_5``; the native processor repeats ``<IMG_CONTEXT>`` as often as an image needs."""


def build_tokenizer(source: Path, *, vocab_size: int) -> Any:
    """The fast tokenizer, with every added token at its published id and all ids below ``vocab_size``."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    path = source / "tokenizer_config.json"
    config = read_json(path)
    try:
        added = {int(i): AddedToken(**entry) for i, entry in config.get("added_tokens_decoder", {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: added_tokens_decoder cannot be read ({error}); download it again") from error
    is_internlm2 = (source / "tokenizer.model").is_file()
    backend = sentencepiece_backend(source / "tokenizer.model", added) if is_internlm2 else _qwen2_backend(source)
    backend.add_tokens([added[token_id] for token_id in sorted(added)])
    special = {**read_json(source / "special_tokens_map.json", is_optional=True), **config}
    special = {
        name: special[name].get("content") if isinstance(special[name], dict) else special[name]
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        if special.get(name) is not None
    }
    for name, text in special.items():
        if not isinstance(text, str):
            raise DataError(f"{path}: {name} is {text!r:.100}; expected text")
    unknown = [f"{name} {text!r}" for name, text in special.items() if backend.token_to_id(text) is None]
    raise_problems(f"{path}: not in the vocabulary:", unknown)
    # InternLM2's tokenizer puts its BOS token first unless its config says otherwise; Qwen's has none
    bos = special.get("bos_token") if is_internlm2 and config.get("add_bos_token", True) else None
    if bos is not None:
        backend.post_processor = TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", f"{bos}:1", "$B:1"],
            special_tokens=[(bos, backend.token_to_id(bos))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **special,
        extra_special_tokens=PROCESSOR_TOKENS,
        model_max_length=config.get("model_max_length"),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=("{{- bos_token -}}\n" if bos is not None else "") + CHAT_TEMPLATE,
    )
    problems = []
    for token_id, token in sorted(added.items()):
        native_id = tokenizer.convert_tokens_to_ids(token.content)
        if native_id != token_id or tokenizer.convert_ids_to_tokens(token_id) != token.content:
            problems.append(f"{token.content} has id {native_id}; expected {token_id}")
    missing = {"<|im_start|>", "<|im_end|>", *PROCESSOR_TOKENS.values()} - {token.content for token in added.values()}
    problems += [f"{text} is not among the added tokens; InternVL needs it" for text in sorted(missing)]
    if (highest := max(tokenizer.get_vocab().values())) >= vocab_size:
        problems.append(f"the highest id is {highest}; expected less than llm_config.vocab_size, {vocab_size}")
    raise_problems(f"{source}: the tokenizer does not fit its checkpoint:", problems)
    return tokenizer


def sentencepiece_backend(path: Path, added: Mapping[int, AddedToken]) -> Tokenizer:
    """The fast tokenizer that encodes text as the SentencePiece BPE model ``tokenizer.model`` does.

    Some of the ``added`` tokens, by id, take the ids of pieces that training left unused. transformers' converters
    cannot be used (5.17 to 5.22): ``LlamaConverter`` raises AttributeError on every BPE model, and
    ``SentencePieceExtractor`` orders merges by id where SentencePiece goes by score.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import generate_merges, import_protobuf

    try:
        model = import_protobuf().ModelProto.FromString(path.read_bytes())
    except ImportError as error:
        raise MissingDependencyError(f"{path} needs protobuf: install mprm with its extra [train]") from error
    except Exception as error:  # protobuf's DecodeError
        raise DataError(f"{path}: not a SentencePiece model ({error}); download it again") from error
    kinds, trainer, normalizer = model.SentencePiece, model.trainer_spec, model.normalizer_spec
    if trainer.model_type != trainer.BPE:
        raise DataError(f"{path}: a SentencePiece model of type {trainer.model_type}; expected {trainer.BPE}, BPE")
    if unused := [piece.piece for piece in model.pieces if piece.type == kinds.UNUSED]:
        raise DataError(f"{path}: a fast tokenizer cannot skip pieces of type UNUSED, such as {unused[0]!r}")
    vocabulary = {added[i].content if i in added else piece.piece: i for i, piece in enumerate(model.pieces)}
    if trainer.unk_piece not in vocabulary:
        raise DataError(f"{path}: no piece {trainer.unk_piece!r} for unknown text; expected one")
    pieces = [piece for i, piece in enumerate(model.pieces) if i not in added]
    scores = {piece.piece: piece.score for piece in pieces if piece.type == kinds.NORMAL}
    merges = generate_merges(vocabulary, scores, skip_tokens=vocabulary.keys() - scores.keys())
    bpe = BPE(vocabulary, merges, unk_token=trainer.unk_piece, fuse_unk=True, byte_fallback=trainer.byte_fallback)
    backend = Tokenizer(bpe)
    charsmap = normalizer.precompiled_charsmap
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if normalizer.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if normalizer.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1)] if normalizer.add_dummy_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    backend.add_tokens(
        [AddedToken(piece.piece, normalized=False) for piece in pieces if piece.type == kinds.USER_DEFINED]
    )
    return backend


def _qwen2_backend(source: Path) -> Any:
    from tokenizers.models import BPE
    from transformers import Qwen2Tokenizer

    vocab, merges = source / "vocab.json", source / "merges.txt"
    if not vocab.is_file() or not merges.is_file():
        raise InputNotFoundError(
            f"{source} has no tokenizer; expected tokenizer.model (InternLM2), or vocab.json and merges.txt (Qwen)"
        )
    try:
        return Qwen2Tokenizer(*BPE.read_file(str(vocab), str(merges))).backend_tokenizer
    except Exception as error:  # the tokenizers package raises no other class
        raise DataError(f"{source}: vocab.json or merges.txt is broken ({error}); download them again") from error

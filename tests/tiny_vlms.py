"""Small real vision-language models beyond the two fast families, with the processors of the published ones."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.tiny_models import _language, tiny_tokenizer

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
GRID = [[56, 112], [112, 56], [112, 112]]


class TinyVLM(NamedTuple):
    model: Any
    tokenizer: Any
    image_processor: Any
    processor_config: dict[str, Any]


def _tokenizer(tokens: tuple[str, ...], image: str, **named: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    base = tiny_tokenizer("text")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base.backend_tokenizer,
        pad_token=base.pad_token,
        eos_token=base.eos_token,
        extra_special_tokens=named,
    )
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    tokenizer.chat_template = CHAT.replace("IMAGE", image)
    return tokenizer


def _text(tokenizer: Any, **more: Any) -> dict[str, Any]:
    return _language(len(tokenizer) + 9, 32, 2) | more


def _image_processor(module: str, name: str, **settings: Any) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)(**settings)


def _qwen(model: str, config: str, vision: dict[str, Any], **text: Any) -> TinyVLM:
    import transformers

    tokenizer = _tokenizer(QWEN_TOKENS, "<|vision_start|><|image_pad|><|vision_end|>")
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(QWEN_TOKENS))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    settings = getattr(transformers, config)(
        text_config=_text(tokenizer, rope_parameters=rope, **text),
        vision_config={"num_heads": 2, "patch_size": 14, **vision},
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    module = "qwen2_vl.image_processing_pil_qwen2_vl"
    processor = _image_processor(module, "Qwen2VLImageProcessorPil", min_pixels=784, max_pixels=50_176)
    return TinyVLM(getattr(transformers, model)(settings), tokenizer, processor, {})


def qwen2_vl() -> TinyVLM:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    return _qwen("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", vision, use_sliding_window=False)


def qwen3_vl() -> TinyVLM:
    """Image features enter two of three layers; in the last one they would reach no later token."""
    vision = {"depth": 3, "hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}  # type: ignore[dict-item]
    return _qwen("Qwen3VLForConditionalGeneration", "Qwen3VLConfig", vision, head_dim=8, num_hidden_layers=3)


def gemma3() -> TinyVLM:
    """Attends both ways within an image; its embeddings are the head."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _tokenizer(tuple(tokens.values()), "<start_of_image>", **tokens)
    start, end, image = tokenizer.convert_tokens_to_ids(list(tokens.values()))
    config = Gemma3Config(
        text_config=_text(tokenizer, head_dim=8, sliding_window=64, query_pre_attn_scalar=8)
        | {"tie_word_embeddings": True},
        vision_config=VISION,
        mm_tokens_per_image=4,
        image_token_index=image,
        boi_token_index=start,
        eoi_token_index=end,
    )
    size = {"height": 56, "width": 56}
    processor = _image_processor("gemma3.image_processing_pil_gemma3", "Gemma3ImageProcessorPil", size=size)
    model = Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # else no image would be seen
    return TinyVLM(model, tokenizer, processor, {"image_seq_length": 4})


def _idefics(model: str, config: str, module: str, image_processor: str) -> TinyVLM:
    """Images are cut into tiles, in rows that have tokens of their own."""
    import transformers

    tiles = (f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
    tokens = ("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *tiles)
    tokenizer = _tokenizer(tokens, "<image>")
    settings = getattr(transformers, config)(
        text_config=transformers.LlamaConfig(**_text(tokenizer)),
        vision_config=VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    sizes = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    processor = _image_processor(module, image_processor, **sizes)
    return TinyVLM(getattr(transformers, model)(settings), tokenizer, processor, {"image_seq_len": 4})


def smolvlm() -> TinyVLM:
    module = "smolvlm.image_processing_pil_smolvlm"
    return _idefics("SmolVLMForConditionalGeneration", "SmolVLMConfig", module, "SmolVLMImageProcessorPil")


def idefics3() -> TinyVLM:
    module = "idefics3.image_processing_pil_idefics3"
    return _idefics("Idefics3ForConditionalGeneration", "Idefics3Config", module, "Idefics3ImageProcessorPil")


def _llava(kind: str, vision: str, text: str, own: dict[str, Any], **settings: Any) -> TinyVLM:
    """Images are cut into tiles whose number depends on their shape."""
    import transformers

    tokenizer = _tokenizer(("<image>", "<video>"), "<image>\n")
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = getattr(transformers, f"{kind}Config")(
        text_config=getattr(transformers, text)(**_text(tokenizer)),
        vision_config=getattr(transformers, vision)(**VISION),
        image_token_id=image,
        image_token_index=image,
        image_grid_pinpoints=GRID,
        tie_word_embeddings=False,
    )
    name = {"LlavaNext": "llava_next", "LlavaOnevision": "llava_onevision"}[kind]
    module = f"{name}.image_processing_pil_{name}"
    processor = _image_processor(module, f"{kind}ImageProcessorPil", image_grid_pinpoints=GRID, **settings)
    return TinyVLM(getattr(transformers, f"{kind}ForConditionalGeneration")(config), tokenizer, processor, own)


def llava_onevision() -> TinyVLM:
    own = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    size = {"height": 56, "width": 56}
    return _llava("LlavaOnevision", "SiglipVisionConfig", "Qwen2Config", own, size=size)


def llava_next() -> TinyVLM:
    own = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    crop = {"height": 56, "width": 56}
    return _llava("LlavaNext", "CLIPVisionConfig", "LlamaConfig", own, size={"shortest_edge": 56}, crop_size=crop)


VLMS: dict[str, Callable[[], TinyVLM]] = {
    make.__name__: make for make in (qwen2_vl, qwen3_vl, gemma3, smolvlm, idefics3, llava_onevision, llava_next)
}


def save_tiny_vlm(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a checkpoint of the kind with random weights, in the layout of the published ones."""
    import torch

    torch.manual_seed(seed)
    model, tokenizer, image_processor, own = VLMS[kind]()
    for part in (model, tokenizer, image_processor):
        part.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(own))
    (folder / "video_preprocessor_config.json").write_text('{"for": "other tools"}')
    return folder

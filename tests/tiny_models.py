"""Small real models of each backbone, with random weights, in the folder layout of the published ones."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FRAME = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
IMAGE = {
    "qwen2_5_vl": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "internvl": ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
    "text": [],
}
TEXT = [
    *["Yes", "No"] * 50,
    "Question: what is 12 + 30?\nProcess: the sum of 12 and 30 is 42",
    "the answer is 7",
    "system\nYou are a helpful assistant.\nuser\n",
    "how long is bar 1? hm hm",
    "\n\nthe bar is 3 long",
] * 3
BACKBONES = ("qwen2_5_vl", "internvl", "text")
INTERNVL3 = {"internvl3": "qwen2", "internvl3_5": "qwen3"}
"""InternVL3 and 3.5 in the layout of their published -HF checkpoints, with the type of the language model."""
ALL_BACKBONES = (*BACKBONES, *INTERNVL3)
IMAGE |= dict.fromkeys(INTERNVL3, IMAGE["internvl"])


def tiny_tokenizer(kind: str) -> Any:
    """A byte-level tokenizer that knows Yes and No."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=FRAME[0], eos_token=FRAME[2])
    tokenizer.add_special_tokens({"additional_special_tokens": [*FRAME, *IMAGE[kind]]})
    tokenizer.chat_template = CHAT
    return tokenizer


def save_tiny(
    kind: str, folder: Path, *, seed: int = 0, hidden: int = 32, layers: int = 2, spare_rows: int | None = None
) -> Path:
    """Write a checkpoint of the kind with random weights; the embedding has rows to spare where Qwen's has."""
    import torch

    tokenizer = tiny_tokenizer(kind)
    torch.manual_seed(seed)
    make = {"qwen2_5_vl": _qwen, "text": _text}.get(kind, partial(_internvl, text=INTERNVL3.get(kind, "llama")))
    if spare_rows is None:
        spare_rows = 0 if kind == "internvl3" else 9
    model = make(tokenizer, len(tokenizer) + spare_rows, hidden, layers)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if kind in INTERNVL3:
        _as_published(folder)
    return folder


def _as_published(folder: Path) -> None:
    """Rewrite an InternVL's config as transformers 4 wrote it: nothing says that the head is not tied."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope if "factor" in rope else None}
    config["torch_dtype"] = config.pop("dtype")
    assert not config.pop("tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"image_seq_length": 4, "processor_class": "InternVLProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    (folder / "video_preprocessor_config.json").write_text('{"video_processor_type": "InternVLVideoProcessor"}')


def _language(vocabulary: int, hidden: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _text(tokenizer: Any, vocabulary: int, hidden: int, layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_language(vocabulary, hidden, layers)))


def _qwen(tokenizer: Any, vocabulary: int, hidden: int, layers: int) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    start, end, image, video = tokenizer.convert_tokens_to_ids(IMAGE["qwen2_5_vl"])
    part = hidden // 4 // 8  # half a head's width is shared by time, height and width, as 1 : 1 : 2
    rope = {"rope_type": "default", "mrope_section": [part, part, 2 * part], "rope_theta": 10000.0}
    text = _language(vocabulary, hidden, layers) | {"rope_parameters": rope, "use_sliding_window": False}
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    return _Saved(
        Qwen2_5_VLForConditionalGeneration(config),
        "qwen2_vl.image_processing_pil_qwen2_vl",
        "Qwen2VLImageProcessorPil",
        {"min_pixels": 3136, "max_pixels": 12_845_056},
    )


def _internvl(tokenizer: Any, vocabulary: int, hidden: int, layers: int, *, text: str) -> Any:
    from transformers import AutoConfig, InternVLConfig, InternVLForConditionalGeneration, InternVLVisionConfig

    side, patch = 56, 14
    vision = InternVLVisionConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[side, side],
        patch_size=[patch, patch],
        attention_bias=True,
    )
    language = _language(vocabulary, hidden, layers)
    if text == "qwen2":
        language["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}
    if text == "qwen3":
        language["head_dim"] = 12  # not hidden / heads
    config = InternVLConfig(
        vision_config=vision,
        text_config=AutoConfig.for_model(text, **language),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=(side // patch // 2) ** 2,
        tie_word_embeddings=False,
    )
    return _Saved(
        InternVLForConditionalGeneration(config),
        "got_ocr2.image_processing_pil_got_ocr2",
        "GotOcr2ImageProcessorPil",
        {"size": {"height": side, "width": side}, "crop_to_patches": True, "max_patches": 12},
    )


class _Saved:
    """A model that is saved with its image processor."""

    def __init__(self, model: Any, module: str, name: str, settings: dict[str, Any]) -> None:
        import importlib

        self.model = model
        self.processor = getattr(importlib.import_module(f"transformers.models.{module}"), name)(**settings)

    def save_pretrained(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.processor.save_pretrained(folder)

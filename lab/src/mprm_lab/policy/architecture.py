"""Small models of the two backbones' architectures with random weights, and a tokenizer for the lab's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mprm.data import prompt_of
from mprm.models import FAMILIES, Backbone, Family
from mprm_lab.policy.dataset import LAYOUTS, MARKERS, STEP_SEPARATOR, VERDICTS
from mprm_lab.world import SOURCES, SPLITS, problem, solution
from mprm_lab.world.problems import vocabulary

SIDE = 112
"""Pixels of the lab's pictures: 4 × 4 tokens of 28 × 28 for either backbone."""
PATCH = 14
ROPE_THETA = 1e6
"""As the published models have it: most of a head is for what a token is, little for how far away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a model; the default has about 5M parameters."""

    hidden: int = 192
    """A multiple of 8 times the number of heads."""
    layers: int = 12
    heads: int = 6
    kv_heads: int = 3
    intermediate: int = 384
    vision_hidden: int = 128
    vision_layers: int = 3
    vision_heads: int = 4


def new_policy(kind: str, *, size: Size | None = None, seed: int = 0) -> Backbone:
    """An untrained policy; ``kind`` is ``qwen2_5_vl`` or ``internvl``."""
    import torch

    family, size = FAMILIES[kind], size or Size()
    tokenizer = lab_tokenizer(family)
    config = {"qwen2_5_vl": _qwen, "internvl": _internvl}[kind](size, tokenizer)
    torch.manual_seed(seed)
    model = family.model_class()(config)
    _initialize(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Backbone(family, model, tokenizer, _processor(kind))


def _initialize(model: Any) -> None:
    """Initialize the weights anew, scaled to each layer's fan-in, and words and patch positions apart.

    transformers' 0.02 is for widths of thousands, and published towers have learned their positions. From such
    weights small models attend uniformly for thousands of optimizer steps, and learn to look things up late or never.
    """
    import torch

    for name, weight in model.named_parameters():
        if name.endswith("position_embeddings"):
            torch.nn.init.normal_(weight, std=0.5)
        elif name.endswith("embed_tokens.weight"):
            torch.nn.init.normal_(weight)
        elif weight.dim() > 1 and not name.endswith(("lm_head.weight", "cls_token")):
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)


def save_policy(policy: Backbone, folder: Any) -> None:
    """Write a checkpoint in Hugging Face format."""
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    policy.image_processor.save_pretrained(folder)


def _language(size: Size, tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": -(-len(tokenizer) // 64) * 64 + 64,  # rows to spare for <prm>, as the published ones have
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _qwen(size: Size, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    start, image, end = tokenizer.convert_tokens_to_ids(list(FAMILIES["qwen2_5_vl"].image_tokens))
    part = size.hidden // size.heads // 8  # half a head's width is shared by time, height and width, as 1 : 1 : 2
    rope = {"rope_type": "default", "mrope_section": [part, part, 2 * part], "rope_theta": ROPE_THETA}
    text = _language(size, tokenizer) | {"rope_parameters": rope, "use_sliding_window": False}
    vision = {
        "depth": size.vision_layers,
        "hidden_size": size.vision_hidden,
        "intermediate_size": 2 * size.vision_hidden,
        "num_heads": size.vision_heads,
        "out_hidden_size": size.hidden,
        "fullatt_block_indexes": list(range(size.vision_layers)),
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=tokenizer.convert_tokens_to_ids(VIDEO["qwen2_5_vl"]),
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )


def _internvl(size: Size, tokenizer: Any) -> Any:
    from transformers import InternVLConfig, InternVLVisionConfig, LlamaConfig

    vision = InternVLVisionConfig(
        hidden_size=size.vision_hidden,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.vision_heads,
        intermediate_size=2 * size.vision_hidden,
        image_size=[SIDE, SIDE],
        patch_size=[PATCH, PATCH],
        attention_bias=True,
        layer_scale_init_value=1.0,  # the published 0.1 is for towers that are not trained from scratch
    )
    return InternVLConfig(
        vision_config=vision,
        text_config=LlamaConfig(**_language(size, tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids(FAMILIES["internvl"].image_tokens[1]),
        image_seq_length=(SIDE // PATCH // 2) ** 2,
        tie_word_embeddings=False,
    )


def _processor(kind: str) -> Any:
    if kind == "qwen2_5_vl":
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 256 * 28 * 28})
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_to_patches=True, max_patches=6)
    processor.tokens_per_tile = (SIDE // PATCH // 2) ** 2
    return processor


FRAME = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VIDEO = {"qwen2_5_vl": "<|video_pad|>", "internvl": "<video>"}
"""A token that the configuration must name, and nothing uses."""
PIECES = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+"
"""Words, numbers, signs, each with the space before it; ends of line together, whatever follows."""
N_TEXTS = 40
"""Problems of each source whose texts the merges are learned from."""


def lab_tokenizer(family: Family) -> Any:
    """A byte-level BPE in which nearly every word of the world, with the space before it, is one token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(_texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=FRAME[0], eos_token=FRAME[2])
    special = [*FRAME, *family.image_tokens, VIDEO[family.name], *MARKERS]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = CHAT
    return tokenizer


def _texts() -> list[str]:
    # the words of reward models, and of the policies' own verdicts: each a token
    texts = ["Yes No", *VERDICTS.values(), *(layout or "" for layout in LAYOUTS)] * 50
    texts += [f"{word} {word}" for word in vocabulary()] * 5
    for source in SOURCES:
        for seed in SPLITS["train"][:N_TEXTS]:
            example = problem(source, seed)
            texts += [prompt_of(example.as_question()), STEP_SEPARATOR.join(solution(example))]
    return texts

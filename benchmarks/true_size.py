"""Qwen2.5-VL-7B and InternVL2.5-8B at their true sizes with random weights, and small ones for trying out.

Images are real files that go through the real preprocessing at the paper's settings.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
from tests.tiny_models import save_tiny, tiny_tokenizer
from tests.tiny_vlms import QWEN_TOKENS, save_tiny_vlm

from mprm.models import FAMILIES, PRM, PRMConfig, PromptEncoder, freeze_vision, plain_text, prm_model, step_tokens
from mprm.models.families import Family, OtherVLM

PEAK_FLOPS = 989e12
"""Dense bf16 of an H100 or H200, as its maker states it."""


def qwen(tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    text = dict(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064, max_position_embeddings=128000, rope_parameters=rope,
        tie_word_embeddings=False, use_sliding_window=False,
    )  # fmt: skip
    vision = dict(
        depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=3584,
        fullatt_block_indexes=[7, 15, 23, 31], window_size=112,
    )  # fmt: skip
    start, pad, end = (tokenizer.convert_tokens_to_ids(t) for t in FAMILIES["qwen2_5_vl"].image_tokens)
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=pad, vision_start_token_id=start,
        vision_end_token_id=end, video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        tie_word_embeddings=False,
    )  # fmt: skip


def internvl(tokenizer: Any) -> Any:
    from transformers import InternVLConfig, InternVLVisionConfig, LlamaConfig

    text = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=92553, max_position_embeddings=32768, rope_theta=1e6,
        tie_word_embeddings=False,
    )  # fmt: skip
    vision = InternVLVisionConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        image_size=[448, 448], patch_size=[14, 14], attention_bias=True,
    )  # fmt: skip
    return InternVLConfig(
        vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=256, tie_word_embeddings=False,
    )  # fmt: skip


CONFIGS = {"qwen2_5_vl": qwen, "internvl": internvl}


def qwen3_vl(tokenizer: Any) -> Any:
    """Qwen3-VL-8B."""
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_theta": 5e6}
    text = dict(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=262144, rope_parameters=rope,
        tie_word_embeddings=False,
    )  # fmt: skip
    vision = dict(
        depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, out_hidden_size=4096, patch_size=16,
        num_position_embeddings=2304, deepstack_visual_indexes=[8, 16, 24],
    )  # fmt: skip
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(QWEN_TOKENS))
    return Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end, tie_word_embeddings=False,
    )  # fmt: skip


@dataclass(slots=True)
class Built:
    """A step reader, its encoder, and the folder that its images are in."""

    kind: str
    model: Any
    encoder: PromptEncoder
    folder: Path
    has_liger: bool = False


def build(kind: str, *, tiny: bool = False, is_trained: bool = False) -> Built:
    """The model on the GPU in bf16; with ``tiny`` a small one in float32 on the CPU."""
    folder = Path(tempfile.mkdtemp())
    if tiny:
        save = save_tiny if kind in CONFIGS else save_tiny_vlm
        prm = PRM.from_pretrained(save(kind, folder / "model"), PRMConfig(), device="cpu", image_root=folder)
        model, encoder = prm.model, prm.encoder
    else:
        model, encoder = _true_size(kind, folder)
    freeze_vision(model)
    if is_trained:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Built(kind, model.train(is_trained), encoder, folder)


def _true_size(kind: str, folder: Path) -> tuple[Any, PromptEncoder]:
    family: Family
    if kind == "qwen3_vl":
        from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        save_tiny_vlm(kind, folder)
        Qwen2VLImageProcessorPil(patch_size=16, min_pixels=1024, max_pixels=262_144).save_pretrained(folder)
        family, tokenizer, model_class = (
            OtherVLM(kind),
            AutoTokenizer.from_pretrained(folder),
            Qwen3VLForConditionalGeneration,
        )
        config = qwen3_vl(tokenizer)
        config.save_pretrained(folder)
        processor = family.image_processor(str(folder), {})
    else:
        family, tokenizer = FAMILIES[kind], tiny_tokenizer(kind)
        model_class = family.model_class()
        config = CONFIGS[kind](tokenizer)
        processor = _processor(kind, config, folder)
    tokens = step_tokens(tokenizer)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = model_class(config)
    torch.set_default_dtype(torch.float32)
    model = model.to_empty(device="cuda")
    for module in model.modules():  # buffers such as rotary frequencies are not in any checkpoint
        if hasattr(module, "inv_freq"):
            n = module.inv_freq.shape[0]
            module.inv_freq.copy_(1.0 / 1e6 ** (torch.arange(n, dtype=torch.float32, device="cuda") / n))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name and "weight" in name else parameter.normal_(0, 0.02)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as mprm loads models: its plans are made anew for every shape
    encoder = PromptEncoder(tokenizer, processor, family, tokens, image_root=folder)
    return prm_model(model, family, tokens, processor), encoder


def _processor(kind: str, config: Any, folder: Path) -> Any:
    """The family's own image processor at the paper's settings, from a checkpoint folder as published ones have."""
    if kind == "qwen2_5_vl":
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        Qwen2VLImageProcessorPil().save_pretrained(folder)
    else:
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True).save_pretrained(folder)
    config.save_pretrained(folder)
    return FAMILIES[kind].image_processor(str(folder), {})


def write_image(folder: Path, number: int) -> str:
    """A picture of 900 × 600 pixels: 256 tokens at most for Qwen2.5-VL, six tiles and a thumbnail for InternVL."""
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 255, (600, 900, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.png")
    return f"{number}.png"


def step_text(encoder: PromptEncoder, n_tokens: int, seed: int) -> str:
    """Words of a step of ``n_tokens`` tokens, its mark counted; other seeds begin with other words."""
    plain, text = plain_text(encoder.tokenizer), f"{seed} "
    while len(plain.encode(f"\n\n{text}".strip(" "))) < n_tokens - 1:
        text += "hm "
    return text.strip()


def flops_of(model: Any, *, n_tokens: int, n_pairs: int, n_patches: int, is_trained: bool) -> float:
    """Model FLOPs of a pass, recomputation not counted; the frozen tower runs forward alone.

    Two for each weight and token, and four for each layer, pair of tokens that see each other, and hidden
    dimension; backward twice as many.
    """
    text, family = model.config.get_text_config(), model.prm_family
    decoder = model.model.language_model
    language = sum(p.numel() for name, p in decoder.named_parameters() if "embed_tokens" not in name)
    projector = sum(p.numel() for module in family.projectors(model) for p in module.parameters())
    tower = sum(p.numel() for p in family.vision_tower(model).parameters())
    tower -= projector if family.name == "qwen2_5_vl" else 0
    attention = 4 * text.num_hidden_layers * text.hidden_size * n_pairs
    trained = 2 * language * n_tokens + attention + 2 * projector * n_patches / 4
    return (3 if is_trained else 1) * trained + 2 * tower * n_patches


def n_patches_of(model: Any, inputs: dict[str, Any]) -> int:
    """Patches that the vision tower sees."""
    pixels = inputs.get("pixel_values")
    if pixels is None:
        return 0
    if pixels.dim() == 2:
        return len(pixels)
    vision = model.config.vision_config
    return int(len(pixels) * (vision.image_size[0] // vision.patch_size[0]) ** 2)


def n_pairs_of(inputs: dict[str, Any]) -> int:
    """Pairs of tokens of which one sees the other, in one layer; what pads a batch sees and is seen as well."""
    if "tree" not in inputs:
        n_rows, width = inputs["input_ids"].shape
        return int(n_rows * width * (width + 1) // 2)
    tree, total = inputs["tree"], 0
    for number, node in enumerate(tree.nodes):
        length = node.end - node.start
        before = sum(tree.nodes[above].end - tree.nodes[above].start for above in tree.path(number)[:-1])
        total += length * before + length * (length + 1) // 2
    return total


def on_device(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs where the model is."""
    return {n: v.to(model.device) if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}


def synchronize() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> None:
    """Begin to measure the peak of the memory anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """The peak since then."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


KERNELS = {
    "attention": ("flash", "fmha"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "copies": ("memcpy", "memset", "copy", "index", "gather", "scatter", "catarray"),
}
"""What a kernel does, by what its name holds; the first that fits. All others are elementwise."""


def kernel_ms(work: Callable[[], Any]) -> dict[str, float]:
    """Where the device's time goes, by what its kernels do; what is left of the wall time is waiting."""
    if not torch.cuda.is_available():
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        synchronize()
    totals: dict[str, float] = {}
    for event in found.key_averages():
        name = event.key.lower()
        kind = next((kind for kind, parts in KERNELS.items() if any(p in name for p in parts)), "elementwise")
        totals[kind] = totals.get(kind, 0.0) + event.self_device_time_total / 1e3
    return totals


@torch.no_grad()
def vision_alone(built: Built, inputs: dict[str, Any]) -> None:
    """Vision tower and projector, forward."""
    vision = {name: inputs[name] for name in ("pixel_values", "image_grid_thw") if name in inputs}
    built.model.model.get_image_features(**vision, return_dict=True)


def where() -> dict[str, Any]:
    """What a result was measured with."""
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}

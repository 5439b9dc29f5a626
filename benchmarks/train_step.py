"""One training step at the true sizes of Qwen2.5-VL-7B and InternVL2.5-8B: our read-out against full logits.

Weights are random, images are real files that go through the real preprocessing, and each way runs forward
and backward in the same process, in turns; AdamW is timed by itself. Prints a table and writes JSON.

    python benchmarks/train_step.py --out benchmarks/results/train_step.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from mprm.backbones.load import FAMILIES
from mprm.backbones.prompt import PromptEncoder
from mprm.backbones.step_reader import freeze_vision, step_reader
from mprm.backbones.step_tokens import step_tokens
from mprm.rollouts.chain import Chain
from mprm.training.loss import step_loss_sum
from tiny_models import tiny_tokenizer

PEAK_FLOPS = 989e12
"""Dense bf16 of an H100 or H200, as its maker states it."""
ROUNDS = 6


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


def processor_of(kind: str, config: Any, folder: Path) -> Any:
    """The family's own image processor at the paper's settings, from a checkpoint folder as published ones have."""
    if kind == "qwen2_5_vl":
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        Qwen2VLImageProcessorPil().save_pretrained(folder)
    else:
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True).save_pretrained(folder)
    config.save_pretrained(folder)
    return FAMILIES[kind].image_processor(str(folder), {})


def build(kind: str) -> tuple[Any, PromptEncoder, Path]:
    family, tokenizer, folder = FAMILIES[kind], tiny_tokenizer(kind), Path(tempfile.mkdtemp())
    tokens = step_tokens(tokenizer)
    config = CONFIGS[kind](tokenizer)
    processor = processor_of(kind, config, folder)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = family.model_class()(config)
    torch.set_default_dtype(torch.float32)
    fresh = model.to_empty(device="cuda")
    with torch.device("cuda"):
        for module in fresh.modules():  # buffers such as rotary frequencies are not in any checkpoint
            if hasattr(module, "inv_freq"):
                module.inv_freq.copy_(_inverse_frequencies(module))
    with torch.no_grad():
        for name, parameter in fresh.named_parameters():
            parameter.fill_(1.0) if "norm" in name and "weight" in name else parameter.normal_(0, 0.02)
    freeze_vision(fresh, family)
    fresh.gradient_checkpointing_enable({"use_reentrant": False})
    reader = step_reader(fresh, family, tokens)
    encoder = PromptEncoder(tokenizer, processor, family, tokens, image_root=folder)
    return reader.train(), encoder, folder


def _inverse_frequencies(module: Any) -> torch.Tensor:
    n = module.inv_freq.shape[0]
    return 1.0 / 1e6 ** (torch.arange(n, dtype=torch.float32, device="cuda") / n)


def batch(encoder: PromptEncoder, folder: Path, n: int, text_tokens: int) -> dict[str, Any]:
    """``n`` rollouts with one image each, of about that many tokens of text in eight steps."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    chains = []
    for number in range(n):
        name = f"{number}.png"
        Image.fromarray(rng.integers(0, 255, (600, 900, 3), dtype=np.uint8)).save(folder / name)
        words = "the sum of 12 and 30 is 42 " * 4000
        steps = tuple(words[: max(8, text_tokens // 8 * 2)] for _ in range(8))
        chains.append(Chain("what is the sum of the numbers?", steps, (name,)))
    return {name: tensor.cuda() for name, tensor in encoder.collate([encoder.encode(c) for c in chains]).items()}


def ours(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    return step_loss_sum(model(**inputs)["logits"], labels) / len(labels)


def full_logits(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """What computing every position's logits in float32, then keeping two columns at ``<prm>``, costs."""
    rest = {name: value for name, value in inputs.items() if name != "prm_index"}
    hidden = model.model(**rest, use_cache=False)[0]
    head = model.get_output_embeddings()
    logits = F.linear(hidden, head.weight).float().flatten(0, 1)
    return step_loss_sum(logits[inputs["prm_index"]][:, head.rows], labels) / len(labels)


def measure(model: Any, way: Any, inputs: dict[str, Any]) -> tuple[float, float]:
    """Seconds and peak GiB of forward and backward; gradients of earlier ones are there, as under accumulation."""
    labels = (torch.arange(len(inputs["prm_index"]), device="cuda") % 2).float()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    way(model, inputs, labels).backward()
    torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated() / 2**30


def measure_optimizer(optimizer: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    optimizer.step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def flops(model: Any, inputs: dict[str, Any]) -> float:
    """Model FLOPs of forward and backward, recomputation not counted; the frozen tower runs forward alone."""
    n_tokens, length = int(inputs["attention_mask"].sum()), inputs["input_ids"].shape[1]
    text = model.config.get_text_config()
    language = sum(p.numel() for n, p in model.model.language_model.named_parameters() if "embed_tokens" not in n)
    projector = sum(p.numel() for p in model.step_family.projector(model).parameters())
    tower = sum(p.numel() for p in model.step_family.vision_tower(model).parameters()) - (
        projector if model.step_family.name == "qwen2_5_vl" else 0
    )
    attention = 6 * text.num_hidden_layers * text.hidden_size * length * n_tokens
    pixels = inputs["pixel_values"]
    patches = pixels.shape[0] if pixels.dim() == 2 else pixels.shape[0] * (448 // 14) ** 2
    image_tokens = patches // 4
    return 6 * language * n_tokens + attention + 6 * projector * image_tokens + 2 * tower * patches


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--only", choices=CONFIGS)
    arguments = options.parse_args()
    import transformers

    results: dict[str, Any] = {
        "command": "python benchmarks/train_step.py --out benchmarks/results/train_step.json",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peak_flops": PEAK_FLOPS,
        "rounds": ROUNDS,
        "optimizer_ms": {},
        "cases": [],
    }
    for kind in [arguments.only] if arguments.only else CONFIGS:
        model, encoder, folder = build(kind)
        n_parameters = sum(p.numel() for p in model.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.05, fused=True)
        print(f"{kind}: {n_parameters / 1e9:.2f}B parameters, {sum(p.numel() for p in trained) / 1e9:.2f}B trained")
        for n, text_tokens in ((2, 220), (8, 220), (2, 8192)):
            inputs = batch(encoder, folder, n, text_tokens)
            found: dict[str, list[tuple[float, float]]] = {"two rows": [], "full logits": []}
            try:
                for number in range(ROUNDS + 1):
                    ways = [("two rows", ours), ("full logits", full_logits)]
                    for name, way in ways if number % 2 else ways[::-1]:  # neither is always first
                        row = measure(model, way, inputs)
                        found[name] += [row] if number else []  # the first round warms up, and leaves gradients
            except torch.OutOfMemoryError as error:
                print(f"  {n} rollouts of {inputs['input_ids'].shape[1]} tokens: {str(error)[:80]}")
            n_tokens, work = int(inputs["attention_mask"].sum()), flops(model, inputs)
            for name, rows in found.items():
                if not rows:
                    continue
                passed = statistics.median(row[0] for row in rows)
                case = {
                    "backbone": kind,
                    "parameters": n_parameters,
                    "rollouts": n,
                    "tokens": n_tokens,
                    "read_out": name,
                    "forward_backward_ms": 1e3 * passed,
                    "tokens_per_s": n_tokens / passed,
                    "forward_backward_peak_gib": max(row[1] for row in rows),
                    "mfu": work / passed / PEAK_FLOPS,
                    "all_forward_backward_ms": [1e3 * row[0] for row in rows],
                }
                results["cases"].append(case)
                print(
                    f"  {n} × {n_tokens // n:,} tokens, {name}: {1e3 * passed:.0f} ms,"
                    f" {n_tokens / passed:,.0f} tokens/s, {case['forward_backward_peak_gib']:.1f} GiB,"
                    f" MFU {case['mfu']:.3f}"
                )
            del inputs
            torch.cuda.empty_cache()
        seconds = statistics.median([measure_optimizer(optimizer) for _ in range(4)][1:])
        results["optimizer_ms"][kind] = 1e3 * seconds
        print(f"  AdamW: {1e3 * seconds:.0f} ms")
        del model, optimizer, trained
        torch.cuda.empty_cache()
    Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

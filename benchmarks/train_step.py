"""One training step at the true sizes of Qwen2.5-VL-7B and InternVL2.5-8B: our read-out against full logits.

Weights are random, images are real files that go through the real preprocessing, and each way runs forward
and backward in the same process, in turns; AdamW is timed by itself. Prints a table and writes JSON.

    python benchmarks/train_step.py --out benchmarks/results/train_step.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from mprm.data.types import Chain
from mprm.training import step_loss_sum
from true_size import (
    CONFIGS,
    PEAK_FLOPS,
    Built,
    build,
    flops_of,
    n_pairs_of,
    n_patches_of,
    on_device,
    peak_gib,
    reset_peak,
    synchronize,
    where,
    write_image,
)

ROUNDS = 6


def batch(built: Built, n: int, text_tokens: int) -> dict[str, Any]:
    """``n`` rollouts with one image each, of about that many tokens of text in eight steps."""
    chains = []
    for number in range(n):
        name = write_image(built.folder, number)
        words = "the sum of 12 and 30 is 42 " * 4000
        steps = tuple(words[: max(8, text_tokens // 8 * 2)] for _ in range(8))
        chains.append(Chain("what is the sum of the numbers?", steps, (name,)))
    encoder = built.encoder
    return on_device(built.model, encoder.collate([encoder.encode(chain) for chain in chains]))


def ours(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    return step_loss_sum(model(**inputs)["logits"], labels) / len(labels)


def full_logits(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """What computing every position's logits in float32, then keeping two columns at ``<prm>``, costs."""
    rest = {name: value for name, value in inputs.items() if name != "prm_index"}
    hidden = model.model(**rest, use_cache=False)[0]
    head = model.get_output_embeddings()
    logits = F.linear(hidden, head.weight).float().flatten(0, 1)
    return step_loss_sum(logits[inputs["prm_index"]][:, head.rows], labels) / len(labels)


def measure(model: Any, way: Any, inputs: dict[str, Any]) -> tuple[float, float | None]:
    """Seconds and peak GiB of forward and backward; gradients of earlier ones are there, as under accumulation."""
    labels = (torch.arange(len(inputs["prm_index"]), device=model.device) % 2).float()
    synchronize()
    reset_peak()
    began = time.perf_counter()
    way(model, inputs, labels).backward()
    synchronize()
    return time.perf_counter() - began, peak_gib()


def measure_optimizer(optimizer: Any) -> float:
    synchronize()
    began = time.perf_counter()
    optimizer.step()
    synchronize()
    return time.perf_counter() - began


def flops(model: Any, inputs: dict[str, Any]) -> float:
    """Model FLOPs of forward and backward; rollouts of one length need no padding."""
    n_tokens, n_pairs, n_patches = inputs["input_ids"].numel(), n_pairs_of(inputs), n_patches_of(model, inputs)
    return flops_of(model, n_tokens=n_tokens, n_pairs=n_pairs, n_patches=n_patches, is_trained=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--only", choices=CONFIGS)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--tiny", action="store_true", help="small models on the CPU, to try the script out")
    arguments = options.parse_args()
    shapes = ((2, 22), (3, 22)) if arguments.tiny else ((2, 220), (8, 220), (2, 8192))
    results: dict[str, Any] = {
        "command": "python benchmarks/train_step.py --out benchmarks/results/train_step.json",
        **where(),
        "peak_flops": PEAK_FLOPS,
        "rounds": arguments.rounds,
        "optimizer_ms": {},
        "cases": [],
    }
    for kind in [arguments.only] if arguments.only else CONFIGS:
        built = build(kind, tiny=arguments.tiny, is_trained=True)
        model = built.model
        n_parameters = sum(p.numel() for p in model.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.05, fused=True)
        print(f"{kind}: {n_parameters / 1e9:.2f}B parameters, {sum(p.numel() for p in trained) / 1e9:.2f}B trained")
        for n, text_tokens in shapes:
            inputs = batch(built, n, text_tokens)
            found: dict[str, list[tuple[float, float]]] = {"two rows": [], "full logits": []}
            try:
                for number in range(arguments.rounds + 1):
                    ways = [("two rows", ours), ("full logits", full_logits)]
                    for name, way in ways if number % 2 else ways[::-1]:  # neither is always first
                        row = measure(model, way, inputs)
                        found[name] += [row] if number else []  # the first round warms up, and leaves gradients
            except torch.OutOfMemoryError as error:
                print(f"  {n} rollouts of {inputs['input_ids'].shape[1]} tokens: {str(error)[:80]}")
            n_tokens, work = inputs["input_ids"].numel(), flops(model, inputs)
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
                    "forward_backward_peak_gib": max((row[1] for row in rows if row[1] is not None), default=None),
                    "mfu": work / passed / PEAK_FLOPS,
                    "all_forward_backward_ms": [1e3 * row[0] for row in rows],
                }
                results["cases"].append(case)
                print(
                    f"  {n} × {n_tokens // n:,} tokens, {name}: {1e3 * passed:.0f} ms,"
                    f" {n_tokens / passed:,.0f} tokens/s, {case['forward_backward_peak_gib'] or 0:.1f} GiB,"
                    f" MFU {case['mfu']:.3f}"
                )
            del inputs
            torch.cuda.empty_cache()
        seconds = statistics.median([measure_optimizer(optimizer) for _ in range(4)][1:])
        results["optimizer_ms"][kind] = 1e3 * seconds
        print(f"  AdamW: {1e3 * seconds:.0f} ms")
        del built, model, optimizer, trained
        torch.cuda.empty_cache()
    Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

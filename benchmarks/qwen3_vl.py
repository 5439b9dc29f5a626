"""Qwen3-VL-8B beside Qwen2.5-VL-7B, both at their true sizes with random weights: a training step and scoring.

    python benchmarks/qwen3_vl.py --out benchmarks/results/qwen3_vl.json

Batches are padded for both, as they are for Qwen3-VL in mprm. Images have at most 256 tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from train_step import batch, measure, ours
from true_size import build, peak_gib, reset_peak, synchronize, where

KINDS = ("qwen2_5_vl", "qwen3_vl")
ROLLOUTS, TEXT_TOKENS = 8, 220


def scoring(model: Any, inputs: dict[str, Any], _labels: Any = None) -> tuple[float, float | None]:
    """Seconds and peak GiB of a forward pass without gradients."""
    import time

    synchronize()
    reset_peak()
    began = time.perf_counter()
    with torch.no_grad():
        model(**inputs)
    synchronize()
    return time.perf_counter() - began, peak_gib()


def main() -> None:
    """Measure both, print a line each, write JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", required=True)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--tiny", action="store_true", help="small models on the CPU, to try the script out")
    arguments = options.parse_args()
    command = "python benchmarks/qwen3_vl.py --out benchmarks/results/qwen3_vl.json"
    results: dict[str, Any] = {"command": command, "rounds": arguments.rounds, **where(), "cases": []}
    for kind in KINDS:
        built = build(kind, tiny=arguments.tiny, is_trained=True)
        model = built.model
        inputs = batch(built, ROLLOUTS, TEXT_TOKENS)
        rows = {"training step": [measure(model, ours, inputs) for _ in range(arguments.rounds + 1)][1:]}
        model.zero_grad(set_to_none=True)
        model.eval()
        rows["scoring"] = [scoring(model, inputs) for _ in range(arguments.rounds + 1)][1:]
        for work, times in rows.items():
            seconds, n_tokens = statistics.median(row[0] for row in times), inputs["input_ids"].numel()
            case = {
                "model": kind,
                "parameters": sum(p.numel() for p in model.parameters()),
                "work": work,
                "rollouts": ROLLOUTS,
                "tokens": n_tokens,
                "ms": 1e3 * seconds,
                "tokens_per_s": n_tokens / seconds,
                "peak_gib": max((row[1] for row in times if row[1] is not None), default=None),
                "all_ms": [1e3 * row[0] for row in times],
            }
            results["cases"].append(case)
            print(*(f"{name} {value}" for name, value in case.items() if name != "all_ms"), sep=", ", flush=True)
        Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")
        del built, model, inputs
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Forward and backward over the rollouts of a problem: one by one, padded, and packed behind one prompt.

Weights are random, images are real files that went through the real preprocessing, gradient checkpointing is
on, gradients of earlier passes are there as under accumulation, and the ways run in the same process in
turns. The vision tower is in every time; the optimizer, which is the same for all, in none.

    python benchmarks/training.py --out benchmarks/results/training.json

A case that is in the file already is not measured again; --only names some of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mprm.data.types import Chain
from mprm.models import TokenizedChain, collate_tree
from mprm.models.attention import TreeOnDevice, node_by_node, tree_attention
from mprm.training import step_loss_sum
from mprm.training.trainer import liger_kernels, why_no_liger
from true_size import (
    CONFIGS,
    PEAK_FLOPS,
    Built,
    build,
    flops_of,
    kernel_ms,
    n_pairs_of,
    n_patches_of,
    on_device,
    peak_gib,
    reset_peak,
    step_text,
    synchronize,
    vision_alone,
    where,
    write_image,
)

N_STEPS, STEP_TOKENS = 8, 27
ROUNDS = 6
SHAPES = {"4 of a problem": (1, 4), "2 problems of 4": (2, 4), "8 of unlike problems": (8, 1)}
"""Problems, and rollouts of each; those of unlike problems have 2 to 16 steps."""
WATCHED = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "linear_1.weight", "mlp.0.weight")
"""Whose gradients are compared: the first layer's, which all others come through, and the projector's."""


def rollouts(built: Built, shape: str, *, tiny: bool) -> list[TokenizedChain]:
    n_problems, n_each = SHAPES[shape]
    length, found = 8 if tiny else STEP_TOKENS, []
    for problem in range(n_problems):
        image, question = write_image(built.folder, problem), f"what is the sum of {problem}? " + "hm " * 20
        for number in range(n_each):
            n_steps = N_STEPS if n_each > 1 else 2 + 2 * problem
            steps = tuple(step_text(built.encoder, length, 100 * number + k) for k in range(n_steps))
            found.append(built.encoder.encode(Chain(question, steps, (image,))))
    return found


@torch.no_grad()
def loss(built: Built, batches: list[dict[str, Any]]) -> float:
    """Mean over the steps, with the labels of `passed`."""
    logits = torch.cat([built.model(**inputs)["logits"] for inputs in batches])
    labels = torch.cat([torch.arange(len(inputs["prm_index"]), device=logits.device) % 2 for inputs in batches])
    return float(step_loss_sum(logits, labels.float()) / len(labels))


def passed(built: Built, batches: list[dict[str, Any]]) -> None:
    n_steps = sum(len(inputs["prm_index"]) for inputs in batches)
    for inputs in batches:
        labels = (torch.arange(len(inputs["prm_index"]), device=built.model.device) % 2).float()
        (step_loss_sum(built.model(**inputs)["logits"], labels) / n_steps).backward()


def timed(work: Callable[[], Any]) -> tuple[float, float | None]:
    """Seconds and peak GiB."""
    synchronize()
    reset_peak()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began, peak_gib()


def gradients(built: Built, batches: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    built.model.zero_grad()
    passed(built, batches)
    named = built.model.named_parameters()
    # in float64: in float32 the sum over millions of squares is off by more than the gradients differ
    return {n: p.grad.double() for n, p in named if n.endswith(WATCHED) and p.grad is not None}


def kernel_errors(built: Built, inputs: dict[str, Any]) -> dict[str, float]:
    """How far the tree's attention in bf16, forward and backward, is from float32, node by node: relative norms."""
    text, device = built.model.config.get_text_config(), built.model.device
    n_tokens, width = inputs["input_ids"].shape[1], text.hidden_size // text.num_attention_heads
    layer = SimpleNamespace(num_key_value_groups=text.num_attention_heads // text.num_key_value_heads, is_causal=True)
    generator = torch.Generator(device).manual_seed(0)
    counts = (text.num_attention_heads, text.num_key_value_heads, text.num_key_value_heads)
    drawn = [torch.randn(1, n, n_tokens, width, device=device, generator=generator) for n in counts]
    half, exact = ([s.to(dtype).requires_grad_() for s in drawn] for dtype in (torch.bfloat16, torch.float32))
    tree = TreeOnDevice(inputs["tree"], device)
    found = tree_attention(layer, *half, None, tree=tree)[0]
    expected = node_by_node(layer, *exact, inputs["tree"])
    direction = torch.randn(expected.shape, device=device, generator=generator)
    found.backward(direction.to(found.dtype))
    expected.backward(direction)
    pairs = {"output": (found, expected)}
    pairs |= {f"gradient_of_{n}": (h.grad, e.grad) for n, h, e in zip("qkv", half, exact, strict=True)}
    return {name: float((h.float() - e).detach().norm() / e.detach().norm()) for name, (h, e) in pairs.items()}


def measure(built: Built, shape: str, *, tiny: bool, rounds: int, liger: bool) -> list[dict[str, Any]]:
    batch = rollouts(built, shape, tiny=tiny)
    collate = built.encoder.collate
    ways = {
        "padded": [on_device(built.model, collate(batch))],
        "one by one": [on_device(built.model, collate([one])) for one in batch],
        "packed": [on_device(built.model, collate_tree(built.encoder, batch))],
    }
    if liger:
        del ways["one by one"]
    errors = kernel_errors(built, ways["packed"][0])
    losses = {name: loss(built, batches) for name, batches in ways.items()}
    differences = dict[str, float]()
    if not liger:
        exact = gradients(built, ways["one by one"])
        for name in ("padded", "packed"):
            found = gradients(built, ways[name])
            differences[name] = max(float((found[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        del exact, found
    rows: dict[str, list[tuple[float, float | None]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            row = timed(lambda name=name: passed(built, ways[name]))
            rows[name] += [row] if number else []  # the first round warms up
    cases = [_case(built, shape, name, ways, rows, differences.get(name, None if liger else 0.0)) for name in ways]
    cases[-1]["kernel_errors"] = errors
    for case in cases:
        case |= {"liger": liger, "loss": losses[case["way"]]}
        inputs = ways[case["way"]]
        case["vision_ms"] = 1e3 * statistics.median(
            timed(lambda i=inputs: [vision_alone(built, one) for one in i])[0] for _ in range(3)
        )
        case["kernel_ms"] = kernel_ms(lambda i=inputs: passed(built, i))
    return cases


def _case(built: Built, shape: str, way: str, ways: Any, rows: Any, difference: float | None) -> dict[str, Any]:
    def work(name: str) -> tuple[int, float]:
        n_tokens = sum(one["input_ids"].numel() for one in ways[name])
        flops = sum(
            flops_of(built.model, n_tokens=one["input_ids"].numel(), n_pairs=n_pairs_of(one),
                     n_patches=n_patches_of(built.model, one), is_trained=True)
            for one in ways[name]
        )  # fmt: skip
        return n_tokens, flops

    seconds, plain = (statistics.median(row[0] for row in rows[name]) for name in (way, "padded"))
    (n_tokens, flops), (n_plain, plain_flops) = work(way), work("padded")
    return {
        "backbone": built.kind,
        "shape": shape,
        "way": way,
        "tokens_computed": n_tokens,
        "ms": 1e3 * seconds,
        "speedup": plain / seconds,
        "bound_by_tokens": n_plain / n_tokens,
        "bound_by_flops": plain_flops / flops,
        "tflop": flops / 1e12,
        "mfu": flops / seconds / PEAK_FLOPS,
        "peak_gib": None if rows[way][0][1] is None else max(row[1] for row in rows[way]),
        "relative_difference_of_gradients": difference,
        "all_ms": [1e3 * row[0] for row in rows[way]],
    }


def main(words: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", required=True)
    options.add_argument("--only", nargs="*", default=[], choices=CONFIGS)
    options.add_argument("--tiny", action="store_true", help="small models on the CPU, to try the script out")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = options.parse_args(words)
    out = Path(arguments.out)
    results = json.loads(out.read_text()) if out.exists() else {}
    results = {"command": "python benchmarks/training.py --out benchmarks/results/training.json",
               "peak_flops": PEAK_FLOPS, "rounds": arguments.rounds, "tiny": arguments.tiny, **where(),
               "cases": results.get("cases", [])}  # fmt: skip
    done = {(case["backbone"], case["shape"], case.get("liger", False)) for case in results["cases"]}
    for kind in arguments.only or CONFIGS:
        with ExitStack() as stack:
            built: Built | None = None
            for liger in (False, True):  # in this order: it is not taken out of a model again
                for shape in SHAPES:
                    if (kind, shape, liger) in done:
                        continue
                    built = built or build(kind, tiny=arguments.tiny, is_trained=True)
                    if liger and not built.has_liger:
                        if reason := why_no_liger(built.model, str(built.model.device)):
                            print(f"{kind}: no liger-kernel: {reason}")
                            break
                        stack.enter_context(liger_kernels(built.model))
                        built.has_liger = True
                    cases = measure(built, shape, tiny=arguments.tiny, rounds=arguments.rounds, liger=liger)
                    results["cases"] += cases
                    out.write_text(json.dumps(results, indent=2) + "\n")
                    for case in cases:
                        shown = {
                            k: round(v, 4) if isinstance(v, float) else v for k, v in case.items() if "all" not in k
                        }
                        print(*(f"{key} {value}" for key, value in shown.items()), sep=", ", flush=True)
        del built
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

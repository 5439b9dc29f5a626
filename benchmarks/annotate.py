"""Continuations a second for Monte-Carlo annotation: plain generate, shared prefixes, and these in full batches.

The policy has random weights, at the sizes of a small Qwen2.5-VL and of the lab's policy. A rollout has six
steps of about 30 tokens; 16 continuations are drawn after each of the steps 1 to 5. As random weights never end
an answer, a continuation is as long as what is left of its rollout: 150, 120, … 30 tokens, all 16 alike.

- plain: TransformersSampler, one request at a time. Its speed does not depend on how many there are, so that it is
  given the prefixes after steps 1, 3 and 5 of one rollout, whose mean length is that of all.
- shared: PrefixSampler with room for one request, 16 rows, on the same requests: what sharing alone gives.
- full: PrefixSampler with its default number of rows, on all prefixes of four rollouts of each question.

All ways run in one process, in turns. Prints a table and writes JSON.

    python benchmarks/annotate.py --out benchmarks/results/annotate.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from mprm.annotation import PrefixSampler, TransformersSampler
from mprm.annotation.samplers.sampler import Request, SamplingParams, answers
from mprm.models import FAMILIES, Backbone
from tiny_models import tiny_tokenizer

N_STEPS, STEP_TOKENS, QUESTION_TOKENS, CONTINUATIONS = 6, 30, 60, 16
WORDS = ("the", "sum", "of", "12", "and", "30", "is", "42", "bar", "how", "long", "answer", "question", "what", "Yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a policy, as its configuration names it."""

    text: dict[str, int]
    vision: dict[str, Any]


SIZES = {
    "half": Size(
        text=dict(
            hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
            intermediate_size=4864, vocab_size=151936,
        ),
        vision=dict(depth=8, hidden_size=640, intermediate_size=1708, num_heads=10, fullatt_block_indexes=[3, 7]),
    ),
    "lab": Size(
        text=dict(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=1024, vocab_size=4096,
        ),
        vision=dict(depth=2, hidden_size=128, intermediate_size=256, num_heads=4, fullatt_block_indexes=[1]),
    ),
    "tiny": Size(
        text=dict(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=64, vocab_size=512,
        ),
        vision=dict(depth=2, hidden_size=16, intermediate_size=32, num_heads=2, fullatt_block_indexes=[1]),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured together."""

    size: str
    image: tuple[int, int]
    """Height and width in tokens of 28 × 28 pixels."""
    questions: int = 4
    rollouts: int = 4
    continuations: int = CONTINUATIONS


SCALES = {
    "full": [
        Case(size="half", image=(16, 16)),
        Case(size="half", image=(42, 43)),  # 1,806 tokens, as InternVL at six tiles and a thumbnail has
        Case(size="lab", image=(16, 16)),
    ],
    "tiny": [Case(size="tiny", image=(4, 4), questions=2, rollouts=1, continuations=4)],
}


def policy_of(size: Size, device: str) -> Backbone:
    """Random weights with a real tokenizer and image processor, as `load_backbone` would load them."""
    from transformers import Qwen2_5_VLConfig

    family, tokenizer = FAMILIES["qwen2_5_vl"], tiny_tokenizer("qwen2_5_vl")
    start, pad, end = (tokenizer.convert_tokens_to_ids(token) for token in family.image_tokens)
    half = size.text["hidden_size"] // size.text["num_attention_heads"] // 2
    sections = [half // 4, 3 * half // 8, half - half // 4 - 3 * half // 8]
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 1e6}
    config = Qwen2_5_VLConfig(
        text_config=size.text | dict(rope_parameters=rope, use_sliding_window=False, max_position_embeddings=32768,
                                    bos_token_id=None, eos_token_id=None),
        vision_config=size.vision | dict(out_hidden_size=size.text["hidden_size"]),
        image_token_id=pad, vision_start_token_id=start, vision_end_token_id=end,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"), tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if device.startswith("cuda") else torch.float32)
    with torch.device(device):
        model = family.model_class()(config).eval()
    torch.set_default_dtype(torch.float32)
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)  # as load_backbone does
    model.generation_config.eos_token_id = [size.text["vocab_size"]]  # beyond what can be drawn: no answer ends
    return Backbone(family, model, tokenizer, processor_of(config))


def processor_of(config: Any) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    folder = tempfile.mkdtemp()
    Qwen2VLImageProcessorPil().save_pretrained(folder)
    config.save_pretrained(folder)
    return FAMILIES["qwen2_5_vl"].image_processor(folder, {"max_pixels": 2048 * 784})


def text_of(rng: Any, tokenizer: Any, n_tokens: int) -> str:
    """Words of about that many tokens."""
    words: list[str] = []
    while len(tokenizer.encode(" ".join(words))) < n_tokens:
        words.append(str(rng.choice(WORDS)))
    return " ".join(words)


def requests_of(case: Case, policy: Backbone) -> list[list[Request]]:
    """For each rollout of each question, a request for each of its prefixes."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    height, width = (28 * side for side in case.image)
    found = []
    for _ in range(case.questions):
        image = Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
        question = text_of(rng, policy.tokenizer, QUESTION_TOKENS)
        for _ in range(case.rollouts):
            steps = [text_of(rng, policy.tokenizer, STEP_TOKENS) for _ in range(N_STEPS)]
            found.append(
                [
                    Request(
                        prompt=question,
                        images=(image,),
                        prefix="\n\n".join(steps[:n_done]) + "\n\n",
                        n=case.continuations,
                        seed=len(found) * N_STEPS + n_done,
                        sampling=SamplingParams(max_new_tokens=(N_STEPS - n_done) * STEP_TOKENS),
                    )
                    for n_done in range(1, N_STEPS)
                ]
            )
    return found


@contextmanager
def counted(model: Any) -> Iterator[dict[str, int]]:
    """Tokens that go through the language model, and images that go through the vision tower."""
    counts = {"tokens_read": 0, "tokens_drawn": 0, "images": 0}

    def language(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        n_rows, n_tokens = given["inputs_embeds"].shape[:2]
        counts["tokens_read" if n_tokens > 1 else "tokens_drawn"] += n_rows * n_tokens

    def vision(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        counts["images"] += len(given["grid_thw"])

    hooks = [
        model.model.language_model.register_forward_pre_hook(language, with_kwargs=True),
        model.model.visual.register_forward_pre_hook(vision, with_kwargs=True),
    ]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def measure(sampler: Any, requests: list[Request], policy: Backbone) -> dict[str, Any]:
    is_cuda = policy.model.device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with counted(policy.model) as counts:
        began = time.perf_counter()
        found = list(answers(sampler, requests))
        if is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    wanted = {number: request.sampling.max_new_tokens for number, request in enumerate(requests)}
    assert all(completion.n_tokens == wanted[number] for number, row in found for completion in row)
    peak = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None
    return {"seconds": seconds, "continuations": sum(len(row) for _, row in found), "peak_gib": peak, **counts}


def run_case(case: Case, device: str, rounds: int) -> list[dict[str, Any]]:
    policy = policy_of(SIZES[case.size], device)
    by_rollout = requests_of(case, policy)
    few = by_rollout[0][::2]
    all_ = [request for requests in by_rollout for request in requests]
    ways: dict[str, tuple[Any, list[Request]]] = {
        "plain": (TransformersSampler(policy, name="p", rows_per_batch=case.continuations), few),
        "shared": (PrefixSampler(policy, name="p", rows=case.continuations), few),
        "full": (PrefixSampler(policy, name="p"), all_),
    }
    for sampler, requests in ways.values():  # warms up: the same shapes, a few tokens each
        short = [replace(r, sampling=replace(r.sampling, max_new_tokens=4)) for r in requests]
        list(answers(sampler, short))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number in range(rounds):
        order = list(ways) if number % 2 else list(ways)[::-1]  # none is always first
        for name in order:
            runs[name].append(measure(*ways[name], policy))
    n_parameters = sum(p.numel() for p in policy.model.parameters())
    return [summary(case, name, rows, runs["plain"], n_parameters) for name, rows in runs.items()]


def rate(rows: list[dict[str, Any]]) -> float:
    return statistics.median(row["continuations"] / row["seconds"] for row in rows)


def summary(
    case: Case, way: str, rows: list[dict[str, Any]], plain: list[dict[str, Any]], n_parameters: int
) -> dict[str, Any]:
    first = rows[0]
    return {
        "policy": case.size,
        "parameters": n_parameters,
        "image_tokens": case.image[0] * case.image[1],
        "way": way,
        "continuations": first["continuations"],
        "continuations_per_s": rate(rows),
        "times_plain": rate(rows) / rate(plain),
        "median_s": statistics.median(row["seconds"] for row in rows),
        "all_s": [row["seconds"] for row in rows],
        "tokens_read": first["tokens_read"],
        "tokens_drawn": first["tokens_drawn"],
        "images": first["images"],
        "peak_gib": max((row["peak_gib"] for row in rows), key=lambda peak: peak or 0),
    }


def show(row: dict[str, Any]) -> None:
    n = row["continuations"]
    print(
        f"{row['policy']:>5} {row['parameters'] / 1e6:>6.0f}M {row['image_tokens']:>6,} {row['way']:>7}"
        f" {row['continuations_per_s']:>10,.1f}/s {row['times_plain']:>7.1f}×"
        f" {row['tokens_read'] / n:>9,.0f} {row['tokens_drawn'] / n:>9,.0f} {row['median_s']:>8.2f} s",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--scale", choices=SCALES, default="full", help="tiny is a smoke run for the CPU")
    arguments = options.parse_args()
    import transformers

    is_cuda = arguments.device.startswith("cuda")
    results: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/annotate.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if is_cuda else arguments.device,
        "dtype": "bfloat16" if is_cuda else "float32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rounds": arguments.rounds,
        "cases": [],
    }
    print("policy    size  image      way continuations  to plain  read each drawn each   median")
    for case in SCALES[arguments.scale]:
        for row in run_case(case, arguments.device, arguments.rounds):
            show(row)
            results["cases"].append(row)
        Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")
        if is_cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

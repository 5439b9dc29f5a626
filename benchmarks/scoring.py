"""Scoring the candidates of a problem: one by one, in padded batches, and behind one shared prefix.

Weights are random, images are real files that went through the real preprocessing, and the ways run in the
same process in turns. The vision tower is in every time. The last part is mprm rerank from end to end, on
questions and pictures of the lab with a reward model of the lab's size.

    python benchmarks/scoring.py --out benchmarks/results/scoring.json

A case that is in the file already is not measured again; --only names some of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import mprm
from mprm.data.types import Chain
from mprm.evaluation import RerankConfig
from mprm.models import PRM, PRMConfig, TokenizedChain, attention as tree_attention, collate_tree, step_probabilities
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

N_CANDIDATES, N_STEPS, STEP_TOKENS = 16, 8, 27
"""216 tokens a candidate; their first token is joined by the prompt's last."""
ROUNDS = 7
SHAPES = {"candidates": 0, "trie": 4}
"""Leading steps that four candidates each have in common, besides image and question."""


def candidates(built: Built, shared_steps: int, *, tiny: bool) -> list[TokenizedChain]:
    image, length = write_image(built.folder, 0), 8 if tiny else STEP_TOKENS
    chains = []
    for number in range(N_CANDIDATES):
        seeds = [number // 4 if place < shared_steps else 100 + number for place in range(N_STEPS)]
        steps = tuple(step_text(built.encoder, length, seed) for seed in seeds)
        chains.append(Chain("what is the sum of the numbers? " + "hm " * 20, steps, (image,)))
    return [built.encoder.encode(chain) for chain in chains]


@torch.inference_mode()
def scored(built: Built, batches: list[dict[str, Any]]) -> list[float]:
    return [p for inputs in batches for p in step_probabilities(built.model(**inputs)["logits"]).tolist()]


def timed(work: Callable[[], Any]) -> tuple[float, float | None, Any]:
    """Seconds, peak GiB, and what was found."""
    synchronize()
    reset_peak()
    began = time.perf_counter()
    found = work()
    synchronize()
    return time.perf_counter() - began, peak_gib(), found


def measure(built: Built, shape: str, *, tiny: bool, rounds: int) -> list[dict[str, Any]]:
    batch = candidates(built, SHAPES[shape], tiny=tiny)
    collate = built.encoder.collate
    ways = {
        "one by one": [on_device(built.model, collate([one])) for one in batch],
        "batched": [on_device(built.model, collate(batch))],
        "shared": [on_device(built.model, collate_tree(built.encoder, batch))],
    }
    ways["shared, node by node"] = ways["shared"]  # what a device without flash attention does
    found: dict[str, list[tuple[float, float | None, Any]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            plain = patch.object(tree_attention, "can_flash", lambda _: False) if "node" in name else nullcontext()
            with plain:
                row = timed(lambda name=name: scored(built, ways[name]))
            found[name] += [row] if number else []  # the first round warms up
    vision = [timed(lambda: vision_alone(built, ways["shared"][0]))[0] for _ in range(rounds + 1)][1:]
    cases = [_case(built, shape, name, inputs, found) for name, inputs in ways.items()]
    for case in cases:
        case["vision_once_ms"] = 1e3 * statistics.median(vision)
    for case in (cases[0], cases[2]):
        case["kernel_ms"] = kernel_ms(lambda way=case["way"]: scored(built, ways[way]))
    return cases


def _case(built: Built, shape: str, way: str, inputs: list[dict[str, Any]], found: Any) -> dict[str, Any]:
    first = found["one by one"]
    seconds = statistics.median(row[0] for row in found[way])
    n_tokens = sum(one["input_ids"].numel() for one in inputs)
    flops = sum(
        flops_of(built.model, n_tokens=one["input_ids"].numel(), n_pairs=n_pairs_of(one),
                 n_patches=n_patches_of(built.model, one), is_trained=False)
        for one in inputs
    )  # fmt: skip
    return {
        "backbone": built.kind,
        "shape": shape,
        "way": way,
        "candidates": N_CANDIDATES,
        "tokens_computed": n_tokens,
        "ms": 1e3 * seconds,
        "speedup": statistics.median(row[0] for row in first) / seconds,
        "tflop": flops / 1e12,
        "mfu": flops / seconds / PEAK_FLOPS,
        "peak_gib": None if found[way][0][1] is None else max(row[1] for row in found[way]),
        "largest_difference_of_a_score": max(
            abs(a - b) for a, b in zip(found[way][-1][2], first[-1][2], strict=True)
        ),
        "all_ms": [1e3 * row[0] for row in found[way]],
    }  # fmt: skip


def with_bounds(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with the speed-up that its number of FLOPs would give at the utilisation of one by one."""
    one = cases[0]
    return [{**case, "bound_by_tokens": one["tokens_computed"] / case["tokens_computed"],
             "bound_by_flops": one["tflop"] / case["tflop"]} for case in cases]  # fmt: skip


def rerank_on_the_lab(kind: str, *, tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Sixteen solutions to each of the lab's questions; wall time of rerank, model loaded, images read.

    Scoring is also timed by itself, in calls of its own.
    """
    from mprm_lab.policy.architecture import Size, new_policy, save_policy
    from mprm_lab.world import problems_of, solution, write_images

    folder = Path(tempfile.mkdtemp())
    problems = problems_of("best-of-n", 3 if tiny else 200 if torch.cuda.is_available() else 50)
    write_images(problems, folder / "images")
    with (folder / "candidates.jsonl").open("w") as lines:
        for problem in problems:
            question = problem.as_question()
            texts = ["\n\n".join(solution(problem, number)) for number in range(N_CANDIDATES)]
            record = {"id": question.id, "source": question.source, "question": question.question,
                      "answer": question.answer, "images": [problem.image], "options": list(question.options),
                      "candidates": [{"text": text} for text in texts]}  # fmt: skip
            lines.write(json.dumps(record) + "\n")
    size = Size(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vision_hidden=32, vision_layers=1,
                vision_heads=2) if tiny else Size()  # fmt: skip
    save_policy(new_policy(kind, size=size), folder / "policy")
    PRM.from_pretrained(folder / "policy", PRMConfig(), device="cpu").save_pretrained(folder / "prm")
    device = "cpu" if tiny else "auto"
    models = {
        name: PRM.from_pretrained(folder / "prm", image_root=folder / "images", device=device, share_prefixes=share)
        for name, share in (("plain", False), ("shared", True))
    }
    config = RerankConfig(draws=2)

    def run(name: str) -> float:
        return timed(lambda: mprm.rerank(str(folder / "candidates.jsonl"), models[name], config=config))[0]

    def score(name: str) -> float:
        from mprm.data import read_candidates
        from mprm.evaluation import score_candidates

        sets = read_candidates(str(folder / "candidates.jsonl"))
        return timed(lambda: score_candidates(sets, models[name]))[0]

    whole: dict[str, list[float]] = {name: [] for name in models}
    scoring: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name in list(models)[:: 1 if number % 2 else -1]:
            for found, work in ((whole, run), (scoring, score)):
                seconds = work(name)
                found[name] += [seconds] if number else []
    return [
        {"backbone": kind, "shape": "rerank", "way": name, "questions": len(problems), "candidates": N_CANDIDATES,
         "seconds": statistics.median(whole[name]), "scoring_alone": statistics.median(scoring[name]),
         "all_seconds": whole[name], "all_scoring_alone": scoring[name]}
        for name in models
    ]  # fmt: skip


def main(words: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", required=True)
    options.add_argument("--only", nargs="*", default=[], help="such as internvl/candidates or qwen2_5_vl/rerank")
    options.add_argument("--tiny", action="store_true", help="small models on the CPU, to try the script out")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = options.parse_args(words)
    out = Path(arguments.out)
    results = json.loads(out.read_text()) if out.exists() else {}
    asked = " ".join(["python benchmarks/scoring.py", *(sys.argv[1:] if words is None else words)])
    how = {"peak_flops": PEAK_FLOPS, "rounds": arguments.rounds, "tiny": arguments.tiny, **where()}
    if others := [name for name in how if name in results and results[name] != how[name]]:
        raise SystemExit(f"{out} was measured with another {others[0]} ({results[others[0]]}); give another --out")
    results = {"command": results.get("command", asked), **how, "cases": results.get("cases", [])}
    done = {f"{case['backbone']}/{case['shape']}" for case in results["cases"]}

    def wanted(name: str) -> bool:
        return name not in done and (not arguments.only or name in arguments.only)

    def keep(cases: list[dict[str, Any]]) -> None:
        results["cases"] += cases
        out.write_text(json.dumps(results, indent=2) + "\n")
        for case in cases:
            shown = {key: round(v, 3) if isinstance(v, float) else v for key, v in case.items() if "all" not in key}
            print(*(f"{key} {value}" for key, value in shown.items()), sep=", ", flush=True)

    for kind in CONFIGS:
        shapes = [shape for shape in SHAPES if wanted(f"{kind}/{shape}")]
        built = build(kind, tiny=arguments.tiny) if shapes else None
        for shape in shapes:
            keep(with_bounds(measure(built, shape, tiny=arguments.tiny, rounds=arguments.rounds)))
        del built
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    for kind in CONFIGS:  # last: checking answers needs math-verify
        if wanted(f"{kind}/rerank"):
            keep(rerank_on_the_lab(kind, tiny=arguments.tiny, rounds=min(3, arguments.rounds)))


if __name__ == "__main__":
    main()

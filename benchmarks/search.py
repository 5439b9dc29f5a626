"""Guided search in the lab at equal token budgets: best-of-N, beam search and DVTS with the same reward model.

The policy samples at a high temperature, so that there is something to choose. Best-of-N gets as many candidates as
have the tokens that beam search sampled, dropped steps included; so does the vote. Differences are paired by problem.
With --top-p 1 the policy also writes what no rollout that the reward model was trained on looks like.

    mprm-lab open LAB
    mprm train LAB/corpus.jsonl --model LAB/policies/small --image-root LAB/images --out PRM \
        --learning-rate 1e-4 --batch-size 64 --per-device 64 --max-length 1024 --no-gradient-checkpointing
    python benchmarks/search.py --lab LAB --prm PRM --questions 150 --out benchmarks/results/search.json
    python benchmarks/search.py --lab LAB --prm PRM --top-p 1 --out benchmarks/results/search_top_p_1.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import mprm
from mprm.data.candidates import read_candidates
from mprm.evaluation import aggregate, bootstrap_means, candidate_verdicts, estimate
from mprm.evaluation.best_of_n import expected_best, expected_oracle, expected_vote, subsets

N_QUESTIONS, N, N_WHOLE = 300, 16, 32
SAMPLING = {"temperature": 1.6, "top_k": 0, "max_new_tokens": 320}
HOW, DRAWS = "mean", 10_000


def per_question(path: Path, n: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Accuracy on each question of what is made of n of its candidates, shape (Q,)."""
    sets = read_candidates([str(path)])
    rows: dict[str, list[float]] = {"one answer": [], "majority vote": [], "highest score": [], "oracle": []}
    for entry, verdicts in zip(sets, candidate_verdicts(sets), strict=True):
        correct = np.array([verdict.grade == "correct" for verdict in verdicts], float)
        scores = np.array([aggregate(candidate.step_scores or (), HOW) for candidate in entry.candidates])
        numbers: dict[str | None, int] = {None: -1}
        for verdict in verdicts:
            numbers.setdefault(verdict.answer, len(numbers) - 1)
        answers = np.array([numbers[verdict.answer] for verdict in verdicts])
        masks = subsets(len(correct), n, most=1000, seed=seed)
        rows["one answer"].append(correct.mean())
        rows["majority vote"].append(expected_vote(answers, np.ones(len(correct)), correct, masks))
        rows["highest score"].append(expected_best(scores, correct, n))
        rows["oracle"].append(expected_oracle(correct, n))
    return {name: np.array(values) for name, values in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--prm", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--questions", type=int, default=N_QUESTIONS)
    options = parser.parse_args()
    lab, images = options.lab, options.lab / "images"
    sampling = {**SAMPLING, "top_p": options.top_p}
    sampler = mprm.load_policy(lab / "policies" / "internvl")
    prm = mprm.PRM.from_pretrained(options.prm, image_root=images)
    runs: dict[str, Any] = {}
    accuracy: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary:
        questions = Path(temporary) / "questions.jsonl"
        lines = (lab / "candidates.jsonl").read_bytes().splitlines(keepends=True)[: options.questions]
        questions.write_bytes(b"".join(lines))
        for method in ("beam", "dvts", "best-of-n"):
            n, out = N_WHOLE if method == "best-of-n" else N, Path(temporary) / f"{method}.jsonl"
            started = time.perf_counter()
            summary = mprm.search(
                questions, sampler, prm, out, method=method, n=n, image_root=images, aggregate=HOW,
                progress=mprm.progress_bar, **sampling,
            )  # fmt: skip
            tokens = summary.stats["n_tokens"] / len(lines)
            runs[method] = {
                "sampled": n,
                "n": n,
                "tokens_per_question": round(tokens, 1),
                "steps_scored_per_question": round(summary.stats["n_scored"] / len(lines), 1),
                "candidates_cut_off": summary.stats["n_truncated"],
                "seconds": round(time.perf_counter() - started, 1),
            }
            if method == "best-of-n":  # as many as have the tokens of beam search
                runs[method]["n"] = round(N_WHOLE * runs["beam"]["tokens_per_question"] / tokens)
                runs[method]["tokens_per_question"] = round(tokens * runs[method]["n"] / N_WHOLE, 1)
            rows = per_question(out, runs[method]["n"])
            if method == "best-of-n":
                accuracy |= {name: rows[name] for name in ("one answer", "majority vote", "oracle")}
            accuracy[method] = rows["highest score"]
            accuracy[f"{method}, vote"] = rows["majority vote"]
            accuracy[f"{method}, oracle"] = rows["oracle"]
            print(method, runs[method], flush=True)
    names = [name for name in accuracy if name not in ("best-of-n, vote", "best-of-n, oracle")]
    values = np.stack([accuracy[name] for name in names], axis=1)
    means = bootstrap_means(values, draws=DRAWS, seed=0)

    def with_interval(column: np.ndarray, distribution: np.ndarray) -> list[float]:
        mean = estimate(float(column.mean()), distribution)
        return [round(100 * float(number), 2) for number in (mean.value, mean.low, mean.high)]

    def less(name: str, other: str) -> list[float]:
        a, b = names.index(name), names.index(other)
        return with_interval(values[:, a] - values[:, b], means[:, a] - means[:, b])

    guided = ("beam", "dvts")
    result = {
        "command": "python benchmarks/search.py --lab LAB --prm PRM"
        f" --top-p {options.top_p:g} --questions {options.questions} --out FILE",
        "policy": "internvl", "reward_model": "small, all rollouts, learning rate 1e-4", "sampling": sampling,
        "questions": len(values), "aggregate": HOW, "beam_width": mprm.SearchConfig().beam_width, "runs": runs,
        "accuracy": {name: with_interval(values[:, i], means[:, i]) for i, name in enumerate(names)},
        "difference": {
            **{f"best-of-n - {other}": less("best-of-n", other) for other in ("one answer", "majority vote")},
            **{f"{name} - {other}": less(name, other) for name in guided for other in
               ("one answer", "majority vote", "best-of-n")},
            "beam - dvts": less("beam", "dvts"),
        },
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Where wrong candidates stand among a question's candidates when a reward model ranks them.

mprm-lab demo DEMO
for name in bis-0.1 random-0.1; do
  mprm rerank DEMO/lab/candidates.jsonl --model DEMO/runs/$name --image-root DEMO/lab/images --out RANKS/$name
done
python benchmarks/candidate_ranks.py DEMO/lab/candidates.jsonl RANKS/*/scores.jsonl --out FILE
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mprm.data.candidates import read_candidates
from mprm.evaluation import aggregate, bootstrap_means, candidate_verdicts, estimate, read_candidate_scores


def auc(scores: np.ndarray, is_wrong: np.ndarray) -> float:
    """How often a right candidate is above a wrong one of the same question; a tie counts half."""
    apart = scores[~is_wrong][:, None] - scores[is_wrong][None, :]
    return float(np.mean((apart > 0) + 0.5 * (apart == 0)))


def interval(values: np.ndarray, means: np.ndarray) -> tuple[float | None, float | None]:
    found = estimate(float(values.mean()), means)
    return found.low, found.high


def measured(is_wrong: np.ndarray, scores: np.ndarray, *, draws: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Of Q questions' candidates, M each: both arrays are (Q, M). Ties are broken at random."""
    ties = np.random.default_rng(seed).random(scores.shape)
    ranked = np.take_along_axis(is_wrong, np.lexsort((ties, -scores), axis=1), axis=1)
    n = ranked.shape[1]
    middle = ranked[:, n // 4 : n - n // 4].mean(axis=1)
    edges = {"first_less_middle": ranked[:, 0] - middle, "last_less_middle": ranked[:, -1] - middle}
    drawn = bootstrap_means(np.stack([*edges.values()], axis=1), draws=draws, seed=seed)
    spread = scores.std(axis=1, keepdims=True)
    standard = (scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    both = [(one, wrong) for one, wrong in zip(scores, is_wrong, strict=True) if 0 < wrong.sum() < len(wrong)]
    aucs = np.array([[auc(one, wrong)] for one, wrong in both])
    return {
        "wrong_by_rank": ranked.mean(axis=0).tolist(),
        **{
            name: {"mean": float(values.mean()), "interval": interval(values, drawn[:, number])}
            for number, (name, values) in enumerate(edges.items())
        },
        "auc_within_questions": {
            "mean": float(aucs.mean()),
            "interval": interval(aucs, bootstrap_means(aucs, draws=draws, seed=seed)[:, 0]),
            "questions": len(both),
        },
        "spread_of_standard_scores": {
            "right": float(standard[~is_wrong].std()),
            "incorrect": float(standard[is_wrong].std()),
        },
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates")
    parser.add_argument("scores", nargs="+", help="scores.jsonl of mprm rerank")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(words)
    sets = read_candidates(options.candidates)
    is_wrong = np.array([[one.grade != "correct" for one in row] for row in candidate_verdicts(sets)])
    found: dict[str, Any] = {
        "questions": len(sets),
        "candidates": is_wrong.shape[1],
        "incorrect": float(is_wrong.mean()),
    }
    for path in options.scores:
        saved = read_candidate_scores(path, sets)
        scores = np.array([aggregate(line.scores) for line in saved.solutions]).reshape(is_wrong.shape)
        found[saved.model] = measured(is_wrong, scores)
        print(saved.model, json.dumps(found[saved.model]))
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

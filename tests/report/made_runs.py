"""Real run folders: tiny models that `mprm train` trained, `mprm evaluate` measured, and a reranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mprm
from mprm.data.types import Chain
from mprm.evaluation.rerank import RerankConfig, rerank
from tests.conftest import write_jsonl
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records

RUNS = {"bis_0": ("bis", 0), "bis_1": ("bis", 1), "random_0": ("random", 0), "all_0": (None, 0)}
"""Name, strategy and seed of each training run."""


class ShortSteps:
    """Trusts short steps."""

    name = "short steps"

    def score_many(self, chains: Sequence[Chain], *, progress: Any = None) -> list[list[float]]:
        return [[math.exp(-len(step) / 50) for step in chain.steps] for chain in chains]


def make_runs(root: Path) -> Path:
    """A folder with four training runs, two evaluations, their comparison, and a reranking."""
    save_tiny("text", root / "base")
    # two sources, so that there is something to tell apart
    benchmark = root / "benchmark"
    benchmark.mkdir()
    for number, name in enumerate(("bars", "lines")):
        records = text_records(bar_records(10, root / "images", seed=number))
        write_records(benchmark / f"{name}.jsonl", records)
    runs = root / "runs"
    for name, (strategy, seed) in RUNS.items():
        _train(root, runs / name, strategy, seed)
    for name in ("bis_0", "all_0"):
        _evaluate(root, runs / name, runs / f"eval_{name}")
    scores = [runs / f"eval_{name}" / "scores.jsonl" for name in ("all_0", "bis_0")]
    mprm.evaluate(scores=scores, config=mprm.EvaluateConfig(draws=20, folds=2), out=runs / "compared")
    _rerank(root, runs / "reranked")
    return runs


def _train(root: Path, out: Path, strategy: Any, seed: int) -> None:
    config = mprm.TrainConfig(
        model=str(root / "base"),
        out=str(out),
        strategy=strategy,
        rho=None if strategy is None else 0.5,
        seed=seed,
        batch_size=4,
        learning_rate=1e-3,
        text_only=True,
        device="cpu",
        dataloader_workers=0,
        save_every=0,
        report_to=("none",),
        benchmark=(str(root / "benchmark"),),
        eval_every=1,
    )
    mprm.train([str(root / "benchmark")], config)


def _evaluate(root: Path, model: Path, out: Path) -> None:
    from mprm.cli.evaluate import run_evaluate as run

    common = ["--text-only", "--draws", "20", "--folds", "2", "--device", "cpu", "--out", str(out)]
    assert run([str(root / "benchmark"), "--model", str(model), *common]) == 0


def _rerank(root: Path, out: Path) -> None:
    def candidate(text: str) -> dict[str, Any]:
        return {"text": text, "steps": [text], "finish_reason": "stop"}

    records = [
        {
            "id": str(n),
            "source": "sums",
            "question": f"{n}?",
            "answer": str(n),
            "images": [],
            "options": [],
            "candidates": [
                candidate(rf"\boxed{{{n}}}"),
                *(candidate(rf"{'so ' * (k + n)}\boxed{{{n + k}}}") for k in (1, 2, 3)),
            ],
        }
        for n in range(4, 10)
    ]
    path = write_jsonl(root / "candidates.jsonl", records)
    rerank(path, ShortSteps(), config=RerankConfig(draws=20), out=out)


if __name__ == "__main__":
    import sys

    made = Path(sys.argv[1])
    made.mkdir(parents=True)
    print(make_runs(made))

"""The benchmarks of scoring and training run in miniature, and do not measure again what is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def measured(script: str, out: Path, *words: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / script),
        "--tiny",
        "--rounds",
        "1",
        "--out",
        str(out),
        *words,
    ]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def test_scoring_computes_fewer_tokens_and_gives_the_same_scores(tmp_path: Path) -> None:
    results = measured("scoring.py", tmp_path / "scoring.json")
    cases = {(case["backbone"], case["shape"], case["way"]): case for case in results["cases"]}
    for backbone in ("qwen2_5_vl", "internvl"):
        for shape in ("candidates", "trie"):
            alone, shared = cases[backbone, shape, "one by one"], cases[backbone, shape, "shared"]
            assert shared["tokens_computed"] < alone["tokens_computed"] / 2
            assert shared["largest_difference_of_a_score"] < 1e-5
        assert cases[backbone, "trie", "shared"]["tokens_computed"] < cases[backbone, "candidates", "shared"]["tokens_computed"]  # fmt: skip
        assert {"plain", "shared"} == {way for kind, shape, way in cases if (kind, shape) == (backbone, "rerank")}
    again = measured("scoring.py", tmp_path / "scoring.json")
    assert again["cases"] == results["cases"]


def test_training_computes_fewer_tokens_and_gives_the_same_gradients(tmp_path: Path) -> None:
    results = measured("training.py", tmp_path / "training.json", "--only", "internvl")
    cases = {(case["shape"], case["way"]): case for case in results["cases"]}
    for shape in ("4 of a problem", "2 problems of 4", "8 of unlike problems"):
        padded, packed = cases[shape, "padded"], cases[shape, "packed"]
        assert packed["tokens_computed"] < padded["tokens_computed"]
        assert packed["relative_difference_of_gradients"] < 1e-4
        assert all(0 < error < 0.02 for error in packed["kernel_errors"].values())  # bf16 has eight bits
    # eight rollouts without a common prompt save their padding and what follows their last step, no more
    assert cases["8 of unlike problems", "packed"]["tokens_computed"] > 0.9 * cases["8 of unlike problems", "one by one"]["tokens_computed"]  # fmt: skip
    again = measured("training.py", tmp_path / "training.json", "--only", "internvl")
    assert again["cases"] == results["cases"]


def test_a_training_step_is_measured_with_either_read_out(tmp_path: Path) -> None:
    results = measured("train_step.py", tmp_path / "train_step.json")
    ways = [(case["backbone"], case["rollouts"], case["read_out"]) for case in results["cases"]]
    assert len(ways) == len(set(ways)) == 8  # two backbones, two shapes, two ways
    assert all(case["tokens"] > 0 and case["forward_backward_ms"] > 0 for case in results["cases"])

"""Small rollouts with images, in the paper's corpus format: a bar as long as a digit, and claims about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def bar_records(n: int, folder: Path, *, seed: int = 0, n_steps: tuple[int, int] = (2, 4)) -> list[dict[str, Any]]:
    """Records whose images are written to ``folder``; a step is right when it names the bar's length."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for number in range(n):
        length = int(rng.integers(0, 10))
        pixels = np.full((40, 40 + 20 * (number % 2), 3), 255, np.uint8)
        pixels[:, : 4 * length] = 0
        Image.fromarray(pixels).save(folder / f"{number}.png")
        steps = []
        for _ in range(int(rng.integers(*n_steps, endpoint=True))):
            is_right = bool(rng.random() < 0.5)
            claim = length if is_right else (length + int(rng.integers(1, 9))) % 10
            hits = int(rng.integers(4, 17)) if is_right else 0
            steps.append({"step": f"the bar is {claim} long", "score": hits / 16})
        question = f"how long is bar {number}? " + "hm " * int(rng.integers(0, 12))
        records.append(
            {"image": f"{number}.png", "question": question, "answer": f"{length}", "steps_with_score": steps}
        )
    return records


def text_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without images: the question tells the length."""
    return [
        {
            "prompt": f"{record['question']} it is {record['answer']}",
            "completions": [step["step"] for step in record["steps_with_score"]],
            "labels": [step["score"] > 0 for step in record["steps_with_score"]],
        }
        for record in records
    ]


def write_records(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path

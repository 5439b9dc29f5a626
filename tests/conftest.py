"""Records and corpora that many tests use."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several workers with several threads each wait for each other
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers; tests that need a width say so
settings.register_profile("mprm", deadline=None)  # a busy machine is no failure
settings.load_profile("mprm")

EXCERPTS = Path(__file__).parent / "data" / "public"
"""Excerpts of public projects' data; the SOURCE.txt of each names project, licence and cut."""

WHOLE = Path(__file__).parents[2] / "shared" / "data"
"""The same files whole, where they lie beside the checkout."""

PUBLIC = {"excerpt": EXCERPTS} | ({"whole": WHOLE} if WHOLE.is_dir() else {})
"""Folders with public data, by how much of it they hold."""


def raw_record(scores: list[float], *, n_mc: int = 16, number: int = 0, **fields: Any) -> dict[str, Any]:
    """A v1.1-Raw record with these scores."""
    steps = [
        {
            "step": f"Step {j} of {number}.",
            "score": s,
            "num_mc_correct": round(s * n_mc),
            "num_mc_total": n_mc,
        }
        for j, s in enumerate(scores)
    ]
    record = {
        "image": f"images/{number}.png",
        "question": f"<image>\nQuestion {number}? Answer with a number.",
        "question_orig": f"Question {number}?",
        "answer": "4",
        "response": "\n\n".join(step["step"] for step in steps),
        "steps_with_score": steps,
        "num_mc_sequences": n_mc,
    }
    return {**record, **fields}


def calling(function: Callable[[int], None]) -> Any:
    """A progress that calls the function with each advance."""

    @contextmanager
    def progress(_title: str, _total: int | None, _unit: str = "items") -> Iterator[Any]:
        yield lambda n, _note="": function(n)

    return progress


def write_jsonl(path: Path, records: list[Any]) -> Path:
    """Write records, or lines that are bytes already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [r if isinstance(r, bytes) else json.dumps(r, ensure_ascii=False).encode() for r in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def random_scores(rng: random.Random, n_mc: int = 16) -> list[float]:
    """Scores of one rollout: often all 1, sometimes all 0, sometimes mixed."""
    n = rng.randint(1, 7)
    kind = rng.random()
    if kind < 0.3:
        return [1.0] * n
    if kind < 0.4:
        return [0.0] * n
    return [rng.randint(0, n_mc) / n_mc for _ in range(n)]


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of v1.1-Raw files: corpus(ai2d=[[1.0, 0.0], …], …)."""

    def make(n_mc: int = 16, **sources: list[list[float]]) -> Path:
        folder = tmp_path / "annotations"
        for source, rollouts in sources.items():
            records = [raw_record(scores, n_mc=n_mc, number=i) for i, scores in enumerate(rollouts)]
            write_jsonl(folder / f"{source}.jsonl", records)
        return folder

    return make


@pytest.fixture
def random_corpus(corpus: Callable[..., Path]) -> Path:
    """Three sources of different sizes with many ties."""
    rng = random.Random(7)
    sizes = {"ai2d": 97, "geos": 1, "vqav2": 40}
    return corpus(**{name: [random_scores(rng) for _ in range(n)] for name, n in sizes.items()})


def script(path: str) -> ModuleType:
    """A script of the checkout, imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def count_corpus(corpus: Any, engine: Any, *, tau: float = 0.0, on_bad: Any = None) -> Any:
    """The label counts of a corpus."""
    from mprm.progress import silent
    from mprm.selection.stats import gather_counts, start_counting

    counting = start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None)
    return gather_counts(corpus, counting, on_bad=on_bad, progress=silent)

"""The pages of docs/results say what their results files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_on_the_text_model_is_made_of_its_results() -> None:
    found = json.loads((RESULTS / "text_prm.json").read_text())
    assert (RESULTS / "text_prm.md").read_text() == script("text_prm").page(found)

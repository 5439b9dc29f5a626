"""The pages of docs/results say what their results files say."""

from __future__ import annotations

import importlib.util
import json
import re
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


def test_the_lab_page_is_made_of_its_results(tmp_path: Path) -> None:
    from mprm.lab.reproduce.aggregate import summary_of
    from mprm.lab.reproduce.page import page
    from mprm.lab.reproduce.results import read_results, write_results
    from tests.lab.reproduce.made_cells import made_results

    folder = RESULTS
    if not (RESULTS / "lab.json").is_file():  # nobody has measured it yet: a made-up one goes the same way
        folder = tmp_path
        write_results(made_results(), folder / "lab.json")
        (folder / "lab.md").write_text(page(made_results()))
        for name in re.findall(r"\((lab_\w+\.svg)\)", page(made_results())):
            (folder / name).touch()
    found = read_results(folder / "lab.json")
    assert found["summary"] == summary_of(found["cells"])
    text = (folder / "lab.md").read_text()
    assert text == page(found)
    figures = re.findall(r"\((lab_\w+\.svg)\)", text)
    assert figures
    assert all((folder / name).is_file() for name in figures)

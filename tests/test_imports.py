"""Imports go one way, and nothing heavy is loaded before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mprm

PACKAGE = Path(mprm.__file__).parent
ORDER = [
    *(
        "_lazy",
        "errors",
        "config",
        "progress",
        "answers",
        "data",
        "selection",
        "theory",
        "models",
        "annotation",
        "evaluation",
        "hub",
        "training",
        "report",
    ),
    "cli",
]
"""Each room imports from itself and from those before it."""
MAY_USE_TORCH = ("annotation/samplers/", "models/", "training/")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    inside = path.relative_to(PACKAGE).as_posix()
    room = inside.split("/")[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    forbidden = {"pickle"} | (set() if inside.startswith(MAY_USE_TORCH) else {"torch", "transformers"})
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mprm."):
            target = node.module.split(".")[1]
            assert ORDER.index(target) <= ORDER.index(room), f"{path.name} imports {node.module}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not any(name.split(".")[0] in forbidden for name in names)


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "tyro", "rich", "msgspec", "pyarrow", "fsspec", "ray", "torch"}
    assert not heavy & loaded("import mprm.cli.main")
    assert not heavy & loaded("import mprm")


def test_selecting_loads_neither_torch_nor_arrow() -> None:
    modules = loaded("import mprm; mprm.select([{'prompt': 'q', 'completions': ['a'], 'labels': [True]}])")
    assert not {"torch", "pyarrow", "pandas", "ray", "fsspec"} & modules


def test_workers_that_count_and_copy_load_no_numpy() -> None:
    code = "from mprm.selection.scan import count_labels; from mprm.data.convert import convert_lines, copy_spans"
    assert "numpy" not in loaded(code)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(mprm, name) for name in mprm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mprm.nonsense

"""The lab uses mprm as anyone can: the package and what its subpackages export, never their inner modules."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import mprm
import mprm_lab

PACKAGE = Path(mprm_lab.__file__).parent
MODULES = ("config", "errors", "progress")
"""Public modules of mprm that are no packages."""


def imports(path: Path) -> list[tuple[str, list[str]]]:
    """Modules of mprm that a file imports, with the names it takes from them."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.append((node.module, [alias.name for alias in node.names]))
    return [(module, names) for module, names in imported if module.split(".")[0] == "mprm"]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_lab_imports_what_mprm_exports(path: Path) -> None:
    for module, names in imports(path):
        assert module.count(".") <= 1, f"{module} is an inner module"
        if module == "mprm":
            assert all(name in mprm.__all__ or Path(mprm.__file__).with_name(name).is_dir() for name in names)
        elif module.split(".")[1] not in MODULES:
            exported = importlib.import_module(module).__all__
            assert set(names) <= set(exported), f"{module} does not export {set(names) - set(exported)}"


def test_the_product_does_not_know_the_lab() -> None:
    for path in Path(mprm.__file__).parent.rglob("*.py"):
        assert "import mprm_lab" not in path.read_text()
        assert "from mprm_lab" not in path.read_text()

"""Exports of a package that are loaded when first used, so that ``import mprm`` and ``mprm --help`` are quick."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def lazy_exports(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: it exports what its ``if TYPE_CHECKING:`` block imports, and nothing else.

    So the names stand once, where type checkers read them. A function of its subpackage's name, as `mprm.report`, is
    exported as the subpackage, which must be callable. ``__all__`` is set.
    """
    module = sys.modules[package]
    with open(str(module.__file__), encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes 4 ms to import
        imports = re.findall(r"^    from (\S+) import (\([^)]*\)|.*)$", file.read(), re.MULTILINE)
    home = {name: source for source, names in imports for name in re.findall(r"(\w+) as \1\b", names)}
    subpackages = {name for name in home if home[name] == package or home[name].startswith(f"{package}.{name}.")}
    module.__dict__["__all__"] = sorted(home)

    class Package(ModuleType):
        """A module that exports `train` from its submodule `train`, whoever imported that before."""

        def __setattr__(self, name: str, value: Any) -> None:
            is_shadowing = isinstance(value, ModuleType) and name in home.keys() - subpackages
            if not is_shadowing:  # the import system binds submodules
                super().__setattr__(name, value)

    module.__class__ = Package

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = importlib.import_module(f"{package}.{name}" if name in subpackages else home[name])
        setattr(module, name, source if name in subpackages else getattr(source, name))
        return module.__dict__[name]

    return __getattr__

"""Exports of a package that are loaded when first used, so that ``import mprm`` and ``mprm --help`` are quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def lazy_exports(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names live in other modules.

    Parameters
    ----------
    package
        The package's ``__name__``; its ``__all__`` is set to the names.
    names
        Module to the names it defines; a subpackage that is exported itself, as the callable ``mprm.report``, is
        given as its own name.
    """
    home = {name: module for module, of_module in names.items() for name in of_module}
    sys.modules[package].__dict__.setdefault("__all__", sorted(home))

    class Package(ModuleType):
        """A module that exports `train` from its submodule `train`, whoever imported that before."""

        def __setattr__(self, name: str, value: Any) -> None:
            is_submodule = isinstance(value, ModuleType) and value.__name__ != home.get(name)
            if name not in home or not is_submodule:  # the import system binds submodules
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Package

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home[name])
        value = module if home[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__

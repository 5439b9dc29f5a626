"""Every exception that mprm raises on purpose.

Each derives from `MprmError`, so that one ``except`` catches them all, and from the builtin that a caller who knows
nothing of mprm would expect.
"""

from __future__ import annotations

import importlib
from typing import Any


class MprmError(Exception):
    """Something the user can fix; the command line prints its text and no traceback."""


class ConfigError(MprmError, ValueError):
    """An option, or a combination of options, that makes no sense."""


class DataError(MprmError, ValueError):
    """A record or a file that cannot be used: says where, what was found and what was expected."""


class InputNotFoundError(MprmError, FileNotFoundError):
    """No input lies where the user pointed."""


class OutputExistsError(MprmError, FileExistsError):
    """The output is there already, and ``force`` was not given."""


class MissingDependencyError(MprmError, ImportError):
    """An optional package is needed and not installed."""


def imported(module: str, problem: str | None = None) -> Any:
    """The module; where it is not installed, an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(problem or f"this needs {module}: pip install {module}") from error


def counted(n: int, noun: str) -> str:
    """The number and its noun, in the plural where there are several: ``1 rollout``, ``1,204 rollouts``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def shown(value: Any, limit: int = 60) -> str:
    """The value as a short piece of text for a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"

"""Choose the rollouts that teach a multimodal process reward model the most."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mprm.errors import MprmError
    from mprm.rollouts.check import check
    from mprm.rollouts.convert import convert
    from mprm.rollouts.corpus import Corpus, open_corpus
    from mprm.rollouts.rollout import Rollout, Step
    from mprm.scores.balanced_information import balanced_information as bis
    from mprm.scores.balanced_information import mixture, positive_fraction, reliability
    from mprm.scores.score import score
    from mprm.scores.statistics import Statistics, stats
    from mprm.selection.select import select
    from mprm.selection.selection import Selection

_HOME = {
    "MprmError": ("mprm.errors", "MprmError"),
    "check": ("mprm.rollouts.check", "check"),
    "convert": ("mprm.rollouts.convert", "convert"),
    "Corpus": ("mprm.rollouts.corpus", "Corpus"),
    "open_corpus": ("mprm.rollouts.corpus", "open_corpus"),
    "Rollout": ("mprm.rollouts.rollout", "Rollout"),
    "Step": ("mprm.rollouts.rollout", "Step"),
    "bis": ("mprm.scores.balanced_information", "balanced_information"),
    "mixture": ("mprm.scores.balanced_information", "mixture"),
    "positive_fraction": ("mprm.scores.balanced_information", "positive_fraction"),
    "reliability": ("mprm.scores.balanced_information", "reliability"),
    "score": ("mprm.scores.score", "score"),
    "Statistics": ("mprm.scores.statistics", "Statistics"),
    "stats": ("mprm.scores.statistics", "stats"),
    "Selection": ("mprm.selection.selection", "Selection"),
    "select": ("mprm.selection.select", "select"),
}

__all__ = [
    "Corpus",
    "MprmError",
    "Rollout",
    "Selection",
    "Statistics",
    "Step",
    "__version__",
    "bis",
    "check",
    "convert",
    "mixture",
    "open_corpus",
    "positive_fraction",
    "reliability",
    "score",
    "select",
    "stats",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that ``import mprm`` and ``mprm --help`` are quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'mprm' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

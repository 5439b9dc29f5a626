"""Multimodal process reward models: choose the rollouts that teach the most, train, evaluate, rerank."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mprm.annotation.annotate import AnnotateConfig, annotate
    from mprm.annotation.checker import AnswerChecker
    from mprm.annotation.sample import sample
    from mprm.annotation.samplers.load import load_policy
    from mprm.annotation.samplers.server import HTTPSampler
    from mprm.data.check import check
    from mprm.data.convert import convert
    from mprm.data.corpus import Corpus, open_corpus
    from mprm.data.questions import read_questions
    from mprm.data.quickstart import quickstart
    from mprm.data.types import Chain, Rollout, Step
    from mprm.errors import MprmError
    from mprm.evaluation.evaluate import EvaluateConfig, evaluate
    from mprm.evaluation.rerank import RerankConfig, rerank
    from mprm.models.prm import PRM
    from mprm.selection.bis import balanced_information as bis
    from mprm.selection.bis import mixture, positive_fraction, reliability
    from mprm.selection.score import score
    from mprm.selection.select import Selection, select
    from mprm.selection.stats import Statistics, stats
    from mprm.training.config import TrainConfig
    from mprm.training.train import train

_HOME = {
    "AnnotateConfig": ("mprm.annotation.annotate", "AnnotateConfig"),
    "annotate": ("mprm.annotation.annotate", "annotate"),
    "AnswerChecker": ("mprm.annotation.checker", "AnswerChecker"),
    "Chain": ("mprm.data.types", "Chain"),
    "EvaluateConfig": ("mprm.evaluation.evaluate", "EvaluateConfig"),
    "RerankConfig": ("mprm.evaluation.rerank", "RerankConfig"),
    "HTTPSampler": ("mprm.annotation.samplers.server", "HTTPSampler"),
    "load_policy": ("mprm.annotation.samplers.load", "load_policy"),
    "PRM": ("mprm.models.prm", "PRM"),
    "TrainConfig": ("mprm.training.config", "TrainConfig"),
    "evaluate": ("mprm.evaluation.evaluate", "evaluate"),
    "quickstart": ("mprm.data.quickstart", "quickstart"),
    "read_questions": ("mprm.data.questions", "read_questions"),
    "rerank": ("mprm.evaluation.rerank", "rerank"),
    "sample": ("mprm.annotation.sample", "sample"),
    "train": ("mprm.training.train", "train"),
    "MprmError": ("mprm.errors", "MprmError"),
    "check": ("mprm.data.check", "check"),
    "convert": ("mprm.data.convert", "convert"),
    "Corpus": ("mprm.data.corpus", "Corpus"),
    "open_corpus": ("mprm.data.corpus", "open_corpus"),
    "Rollout": ("mprm.data.types", "Rollout"),
    "Step": ("mprm.data.types", "Step"),
    "bis": ("mprm.selection.bis", "balanced_information"),
    "mixture": ("mprm.selection.bis", "mixture"),
    "positive_fraction": ("mprm.selection.bis", "positive_fraction"),
    "reliability": ("mprm.selection.bis", "reliability"),
    "score": ("mprm.selection.score", "score"),
    "Statistics": ("mprm.selection.stats", "Statistics"),
    "stats": ("mprm.selection.stats", "stats"),
    "Selection": ("mprm.selection.select", "Selection"),
    "select": ("mprm.selection.select", "select"),
}

__all__ = [
    "PRM",
    "AnnotateConfig",
    "AnswerChecker",
    "Chain",
    "Corpus",
    "EvaluateConfig",
    "HTTPSampler",
    "MprmError",
    "RerankConfig",
    "Rollout",
    "Selection",
    "Statistics",
    "Step",
    "TrainConfig",
    "__version__",
    "annotate",
    "bis",
    "check",
    "convert",
    "evaluate",
    "load_policy",
    "mixture",
    "open_corpus",
    "positive_fraction",
    "quickstart",
    "read_questions",
    "reliability",
    "rerank",
    "sample",
    "score",
    "select",
    "stats",
    "train",
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

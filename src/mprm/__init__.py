"""Multimodal process reward models: choose the rollouts that teach the most, train, evaluate, rerank."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mprm.annotation.annotate import AnnotateConfig, annotate
    from mprm.annotation.answers.checker import AnswerChecker
    from mprm.annotation.questions.read import read_questions
    from mprm.annotation.sample import sample
    from mprm.annotation.samplers.http_sampler import HTTPSampler
    from mprm.errors import MprmError
    from mprm.evaluation.config import EvaluateConfig
    from mprm.evaluation.evaluate import evaluate
    from mprm.inference.load_policy import load_policy
    from mprm.inference.prm import PRM
    from mprm.reranking.rerank import rerank
    from mprm.rollouts.chain import Chain
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
    from mprm.training.config import TrainConfig
    from mprm.training.train import train

_HOME = {
    "AnnotateConfig": ("mprm.annotation.annotate", "AnnotateConfig"),
    "annotate": ("mprm.annotation.annotate", "annotate"),
    "AnswerChecker": ("mprm.annotation.answers.checker", "AnswerChecker"),
    "Chain": ("mprm.rollouts.chain", "Chain"),
    "EvaluateConfig": ("mprm.evaluation.config", "EvaluateConfig"),
    "HTTPSampler": ("mprm.annotation.samplers.http_sampler", "HTTPSampler"),
    "load_policy": ("mprm.inference.load_policy", "load_policy"),
    "PRM": ("mprm.inference.prm", "PRM"),
    "TrainConfig": ("mprm.training.config", "TrainConfig"),
    "evaluate": ("mprm.evaluation.evaluate", "evaluate"),
    "read_questions": ("mprm.annotation.questions.read", "read_questions"),
    "rerank": ("mprm.reranking.rerank", "rerank"),
    "sample": ("mprm.annotation.sample", "sample"),
    "train": ("mprm.training.train", "train"),
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
    "PRM",
    "AnnotateConfig",
    "AnswerChecker",
    "Chain",
    "Corpus",
    "EvaluateConfig",
    "HTTPSampler",
    "MprmError",
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

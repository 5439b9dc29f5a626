"""Multimodal process reward models: choose the rollouts that teach the most, train, evaluate, rerank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mprm.annotation.annotate import AnnotateConfig as AnnotateConfig
    from mprm.annotation.annotate import annotate as annotate
    from mprm.annotation.checker import AnswerChecker as AnswerChecker
    from mprm.annotation.sample import sample as sample
    from mprm.annotation.samplers.load import load_policy as load_policy
    from mprm.annotation.samplers.server import HTTPSampler as HTTPSampler
    from mprm.data.check import check as check
    from mprm.data.convert import convert as convert
    from mprm.data.corpus import Corpus as Corpus
    from mprm.data.corpus import open_corpus as open_corpus
    from mprm.data.questions import read_questions as read_questions
    from mprm.data.quickstart import quickstart as quickstart
    from mprm.data.types import Chain as Chain
    from mprm.data.types import Rollout as Rollout
    from mprm.data.types import Step as Step
    from mprm.errors import MprmError as MprmError
    from mprm.evaluation.evaluate import EvaluateConfig as EvaluateConfig
    from mprm.evaluation.evaluate import evaluate as evaluate
    from mprm.evaluation.rerank import RerankConfig as RerankConfig
    from mprm.evaluation.rerank import rerank as rerank
    from mprm.models.prm import PRM as PRM
    from mprm.progress import progress_bar as progress_bar
    from mprm.report.report import report as report
    from mprm.selection.bis import bis as bis
    from mprm.selection.bis import mixture as mixture
    from mprm.selection.bis import positive_fraction as positive_fraction
    from mprm.selection.bis import reliability as reliability
    from mprm.selection.select import select as select
    from mprm.selection.selection import Selection as Selection
    from mprm.selection.stats import Statistics as Statistics
    from mprm.selection.stats import score as score
    from mprm.selection.stats import stats as stats
    from mprm.training.config import TrainConfig as TrainConfig
    from mprm.training.train import train as train

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.annotation.annotate": ["AnnotateConfig", "annotate"],
        "mprm.annotation.checker": ["AnswerChecker"],
        "mprm.annotation.sample": ["sample"],
        "mprm.annotation.samplers.load": ["load_policy"],
        "mprm.annotation.samplers.server": ["HTTPSampler"],
        "mprm.data.check": ["check"],
        "mprm.data.convert": ["convert"],
        "mprm.data.corpus": ["Corpus", "open_corpus"],
        "mprm.data.questions": ["read_questions"],
        "mprm.data.quickstart": ["quickstart"],
        "mprm.data.types": ["Chain", "Rollout", "Step"],
        "mprm.errors": ["MprmError"],
        "mprm.evaluation.evaluate": ["EvaluateConfig", "evaluate"],
        "mprm.evaluation.rerank": ["RerankConfig", "rerank"],
        "mprm.models.prm": ["PRM"],
        "mprm.progress": ["progress_bar"],
        "mprm.report": ["report"],
        "mprm.selection.bis": ["bis", "mixture", "positive_fraction", "reliability"],
        "mprm.selection.select": ["select"],
        "mprm.selection.selection": ["Selection"],
        "mprm.selection.stats": ["Statistics", "score", "stats"],
        "mprm.training.config": ["TrainConfig"],
        "mprm.training.train": ["train"],
    },
)

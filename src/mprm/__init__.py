"""Multimodal process reward models: choose the rollouts that teach the most, train, evaluate, rerank."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mprm import theory as theory
    from mprm.annotation.annotate import AnnotateConfig as AnnotateConfig, annotate as annotate, sample as sample
    from mprm.annotation.checker import AnswerChecker as AnswerChecker
    from mprm.annotation.samplers.sampler import load_policy as load_policy
    from mprm.annotation.samplers.server import HTTPSampler as HTTPSampler
    from mprm.data.check import check as check
    from mprm.data.convert import convert as convert
    from mprm.data.corpus import Corpus as Corpus, open_corpus as open_corpus
    from mprm.data.questions import read_questions as read_questions
    from mprm.data.quickstart import quickstart as quickstart
    from mprm.data.types import Chain as Chain, Rollout as Rollout, Step as Step
    from mprm.errors import MprmError as MprmError
    from mprm.evaluation.evaluate import EvaluateConfig as EvaluateConfig, evaluate as evaluate
    from mprm.evaluation.readout import ReadOut as ReadOut, readout as readout
    from mprm.evaluation.remote import RemotePRM as RemotePRM
    from mprm.evaluation.rerank import RerankConfig as RerankConfig, rerank as rerank
    from mprm.evaluation.rewards import StepReward as StepReward
    from mprm.evaluation.search import SearchConfig as SearchConfig, search as search
    from mprm.hub.push import PushConfig as PushConfig, push as push
    from mprm.models.internvl_convert import convert_internvl as convert_internvl
    from mprm.models.logprobs import StepLogProbs as StepLogProbs
    from mprm.models.prm import PRM as PRM
    from mprm.models.serving import ExportConfig as ExportConfig, export as export, serve as serve
    from mprm.progress import progress_bar as progress_bar
    from mprm.report.report import report as report
    from mprm.selection.bis import (
        bis as bis,
        mixture as mixture,
        positive_fraction as positive_fraction,
        reliability as reliability,
    )
    from mprm.selection.score_table import score as score
    from mprm.selection.select import select as select
    from mprm.selection.selection import Selection as Selection
    from mprm.selection.stats import Statistics as Statistics, stats as stats
    from mprm.training.config import TrainConfig as TrainConfig
    from mprm.training.train import train as train

__getattr__ = lazy_exports(__name__)

"""From questions to rollouts with Monte-Carlo step scores, and to candidate solutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.annotation.annotate import AdaptiveRule as AdaptiveRule
    from mprm.annotation.annotate import AnnotateConfig as AnnotateConfig
    from mprm.annotation.annotate import estimate_cost as estimate_cost
    from mprm.annotation.checker import AnswerChecker as AnswerChecker
    from mprm.annotation.run import RunSummary as RunSummary
    from mprm.annotation.sample import SampleConfig as SampleConfig
    from mprm.annotation.samplers.load import SamplerOptions as SamplerOptions
    from mprm.annotation.samplers.load import load_policy as load_policy
    from mprm.annotation.samplers.local import PrefixSampler as PrefixSampler
    from mprm.annotation.samplers.local import TransformersSampler as TransformersSampler
    from mprm.annotation.samplers.ray import RaySampler as RaySampler
    from mprm.annotation.samplers.sampler import Completion as Completion
    from mprm.annotation.samplers.sampler import Request as Request
    from mprm.annotation.samplers.sampler import Sampler as Sampler
    from mprm.annotation.samplers.sampler import SamplingParams as SamplingParams
    from mprm.annotation.samplers.sampler import answers as answers
    from mprm.annotation.samplers.sampler import derived_seed as derived_seed
    from mprm.annotation.samplers.server import HTTPSampler as HTTPSampler

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.annotation.annotate": ["AdaptiveRule", "AnnotateConfig", "estimate_cost"],
        "mprm.annotation.checker": ["AnswerChecker"],
        "mprm.annotation.run": ["RunSummary"],
        "mprm.annotation.sample": ["SampleConfig"],
        "mprm.annotation.samplers.load": ["SamplerOptions", "load_policy"],
        "mprm.annotation.samplers.local": ["PrefixSampler", "TransformersSampler"],
        "mprm.annotation.samplers.ray": ["RaySampler"],
        "mprm.annotation.samplers.sampler": [
            "Completion",
            "Request",
            "Sampler",
            "SamplingParams",
            "answers",
            "derived_seed",
        ],
        "mprm.annotation.samplers.server": ["HTTPSampler"],
    },
)

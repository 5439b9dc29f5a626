"""From questions to rollouts with Monte-Carlo step scores, and to candidate solutions."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.annotation.annotate import (
        AdaptiveRule as AdaptiveRule,
        AnnotateConfig as AnnotateConfig,
        RunSummary as RunSummary,
        SampleConfig as SampleConfig,
        estimate_cost as estimate_cost,
    )
    from mprm.annotation.checker import AnswerChecker as AnswerChecker
    from mprm.annotation.samplers.local import (
        PrefixSampler as PrefixSampler,
        TransformersSampler as TransformersSampler,
    )
    from mprm.annotation.samplers.ray import RaySampler as RaySampler
    from mprm.annotation.samplers.sampler import (
        Completion as Completion,
        Request as Request,
        Sampler as Sampler,
        SamplerOptions as SamplerOptions,
        SamplingParams as SamplingParams,
        answers as answers,
        derived_seed as derived_seed,
        load_policy as load_policy,
    )
    from mprm.annotation.samplers.server import HTTPSampler as HTTPSampler

__getattr__ = lazy_exports(__name__)

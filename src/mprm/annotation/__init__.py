"""From questions to rollouts with Monte-Carlo step scores, and to candidate solutions."""

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.annotation.sample import SampleConfig as SampleConfig
    from mprm.annotation.samplers.load import load_policy as load_policy
    from mprm.annotation.samplers.sampler import SamplingParams as SamplingParams

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.annotation.sample": [
            "SampleConfig",
        ],
        "mprm.annotation.samplers.load": [
            "load_policy",
        ],
        "mprm.annotation.samplers.sampler": [
            "SamplingParams",
        ],
    },
)

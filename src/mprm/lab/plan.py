"""What the lab is made of: which policies, how many problems, how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from mprm.annotation.samplers.sampler import Decoding
from mprm.lab.policy.architecture import Size
from mprm.lab.policy.train_policy import PolicyTraining

FREE = Decoding(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=320)
"""Tokens are drawn as the policy has learnt them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """One policy."""

    kind: str
    """``qwen2_5_vl`` or ``internvl``."""
    size: Size = field(default_factory=Size)
    training: PolicyTraining = field(default_factory=PolicyTraining)


def _variant(kind: str, seed: int, *, n_updates: int, hidden: int = 256, layers: int = 5) -> PolicyPlan:
    return PolicyPlan(
        kind=kind,
        size=Size(hidden=hidden, layers=layers, intermediate=3 * hidden),
        training=PolicyTraining(seed=seed, n_updates=n_updates),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The whole lab; the defaults are its real size, for one H200."""

    policies: dict[str, PolicyPlan] = field(
        default_factory=lambda: {
            "qwen": PolicyPlan(kind="qwen2_5_vl"),
            "internvl": PolicyPlan(kind="internvl", training=PolicyTraining(seed=1)),
            "variant-a": _variant("qwen2_5_vl", 2, n_updates=1500),
            "variant-b": _variant("internvl", 3, n_updates=1500),
            "variant-c": _variant("qwen2_5_vl", 4, n_updates=2000, hidden=192, layers=4),
            "variant-d": _variant("internvl", 5, n_updates=2000, hidden=192, layers=4),
        }
    )
    corpus_policy: str = "qwen"
    """Makes the corpus, and the candidates of best-of-N."""
    benchmark_policies: tuple[str, ...] = ("variant-a", "variant-b", "variant-c", "variant-d")
    """Make the benchmark; none of them has a part in the corpus."""
    corpus_questions: int = 10_000
    rollouts: int = 4
    continuations: int = 16
    benchmark_questions: int = 600
    """For each of the benchmark's policies, one solution each."""
    best_of_n_questions: int = 600
    candidates: int = 16
    decoding: Decoding = FREE
    shards: int = 4
    """Processes that annotate side by side on one device."""
    device: str = "auto"

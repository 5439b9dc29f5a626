"""What the lab is made of: which policies, how many problems, how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


WEAK: dict[str, Any] = {"n_updates": 2500, "n_batches": 200, "batch_size": 256}
"""Training of those whose solutions are to be wrong more often."""


def _policy(kind: str, seed: int, *, hidden: int = 192, layers: int = 4, **training: Any) -> PolicyPlan:
    return PolicyPlan(
        kind=kind,
        size=Size(
            hidden=hidden,
            layers=layers,
            heads=hidden // 32,
            kv_heads=hidden // 64,
            intermediate=3 * hidden,
            vision_hidden=128,
            vision_layers=3,
        ),
        training=PolicyTraining(seed=seed, **training),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The whole lab; the defaults are its real size, for one H200."""

    policies: dict[str, PolicyPlan] = field(
        default_factory=lambda: {
            "internvl": _policy("internvl", 0, n_updates=6000, n_batches=500),
            "qwen": _policy("qwen2_5_vl", 1, n_updates=6000, n_batches=500),
            "variant-a": _policy("internvl", 2, hidden=128, **WEAK),
            "variant-b": _policy("qwen2_5_vl", 3, hidden=128, **WEAK),
            "variant-c": _policy("internvl", 4, layers=3, **WEAK),
            "variant-d": _policy("qwen2_5_vl", 5, layers=3, **WEAK),
        }
    )
    at_once: int = 6
    """Policies that are trained side by side on one device."""
    corpus_policy: str = "internvl"
    """Makes the corpus, and the candidates of best-of-N."""
    benchmark_policies: tuple[str, ...] = ("variant-a", "variant-b", "variant-c", "variant-d")
    """Make the benchmark; none of them has a part in the corpus."""
    corpus_questions: int = 10_000
    rollouts: int = 4
    continuations: int = 16
    benchmark_questions: int = 600
    """For each of the benchmark's policies, one solution each."""
    validation_questions: int = 150
    """Likewise, of the benchmark that hyperparameters are chosen on."""
    best_of_n_questions: int = 600
    candidates: int = 16
    decoding: Decoding = FREE
    rows: int | None = 4096
    """Answers that a process draws at a time."""
    shards: int = 6
    """Processes that annotate side by side on one device."""
    device: str = "auto"

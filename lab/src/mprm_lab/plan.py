"""What the lab is made of: which policies, how many problems, how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mprm.annotation.samplers.sampler import SamplingParams
from mprm.errors import ConfigError
from mprm_lab.policy.architecture import Size
from mprm_lab.policy.train_policy import PolicyTraining
from mprm_lab.world import SOURCES

FREE = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=320)
"""Tokens are drawn as the policy has learnt them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """One policy."""

    kind: str
    """``qwen2_5_vl`` or ``internvl``."""
    size: Size = field(default_factory=Size)
    training: PolicyTraining = field(default_factory=PolicyTraining)
    snapshots: dict[str, float] = field(default_factory=dict)
    """Policies that are kept on the way, each after this share of the updates: they know less, and err more."""

    def __post_init__(self) -> None:
        n_updates = [round(share * self.training.n_updates) for share in self.snapshots.values()]
        if len(set(n_updates)) < len(n_updates) or not all(0 < n < self.training.n_updates for n in n_updates):
            raise ConfigError(
                f"snapshots must be taken at different updates before the last, got {self.snapshots}"
                f" of {self.training.n_updates:,}"
            )


def _size(hidden: int, layers: int, vision_hidden: int, vision_layers: int) -> Size:
    return Size(
        hidden=hidden,
        layers=layers,
        heads=hidden // 32,
        kv_heads=hidden // 64,
        intermediate=3 * hidden,
        vision_hidden=vision_hidden,
        vision_layers=vision_layers,
    )


SNAPSHOTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the updates after which the two backbones' policies are kept; the benchmark's authors are among them."""


def _policies() -> dict[str, PolicyPlan]:
    usual, small = _size(256, 5, 128, 3), _size(128, 3, 96, 2)
    how = PolicyTraining(n_updates=8000)

    def kept(name: str) -> dict[str, float]:
        return {f"{name}-{100 * share:g}": share for share in SNAPSHOTS}

    return {
        "internvl": PolicyPlan(kind="internvl", size=usual, training=how, snapshots=kept("internvl")),
        "qwen": PolicyPlan(kind="qwen2_5_vl", size=usual, training=replace(how, seed=1), snapshots=kept("qwen")),
        "small": PolicyPlan(kind="internvl", size=small, training=replace(how, seed=2)),
    }


_LARGER = {"grid-max": 6, "bars-second": 6, "grid-path": 4, "shapes-points": 3}
CORPUS_SOURCES = tuple(source for source in SOURCES for _ in range(_LARGER.get(source, 1)))
"""Sources of a collected corpus differ in size: here the ones that the policy finds hard are the large ones, which
brings the corpus's share of error steps and of mixed rollouts near the paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The whole lab; the defaults are its real size, for one H200."""

    policies: dict[str, PolicyPlan] = field(default_factory=_policies)
    at_once: int = 3
    """Policies that are trained side by side on one device."""
    corpus_policy: str = "internvl-90"
    """Makes the corpus, and the candidates of best-of-N."""
    benchmark_policies: tuple[str, ...] = ("internvl-40", "internvl-50", "qwen-40", "qwen-70")
    """Make the benchmark; none of them has a part in the corpus."""
    demo_policy: str = "small"
    """What reward models begin from where there is no GPU."""
    demo_rate: float = 3e-4
    """Their learning rate."""
    sources: tuple[str, ...] = tuple(SOURCES)
    """Of the benchmarks and the candidates, in turn."""
    corpus_sources: tuple[str, ...] = CORPUS_SOURCES
    """Of the corpus, in turn; some come up more often."""
    corpus_questions: int = 10_000
    rollouts: int = 4
    continuations: int = 16
    benchmark_questions: int = 600
    """For each of the benchmark's policies, one solution each."""
    validation_questions: int = 150
    """Likewise, of the benchmark that hyperparameters are chosen on."""
    best_of_n_questions: int = 600
    candidates: int = 16
    sampling: SamplingParams = FREE
    rows: int | None = 4096
    """Answers that a process draws at a time."""
    shards: int = 6
    """Processes that annotate side by side on one device."""
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.sources or len(set(self.sources)) < len(self.sources) or not set(self.sources) <= SOURCES.keys():
            raise ConfigError(
                f"sources must be different ones of {', '.join(SOURCES)}; got {', '.join(self.sources)}"
            )
        if not self.corpus_sources or not set(self.corpus_sources) <= SOURCES.keys():
            raise ConfigError(
                f"corpus_sources must be some of {', '.join(SOURCES)}; got {', '.join(self.corpus_sources)}"
            )
        made = [*self.policies, *(name for policy in self.policies.values() for name in policy.snapshots)]
        if len(set(made)) < len(made) or any("/" in name for name in made):
            raise ConfigError(
                f"policies and snapshots must have different names without a slash, got {', '.join(made)}"
            )
        if unknown := {self.corpus_policy, self.demo_policy, *self.benchmark_policies} - set(made):
            raise ConfigError(f"no policy {', '.join(sorted(unknown))} is made; there are {', '.join(made)}")

"""What the fit to a corpus tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mprm.theory.corpus_fit.prior_fit import Prior, PseudoPositives


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFit:
    """The model fitted to one source, or to all together."""

    name: str
    n_rollouts: int
    n_steps: int
    n_unsampled: int
    """Steps without a continuation: they weigh nothing in the fit."""
    continuations: tuple[int, ...]
    """Numbers of continuations that occur."""
    is_inferred: bool
    """Whether the scores' grid told them."""
    prior: Prior | None
    why_no_prior: str
    """Empty where there is one."""
    negative: float
    """Share of the sampled steps that failed in all continuations."""
    expected_negative: float | None
    """What the prior expects of it: far from it, one Beta does not describe the source."""
    pseudo_positive: PseudoPositives
    """By the source's own prior; by that of all sources together where it has none."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        prior = self.prior
        return {
            "name": self.name,
            "n_rollouts": self.n_rollouts,
            "n_steps": self.n_steps,
            "n_unsampled": self.n_unsampled,
            "continuations": self.continuations,
            "continuations_inferred": self.is_inferred,
            "prior": None
            if prior is None
            else {
                "a": prior.a,
                "a_interval": prior.a_interval,
                "b": prior.b,
                "b_interval": prior.b_interval,
                "mean": prior.mean,
            },
            "why_no_prior": self.why_no_prior or None,
            "negative": self.negative,
            "expected_negative": self.expected_negative,
            "pseudo_positive": self.pseudo_positive.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """What a count of successes tells, by the prior of all sources together."""

    k: int
    steps: int
    posterior_mean: float
    eta_eff: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetNoise:
    """Pseudo-positives in what a strategy keeps."""

    strategy: str
    n_rollouts: int
    n_steps: int
    n_positive: int
    pseudo_positive: float
    """Expected share of the positive steps."""
    of_all_steps: float
    """Expected share of all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFit:
    """The model fitted to a corpus."""

    total: SourceFit
    sources: list[SourceFit]
    N: int
    """The number of continuations that most steps have; the table of noise is for it."""
    noise: list[NoiseRow]
    subsets: list[SubsetNoise]
    """All rollouts first, then each strategy."""
    rho: float
    reliable: float
    n_dropped: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "all": self.total.as_dict(),
            "sources": [source.as_dict() for source in self.sources],
            "reliable": self.reliable,
            "N": self.N,
            "eta_eff": [asdict(row) for row in self.noise],
            "rho": self.rho,
            "subsets": [asdict(subset) for subset in self.subsets],
            "dropped": self.n_dropped,
        }

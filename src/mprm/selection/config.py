"""Which rollouts to keep: the options of a selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from mprm.errors import ConfigError

StrategyName = Literal["bis", "random", "low-mc", "mixed", "reliable"]
"""The strategies; `mprm.scores.rank.STRATEGIES` says how each ranks."""
DEFAULT_RHO = 0.10
Ties = Literal["hash", "file-order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectConfig:
    """Which rollouts to keep."""

    strategy: tuple[StrategyName, ...] = ("bis",)
    """How to rank rollouts; several give several subsets from one scan."""
    rho: tuple[float, ...] = ()
    """Fraction kept from each source, in (0, 1]; several give several subsets. A tenth by default."""
    keep: int | None = None
    """Number kept from each source, instead of a fraction."""
    source_rho: Mapping[str, float] = field(default_factory=dict)
    """Fraction for single sources, by name."""
    alpha: float = 0.05
    """BIS smoothing; larger lets in more single-label rollouts."""
    tau: float = 0.0
    """A step is positive when its score is strictly above it."""
    seed: int = 0
    """Seed of the random order."""
    ties: Ties = "hash"
    """Rollouts of equal rank: in seeded random order, or in file order as the paper's code."""
    pool: bool = False
    """Rank all sources together instead of each by itself."""

    def __post_init__(self) -> None:
        for name in self.strategy:
            if name not in get_args(StrategyName):
                raise ConfigError(f"unknown strategy {name!r}; expected one of {', '.join(get_args(StrategyName))}")
        for what, rho in [("rho", rho) for rho in self.rho] + [
            (f"rho of {s}", r) for s, r in self.source_rho.items()
        ]:
            if not 0 < rho <= 1:
                raise ConfigError(f"{what} must be in (0, 1], got {rho}")
        if not self.strategy:
            raise ConfigError("name at least one strategy")
        if self.keep is not None and (self.rho or self.source_rho):
            raise ConfigError("keep and rho both say how many to keep; name one of them")
        if len(set(self.strategy)) < len(self.strategy) or len(set(self.rho)) < len(self.rho):
            raise ConfigError("a strategy or rho is named twice")
        if self.ties not in get_args(Ties):
            raise ConfigError(f"unknown ties {self.ties!r}; expected one of {', '.join(get_args(Ties))}")
        if not isinstance(self.seed, int):
            raise ConfigError(f"seed must be a whole number, got {self.seed!r}")
        if self.keep is not None and self.keep < 1:
            raise ConfigError(f"keep must be at least 1, got {self.keep}")
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha must be 0 or more, got {self.alpha}")
        if not 0 <= self.tau < 1:
            raise ConfigError(f"tau must be in [0, 1), got {self.tau}")
        if self.pool and self.source_rho:
            raise ConfigError("source_rho has no meaning when sources are pooled")

    @property
    def sizes(self) -> tuple[float | None, ...]:
        """The fractions to keep; one None where a number is kept instead."""
        return (None,) if self.keep is not None else self.rho or (DEFAULT_RHO,)

    def n_keep(self, rho: float | None, source: str | None, n_rollouts: int) -> int:
        """How many of a source's rollouts to keep: ``max(1, int(n * rho))``, and none of none."""
        if n_rollouts == 0:
            return 0
        share = self.source_rho.get(source, rho) if source is not None else rho
        if share is None:
            assert self.keep is not None
            return min(self.keep, n_rollouts)
        return max(1, int(n_rollouts * share))

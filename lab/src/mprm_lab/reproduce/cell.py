"""A cell: one training of one reward model, and what it is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mprm.errors import ConfigError
from mprm.selection.strategies import StrategyName

Labels = Literal["hard", "soft"]
Subset = Literal["base", "full"] | StrategyName
ALPHA = 0.05
"""BIS smoothing of every cell that does not vary it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One reward model: from which weights, on which rollouts, with which labels, in which order."""

    backbone: str
    """Name of a policy of the lab, whose weights training begins with."""
    subset: Subset = "full"
    """``base``: the weights as they are, without any training; ``full``: all rollouts; or a strategy."""
    rho: float | None = None
    """Fraction that the strategy keeps."""
    alpha: float = ALPHA
    labels: Labels = "hard"
    tau_count: int = 0
    """Hard labels: a step is positive when more than this many of its continuations succeed."""
    is_matched: bool = False
    """Pass over the subset as often as gives the updates of one pass over everything."""
    seed: int = 0
    """Of the choice, and of the order in training."""
    learning_rate: float | None = None
    """A rate to be tried, on the validation split; None for the one that was chosen."""

    def __post_init__(self) -> None:
        if (self.rho is None) != (self.subset in ("base", "full")):
            raise ConfigError(f"rho goes with a strategy, got {self.subset} and {self.rho}")
        if self.labels == "soft" and self.tau_count:
            raise ConfigError("soft labels have no threshold")

    @property
    def arm(self) -> str:
        """What tells it from the others of its backbone, but for the seed: ``bis-10``, ``bis-25-alpha-0.02``."""
        if self.learning_rate is not None:
            return f"choose-lr-{self.learning_rate:g}"
        words = [self.subset if self.rho is None else f"{self.subset}-{100 * self.rho:g}"]
        words += [f"alpha-{self.alpha:g}"] * (self.alpha != ALPHA)
        words += ["soft"] * (self.labels == "soft") + [f"tau-{self.tau_count}"] * (self.tau_count > 0)
        return "-".join(words + ["matched"] * self.is_matched)

    @property
    def name(self) -> str:
        """Its own among all cells, and of its files: ``qwen.bis-10.seed0``."""
        return f"{self.backbone}.{self.arm}.seed{self.seed}"

    @property
    def epochs(self) -> int:
        """Passes over its rollouts."""
        return round(1 / self.rho) if self.is_matched and self.rho is not None else 1

    @property
    def passes(self) -> float:
        """Rollouts that it reads, as a share of all rollouts."""
        return 0.0 if self.subset == "base" else (self.rho or 1.0) * self.epochs

"""What can be chosen about an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mprm.errors import ConfigError

ThresholdChoice = float | Literal["held-out", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """How a model is measured."""

    threshold: ThresholdChoice = "held-out"
    """A step counts as correct when its score is at least this; a number, or where it is chosen."""
    folds: int = 5
    """Parts that the problems are split into when thresholds are held out."""
    seed: int = 0
    """Seed of folds, bootstrap draws and permutations."""
    draws: int = 1000
    """Bootstrap draws; 0 for no intervals."""
    tau: float = 0.0
    """Rollouts as a benchmark: a step is correct when its score is strictly above it."""
    image_root: str | None = None
    """Folder that holds the images."""
    text_only: bool = False
    """Accept records without an image."""
    benchmark_format: str | None = None
    """Name of the benchmark's format, where the first record must not decide."""

    def __post_init__(self) -> None:
        if isinstance(self.threshold, str):
            if self.threshold not in ("held-out", "test"):
                raise ConfigError(f"threshold must be held-out, test or a number, got {self.threshold!r}")
        elif not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold must be in [0, 1], got {self.threshold}")
        if self.folds < 2:
            raise ConfigError(f"folds must be 2 or more, got {self.folds}")
        if self.draws < 0:
            raise ConfigError(f"draws must be 0 or more, got {self.draws}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if not 0 <= self.tau < 1 or math.isnan(self.tau):
            raise ConfigError(f"tau must be in [0, 1), got {self.tau}")

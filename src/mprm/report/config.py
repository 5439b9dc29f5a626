"""The options of a report."""

from __future__ import annotations

from dataclasses import dataclass

from mprm.errors import ConfigError
from mprm.selection.config import DEFAULT_RHO, SelectConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What a report shows."""

    rho: float = DEFAULT_RHO
    """Fraction kept from each source, in (0, 1], where the page begins."""
    alpha: float = 0.05
    """BIS smoothing where the page begins."""
    tau: float = 0.0
    """A step is positive when its score is strictly above it."""
    seed: int = 0
    """Seed of the random order that decides between equal ranks."""
    cards: int = 1
    """Case studies of each kind from each source; 0 for none."""
    image_root: str | None = None
    """Folder that image paths are relative to; without it no image is opened."""

    def __post_init__(self) -> None:
        if self.cards < 0:
            raise ConfigError(f"cards must be 0 or more, got {self.cards}")
        _ = self.selection  # refuses what cannot be selected by

    @property
    def selection(self) -> SelectConfig:
        """The selection that the page shows first."""
        return SelectConfig(rho=(self.rho,), alpha=self.alpha, tau=self.tau, seed=self.seed)

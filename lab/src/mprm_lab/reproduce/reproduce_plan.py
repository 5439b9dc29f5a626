"""Which cells there are, and what all of them have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mprm.errors import ConfigError
from mprm.selection.strategies import StrategyName
from mprm_lab.reproduce.cell import Cell

TRAINING: dict[str, Any] = {"batch_size": 64, "per_device": 64, "max_length": 1024}
"""Fields of `mprm.TrainConfig` that all reward models of the lab share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducePlan:
    """The paper's experiments; the defaults are their real size, for one H200."""

    backbones: tuple[str, ...] = ("internvl", "qwen")
    seeds: int = 5
    rhos: tuple[float, ...] = (0.05, 0.10, 0.15, 0.25, 0.35, 0.50)
    """Of BIS and of random choice."""
    ablated: tuple[StrategyName, ...] = ("mixed", "reliable", "low-mc")
    ablation_rho: float = 0.25
    """Where the other strategies and the other alphas are compared."""
    alphas: tuple[float, ...] = (0.02, 0.08, 0.2)
    """Besides 0.05; the paper has 0.02 and 0.08."""
    matched: tuple[float, ...] = (0.05, 0.25)
    """Random choices that are also trained for as many updates as all data gets; the paper has 25%."""
    tau_counts: tuple[int, ...] = (1, 2)
    """Thresholds of hard labels besides 0, in continuations of N."""
    n_continuations: int = 16
    """N, behind every score of the corpus."""
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Tried on all data, measured on the validation split; the best is used for every cell of the backbone."""
    choice_seed: int = 1000
    """Of the trainings that choose; no other cell has it."""
    training: dict[str, Any] = field(default_factory=lambda: dict(TRAINING))
    """Fields of `mprm.TrainConfig` that all trainings share; the others are its defaults."""
    curves: tuple[str, ...] = ("full", "random-10", "bis-10", "random-25", "bis-25", "random-25-matched")
    """Arms whose first seeds are measured during training too."""
    curve_seeds: int = 3
    curve_points: int = 6
    """Measurements on the way, besides the untrained and the last."""
    best_of_n: tuple[str, ...] = ("base", "full", "random-10", "bis-10", "random-25", "bis-25")
    """Arms that choose among candidates."""
    keep: tuple[str, ...] = ("full.seed0", "bis-10.seed0", "random-10.seed0")
    """Reward models that stay in ``runs/``, of every backbone."""
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.seeds > self.choice_seed:
            raise ConfigError(f"seeds must be from 1 to {self.choice_seed}, got {self.seeds}")

    def choices(self) -> list[Cell]:
        """Trainings that choose the learning rate."""
        return [
            Cell(backbone=backbone, learning_rate=rate, seed=self.choice_seed)
            for backbone in self.backbones
            for rate in self.learning_rates
        ]

    def cells(self) -> list[Cell]:
        """Trainings that are reported."""
        found = [Cell(backbone=backbone, subset="base") for backbone in self.backbones]
        for backbone in self.backbones:
            for seed in range(self.seeds):
                found += self._of_seed(backbone, seed)
        return found

    def _of_seed(self, backbone: str, seed: int) -> list[Cell]:
        def cell(**what: Any) -> Cell:
            return Cell(backbone=backbone, seed=seed, **what)

        return [
            cell(),
            *(cell(tau_count=count) for count in self.tau_counts),
            cell(labels="soft"),
            *(cell(subset=how, rho=rho) for rho in self.rhos for how in ("random", "bis")),
            *(cell(subset=how, rho=self.ablation_rho) for how in self.ablated),
            *(cell(subset="bis", rho=self.ablation_rho, alpha=alpha) for alpha in self.alphas),
            *(cell(subset="random", rho=rho, is_matched=True) for rho in self.matched),
        ]

    def has_curve(self, cell: Cell) -> bool:
        """Whether the cell is measured during training."""
        return cell.arm in self.curves and cell.seed < self.curve_seeds

    def keeps_scores(self, cell: Cell) -> bool:
        """Whether its step scores are kept: those of all rollouts, of BIS and of random choice, to be compared."""
        return cell.arm in {"full", *(f"{how}-{100 * rho:g}" for rho in self.rhos for how in ("bis", "random"))}

    def keeps_weights(self, cell: Cell) -> bool:
        """Whether the trained model is kept."""
        return f"{cell.arm}.seed{cell.seed}" in self.keep

    def train_options(self, cell: Cell, learning_rate: float) -> dict[str, Any]:
        """Fields of `mprm.TrainConfig` that decide what the cell's training makes."""
        return {
            **self.training,
            "strategy": None if cell.rho is None else cell.subset,
            "rho": cell.rho,
            "alpha": cell.alpha,
            "select_seed": cell.seed,
            "seed": cell.seed,
            "soft": cell.labels == "soft",
            "tau": cell.tau_count / self.n_continuations,
            "epochs": cell.epochs,
            "learning_rate": learning_rate,
        }

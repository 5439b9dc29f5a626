"""Which reward models the paper's experiments train, and what all of them have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mprm_lab.make import TRAINING

Reference = Literal["base", "position", "logp-mean", "logp-min"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)
"""Scores without any training: of the weights that training starts from; the share of positive steps at the same
position of the corpus, which reads nothing; and the policy's probability of a step's tokens, their geometric mean, or
the lowest so far in the chain."""
ALPHA = 0.05
"""BIS smoothing of every run that does not vary it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One reward model: from which weights, on which rollouts, with which labels, in which order."""

    backbone: str
    """Name of a policy of the lab, whose weights training starts from."""
    subset: str = "full"
    """One of `REFERENCES`; ``full``: all rollouts; or a strategy."""
    rho: float | None = None
    """Fraction that the strategy keeps."""
    alpha: float = ALPHA
    labels: Literal["hard", "soft"] = "hard"
    tau_count: int = 0
    """Hard labels: a step is positive when more than this many of its continuations succeed."""
    is_matched: bool = False
    """Train on the subset for as many epochs as give the optimizer steps of one epoch over everything."""
    seed: int = 0
    """Of the selection, and of the order in training."""
    learning_rate: float | None = None
    """A rate to be tried, on the validation split; None for the plan's."""

    @property
    def condition(self) -> str:
        """The experimental condition, all but backbone and seed: ``bis-10``, ``bis-25-alpha-0.02``."""
        words = [self.subset if self.rho is None else f"{self.subset}-{100 * self.rho:g}"]
        if self.learning_rate is not None:
            return f"choose-lr-{self.learning_rate:g}-{words[0]}"
        words += [f"alpha-{self.alpha:g}"] * (self.alpha != ALPHA)
        words += ["soft"] * (self.labels == "soft") + [f"tau-{self.tau_count}"] * (self.tau_count > 0)
        return "-".join(words + ["matched"] * self.is_matched)

    @property
    def name(self) -> str:
        """Unique among all runs, and the name of its files: ``qwen.bis-10.seed0``."""
        return f"{self.backbone}.{self.condition}.seed{self.seed}"

    @property
    def epochs(self) -> int:
        """Epochs over its rollouts."""
        return round(1 / self.rho) if self.is_matched and self.rho is not None else 1

    @property
    def is_trained(self) -> bool:
        return self.subset not in REFERENCES

    @property
    def passes(self) -> float:
        """Rollouts that it reads, as a share of all rollouts."""
        return (self.rho or 1.0) * self.epochs if self.is_trained else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducePlan:
    """The paper's experiments; the defaults are their real size, for one H200."""

    backbones: tuple[str, ...] = ("internvl", "qwen")
    seeds: int = 5
    rhos: tuple[float, ...] = (0.05, 0.10, 0.15, 0.25, 0.35, 0.50)
    """Of BIS and of random selection."""
    ablated: tuple[str, ...] = ("mixed", "reliable", "low-mc")
    ablation_rho: float = 0.25
    """Where the other strategies and the other alphas are compared."""
    alphas: tuple[float, ...] = (0.02, 0.08, 0.2)
    """Besides 0.05; the paper has 0.02 and 0.08."""
    matched: tuple[float, ...] = (0.05, 0.25)
    """Random fractions that are also trained for as many optimizer steps as all data; the paper has 25%."""
    tau_counts: tuple[int, ...] = (1, 2)
    """Thresholds of hard labels besides 0, in continuations of N."""
    n_continuations: int = 16
    """N, behind every score of the corpus."""
    rates: tuple[tuple[float, float], ...] = ((0.15, 3e-4), (1.0, 1e-4))
    """(largest share, peak learning rate): the rate of a run that passes over at most this share of all rollouts."""
    tried_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """What `rates` were chosen from, on the validation split; see `rate_trials`."""
    trial_seed: int = 1000
    """Of the runs that try a rate; no other run has it."""
    training: dict[str, Any] = field(default_factory=lambda: dict(TRAINING))
    """Fields of `mprm.TrainConfig` that all runs share; the others are its defaults."""
    curves: tuple[str, ...] = ("full", "random-10", "bis-10", "random-25", "bis-25", "random-25-matched")
    """Conditions whose first seeds are evaluated during training too."""
    curve_seeds: int = 3
    curve_points: int = 6
    """Evaluations on the way, besides the untrained and the last."""
    best_of_n: tuple[str, ...] = (*REFERENCES, "full", "random-10", "bis-10", "random-25", "bis-25")
    """Conditions that choose among candidates."""
    keep: tuple[str, ...] = ("full.seed0", "bis-10.seed0", "random-10.seed0")
    """Reward models that stay in ``runs/``, of every backbone."""
    device: Literal["auto", "cpu"] = "auto"
    model_based: tuple[str, ...] = ()
    """Strategies that rank rollouts by the scores of a model that was trained on a random tenth."""
    read_out: tuple[str, ...] = ()
    """Strategies whose models are read together with the backbone's own log-probabilities; see `mprm.readout`."""
    results: str = "results"
    """Folder of the lab for the records of runs."""

    def rate_trials(self) -> list[Run]:
        """Runs that try every rate on all data and on each random fraction."""
        return [
            Run(
                backbone=backbone,
                subset="full" if rho is None else "random",
                rho=rho,
                learning_rate=rate,
                seed=self.trial_seed,
            )
            for backbone in self.backbones
            for rho in (None, *self.rhos)
            for rate in self.tried_rates
        ]

    def rate_of(self, run: Run) -> float:
        """The peak learning rate of a run."""
        return run.learning_rate or next(rate for share, rate in self.rates if run.passes <= share)

    def runs(self) -> list[Run]:
        """Runs that are reported."""
        conditions: list[dict[str, Any]] = [
            {},
            *({"tau_count": count} for count in self.tau_counts),
            {"labels": "soft"},
            *({"subset": strategy, "rho": rho} for rho in self.rhos for strategy in ("random", "bis")),
            *({"subset": strategy, "rho": self.ablation_rho} for strategy in self.ablated),
            *({"subset": "bis", "rho": self.ablation_rho, "alpha": alpha} for alpha in self.alphas),
            *({"subset": "random", "rho": rho, "is_matched": True} for rho in self.matched),
        ]
        return [Run(backbone=backbone, subset=name) for backbone in self.backbones for name in REFERENCES] + [
            Run(backbone=backbone, seed=seed, **condition)
            for backbone in self.backbones
            for seed in range(self.seeds)
            for condition in conditions
        ]

    def chooses(self, run: Run) -> bool:
        """Whether the run's model chooses among candidates."""
        return run.condition in self.best_of_n

    def has_curve(self, run: Run) -> bool:
        """Whether the run is evaluated during training."""
        return run.condition in self.curves and run.seed < self.curve_seeds

    def keeps_scores(self, run: Run) -> bool:
        """Whether its step scores are kept: of all rollouts, BIS, random selection and the references, to compare."""
        compared = {f"{strategy}-{100 * rho:g}" for rho in self.rhos for strategy in ("bis", "random")}
        return run.condition in {"full", *compared, *REFERENCES}

    def keeps_weights(self, run: Run) -> bool:
        """Whether the trained model is kept."""
        return f"{run.condition}.seed{run.seed}" in self.keep

    def cost(self, run: Run, n_rollouts: int) -> float:
        """How long a run takes, in rollouts that are trained on."""
        n_evaluations = 1 + (1 + self.curve_points) * self.has_curve(run) + 3 * self.chooses(run)
        return run.passes * n_rollouts + EVALUATION_COST * n_evaluations

    def train_options(self, run: Run) -> dict[str, Any]:
        """Fields of `mprm.TrainConfig` that decide what the run's training makes."""
        return {
            **self.training,
            "strategy": None if run.rho is None else run.subset,
            "rho": run.rho,
            "alpha": run.alpha,
            "select_seed": run.seed,
            "seed": run.seed,
            "labels": run.labels,
            "tau": run.tau_count / self.n_continuations,
            "epochs": run.epochs,
            "learning_rate": self.rate_of(run),
        }


EVALUATION_COST = 1500.0
"""Rollouts that could be trained on in the time that a benchmark is scored in."""

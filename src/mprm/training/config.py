"""How to train: the paper's hyperparameters are the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mprm.errors import ConfigError
from mprm.models.prompt import MAX_LENGTH, NEGATIVE, POSITIVE
from mprm.selection.strategies import StrategyName

WHOLE = (
    *("batch_size", "per_device", "epochs", "max_length", "seed", "select_seed", "lora_rank", "eval_every"),
    *("save_every", "keep", "workers", "max_updates"),
)
"""Options that are whole numbers."""
Precision = Literal["auto", "bf16", "float32", "pure-bf16"]
Sharding = Literal["none", "fsdp", "zero3"]
Pack = Literal["tree", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides what a training run makes."""

    model: str
    """Checkpoint to begin with: Qwen2.5-VL, InternVL (native layout), or any causal language model."""
    out: str
    """Folder of the run."""
    tau: float = 0.0
    """A step is positive when its score is strictly above it."""
    soft: bool = False
    """Teach the Monte-Carlo scores themselves instead of hard labels."""
    select: StrategyName | None = None
    """Choose a subset first, by this strategy."""
    rho: float | None = None
    """Fraction that is chosen from each source."""
    alpha: float = 0.05
    """BIS smoothing of the choice."""
    select_seed: int = 0
    """Seed of the choice."""
    learning_rate: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.05
    warmup: float = 0.05
    """Share of the updates in which the learning rate rises; then it falls to zero along a cosine."""
    max_grad_norm: float = 1.0
    batch_size: int = 512
    """Rollouts in an update, over all devices."""
    per_device: int = 2
    """Rollouts a device takes at once; changes speed and memory, not the result."""
    pack: Pack = "tree"
    """tree: no padding, and rollouts of one problem stand behind one prompt; none: padded. The result is the same."""
    epochs: int = 1
    max_length: int = MAX_LENGTH
    """Tokens of a rollout; longer ones are cut off at the end."""
    seed: int = 0
    """Order of the data and whatever else is drawn."""
    precision: Precision = "auto"
    """bf16: float32 weights, bf16 arithmetic; pure-bf16: all in bf16, half the memory, small updates are lost."""
    gradient_checkpointing: bool = True
    sharding: Sharding = "none"
    """Split weights and optimizer over the devices."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank on the language model (and the whole projector) instead of all weights."""
    lora_alpha: int | None = None
    """Scale of the adapters; twice the rank when None."""
    attention: str | None = None
    image_root: str | None = None
    """Folder that image paths are relative to."""
    image_settings: dict[str, int] = field(default_factory=dict)
    positive: str = POSITIVE
    negative: str = NEGATIVE
    text_only: bool = False
    skip_bad: bool = False
    format: str | None = None
    benchmark: tuple[str, ...] = ()
    """Labelled steps to score during training."""
    benchmark_root: str | None = None
    """Folder that the benchmark's image paths are relative to; the image root when None."""
    eval_every: int = 0
    """Score the benchmark every so many updates, and after the last."""
    save_every: int = 100
    """Checkpoint every so many updates; 0 for none but the last."""
    keep: int = 2
    """Checkpoints kept besides the final model."""
    workers: int = 4
    """Processes a device that prepare images and text."""
    report_to: tuple[str, ...] = ("tensorboard",)
    max_updates: int | None = None
    """Stop after so many updates of the planned schedule, to be resumed later."""
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        for name in ("model", "out", "image_root", "benchmark_root"):
            if isinstance(getattr(self, name), Path):
                object.__setattr__(self, name, str(getattr(self, name)))
        for name in ("report_to", "benchmark"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        if not isinstance(self.model, str) or not isinstance(self.out, str):
            raise ConfigError(f"model and out are folders, got {self.model!r} and {self.out!r}")
        for name in WHOLE:
            value = getattr(self, name)
            if not (isinstance(value, int) or (value is None and name == "max_updates")) or isinstance(value, bool):
                raise ConfigError(f"{name.replace('_', '-')} must be a whole number, got {value!r}")
        for name, options in (("precision", Precision), ("sharding", Sharding), ("pack", Pack)):
            if getattr(self, name) not in get_args(options):
                raise ConfigError(f"unknown {name} {getattr(self, name)!r}; expected {', '.join(get_args(options))}")
        for name in ("batch_size", "per_device", "epochs", "max_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "save_every", "eval_every", "keep", "workers"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name.replace('_', '-')} must be 0 or more, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon must be above 0, got {self.epsilon}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be from 0 to {2**32 - 1}, got {self.seed}")
        if self.max_updates is not None and self.max_updates < 1:
            raise ConfigError(f"max-updates must be at least 1, got {self.max_updates}")
        if self.device not in ("auto", "cpu"):
            raise ConfigError(
                f"unknown device {self.device!r}; expected auto or cpu. CUDA_VISIBLE_DEVICES picks a GPU"
            )
        if not 0 <= self.tau < 1:
            raise ConfigError(f"tau must be in [0, 1), got {self.tau}")
        if self.soft and self.tau:
            raise ConfigError("soft labels have no threshold; leave out tau or soft")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup must be in [0, 1), got {self.warmup}")
        if (self.rho is not None) and self.select is None:
            raise ConfigError("rho says how much to select, and select does not say by which strategy")
        if bool(self.eval_every) != bool(self.benchmark):
            raise ConfigError("eval-every and benchmark go together: name both or neither")
        if self.lora_rank < 0:
            raise ConfigError(f"lora-rank must be 0 or more, got {self.lora_rank}")
        if self.lora_alpha is not None and not self.lora_rank:
            raise ConfigError("lora-alpha scales adapters, and lora-rank says that there are none")

    @property
    def label_scheme(self) -> dict[str, Any]:
        """How steps are labelled, for the card."""
        return {"scheme": "soft"} if self.soft else {"scheme": "hard", "tau": self.tau}

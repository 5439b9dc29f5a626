"""`TrainConfig`: the options of ``mprm train``. The defaults are the paper's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.config import Alpha, CorpusOptions, ImageRoot, Option, Tau
from mprm.errors import ConfigError
from mprm.models.prompt import MAX_LENGTH, NEGATIVE, POSITIVE
from mprm.selection.strategies import StrategyName


@dataclass(frozen=True, kw_only=True)
class TrainConfig(CorpusOptions):
    """Everything that decides what a training run makes."""

    model: Annotated[
        str,
        Option(
            "Checkpoint to start from: Qwen2.5-VL, InternVL (native layout), or any causal language model.",
            "DIR",
            group="training",
        ),
    ]
    out: Annotated[str, Option("Folder of the run; at the end it holds the model.", "DIR", group="output")]
    image_root: ImageRoot = None
    tau: Tau = 0.0
    soft: Annotated[
        bool, Option("Train on the Monte Carlo scores themselves instead of hard labels.", group="labels")
    ] = False
    positive: Annotated[str, Option("Token of a correct step.", "TOKEN", group="labels")] = POSITIVE
    negative: Annotated[str, Option("Token of an incorrect step.", "TOKEN", group="labels")] = NEGATIVE
    strategy: Annotated[
        StrategyName | None, Option("Select a subset first, by this strategy.", group="selection")
    ] = None
    rho: Annotated[
        float | None,
        Option(
            "Fraction selected from each source, with --strategy. (default: 0.1)",
            "NUMBER",
            group="selection",
            above=0,
            at_most=1,
        ),
    ] = None
    alpha: Alpha = 0.05
    select_seed: Annotated[int, Option("Seed of the selection.", "N", group="selection", at_least=0)] = 0
    learning_rate: Annotated[float, Option("Peak learning rate.", "NUMBER", group="training", at_least=0)] = 1e-5
    beta1: Annotated[float, Option("AdamW's beta1.", "NUMBER", group="training", at_least=0, below=1)] = 0.9
    beta2: Annotated[float, Option("AdamW's beta2.", "NUMBER", group="training", at_least=0, below=1)] = 0.999
    epsilon: Annotated[float, Option("AdamW's epsilon.", "NUMBER", group="training", above=0)] = 1e-8
    weight_decay: Annotated[float, Option("Weight decay.", "NUMBER", group="training", at_least=0)] = 0.05
    warmup: Annotated[
        float,
        Option(
            "Share of the optimizer steps that warm up; a cosine to zero follows.",
            "NUMBER",
            group="training",
            at_least=0,
            below=1,
        ),
    ] = 0.05
    max_grad_norm: Annotated[
        float, Option("Gradients are clipped to this norm; 0 = never.", "NUMBER", group="training", at_least=0)
    ] = 1.0
    batch_size: Annotated[
        int, Option("Rollouts in an optimizer step, over all devices.", "N", group="training", at_least=1)
    ] = 512
    epochs: Annotated[int, Option("Passes over the data.", "N", group="training", at_least=1)] = 1
    max_length: Annotated[
        int, Option("Tokens of a rollout; longer ones are truncated.", "N", group="training", at_least=1)
    ] = MAX_LENGTH
    seed: Annotated[int, Option("Random seed.", "N", group="training", at_least=0, below=2**32)] = 0
    lora_rank: Annotated[
        int,
        Option(
            "Train LoRA adapters of this rank instead of all weights; 0 = off.", "N", group="training", at_least=0
        ),
    ] = 0
    lora_alpha: Annotated[
        int | None, Option("Scale of the adapters. (default: twice the rank)", "N", group="training")
    ] = None
    min_pixels: Annotated[
        int | None,
        Option("Qwen2.5-VL: fewest pixels of an image. (default: 784)", "N", group="training", at_least=1),
    ] = None
    max_pixels: Annotated[
        int | None,
        Option("Qwen2.5-VL: most pixels of an image. (default: 200704)", "N", group="training", at_least=1),
    ] = None
    max_patches: Annotated[
        int | None, Option("InternVL: most tiles of an image. (default: 6)", "N", group="training", at_least=1)
    ] = None
    benchmark: Annotated[
        tuple[str, ...], Option("Labelled steps to score during training.", "FILE", group="evaluation")
    ] = ()
    benchmark_root: Annotated[
        str | None, Option("Folder of the benchmark's images; else the image root.", "DIR", group="evaluation")
    ] = None
    eval_every: Annotated[
        int, Option("Score the benchmark every so many optimizer steps.", "N", group="evaluation", at_least=0)
    ] = 0
    per_device: Annotated[
        int,
        Option(
            "Rollouts in a micro-batch, on average; does not change the result.", "N", group="compute", at_least=1
        ),
    ] = 2
    pack: Annotated[
        Literal["tree", "none"],
        Option(
            "tree: no padding, one prompt for the rollouts of a problem; none: padded. The result is the same.",
            group="compute",
        ),
    ] = "tree"
    precision: Annotated[
        Literal["auto", "bf16", "float32", "pure-bf16"],
        Option("bf16 keeps float32 weights; pure-bf16 halves memory and loses small changes.", group="compute"),
    ] = "auto"
    sharding: Annotated[
        Literal["none", "fsdp", "zero3"], Option("Shard weights and optimizer over the devices.", group="compute")
    ] = "none"
    gradient_checkpointing: Annotated[
        bool, Option("Recompute activations in backward; keeping them is faster and takes memory.", group="compute")
    ] = True
    attention: Annotated[
        str | None, Option("Attention implementation, by transformers' name.", "NAME", group="compute")
    ] = None
    dataloader_workers: Annotated[
        int, Option("Processes a device that load images.", "N", group="compute", at_least=0)
    ] = 4
    device: Annotated[
        Literal["auto", "cpu"], Option("Where to train; CUDA_VISIBLE_DEVICES picks a GPU.", group="compute")
    ] = "auto"
    save_every: Annotated[
        int, Option("Optimizer steps between checkpoints; 0 = only the end.", "N", group="output", at_least=0)
    ] = 100
    save_total_limit: Annotated[
        int, Option("Checkpoints kept besides the final model.", "N", group="output", at_least=1)
    ] = 2
    max_optimizer_steps: Annotated[
        int | None,
        Option("Stop after so many optimizer steps, to be resumed later.", "N", group="output", at_least=1),
    ] = None
    report_to: Annotated[
        tuple[str, ...], Option("Loggers, such as tensorboard, wandb, none.", "NAME", group="output")
    ] = ("tensorboard",)

    def __post_init__(self) -> None:
        """Check what must hold between the options."""
        super().__post_init__()
        if self.soft and self.tau:
            raise ConfigError("soft labels have no threshold; leave out tau or soft")
        if self.rho is not None and self.strategy is None:
            raise ConfigError("rho says how much to select, and strategy does not say how")
        if bool(self.eval_every) != bool(self.benchmark):
            raise ConfigError("eval-every and benchmark go together: name both or neither")
        if self.lora_alpha is not None and not self.lora_rank:
            raise ConfigError("lora-alpha scales adapters, and lora-rank says that there are none")

    @property
    def image_settings(self) -> dict[str, int]:
        """The settings of images that were given, by the family's names."""
        names = ("min_pixels", "max_pixels", "max_patches")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

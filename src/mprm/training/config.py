"""The options of ``mprm train``; apart from its code, so that the command line's help need not load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.config import (
    MAX_LENGTH,
    NEGATIVE,
    POSITIVE,
    Alpha,
    Columns,
    CorpusOptions,
    ImageRoot,
    PromptLayout,
    Stratify,
    Tau,
    compute,
    evaluation,
    labels as of_labels,
    output,
    selection,
    strategy_names,
    training,
)
from mprm.errors import ConfigError

LabelScheme = Literal["hard", "soft", "monotone", "monotone-soft", "posterior", "scan"]
"""`mprm.training.objective.LABELS` says what each is."""
LossName = Literal["cross-entropy", "beta-binomial", "ranking"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(CorpusOptions):
    """Everything that decides what a training run makes."""

    model: Annotated[str, training("Vision-language or language model to start from.", "DIR|ORG/NAME")]
    out: Annotated[str, output("Folder of the run; at the end it holds the model.", "DIR")]
    image_root: ImageRoot = None
    tau: Tau = 0.0
    labels: Annotated[
        LabelScheme, of_labels("Targets made of the Monte-Carlo scores; see docs/training.md.", "SCHEME")
    ] = "hard"
    prior: Annotated[
        tuple[float, ...],
        of_labels("posterior: a, b of the Beta prior; default: fitted to the rollouts.", above=0, at_most=1e4),
    ] = ()
    reliable: Annotated[float, of_labels("posterior: success rate from which a step is right.", above=0, below=1)] = (
        0.5
    )
    loss: Annotated[LossName, of_labels("How scores are compared with the targets.")] = "cross-entropy"
    negative_weight: Annotated[
        float, of_labels("cross-entropy: how often a negative step counts.", above=0, at_most=1e6)
    ] = 1.0
    zeta: Annotated[float, of_labels("ranking: margin between right and wrong steps.", at_least=0, at_most=100)] = 4.0
    positive: Annotated[str, of_labels("Token of a correct step.", "TOKEN")] = POSITIVE
    negative: Annotated[str, of_labels("Token of an incorrect step.", "TOKEN")] = NEGATIVE
    strategy: Annotated[
        str | None, selection("Select a subset first, by this strategy.", "NAME", choices=strategy_names)
    ] = None
    rho: Annotated[float | None, selection("Fraction kept of each source. (default: 0.1)", above=0, at_most=1)] = None
    alpha: Alpha = 0.05
    stratify: Stratify = None
    columns: Columns = None
    select_seed: Annotated[int, selection("Seed of the selection.", at_least=0)] = 0
    learning_rate: Annotated[float, training("Peak learning rate.", at_least=0)] = 1e-5
    beta1: Annotated[float, training("AdamW's beta1.", at_least=0, below=1)] = 0.9
    beta2: Annotated[float, training("AdamW's beta2.", at_least=0, below=1)] = 0.999
    epsilon: Annotated[float, training("AdamW's epsilon.", above=0)] = 1e-8
    weight_decay: Annotated[float, training("Weight decay.", at_least=0)] = 0.05
    warmup: Annotated[float, training("Share of warm-up steps, before a cosine to 0.", at_least=0, below=1)] = 0.05
    max_grad_norm: Annotated[float, training("Norm to clip gradients to; 0 = never.", at_least=0)] = 1.0
    batch_size: Annotated[int, training("Rollouts in an optimizer step, over all devices.", at_least=1)] = 512
    epochs: Annotated[int, training("Passes over the data.", at_least=1)] = 1
    max_length: Annotated[int, training("Tokens that a rollout is truncated to.", at_least=1)] = MAX_LENGTH
    prompt_layout: Annotated[
        PromptLayout,
        training("user: all in the user's turn; paper: as its code; chat: steps in the assistant's turn."),
    ] = "user"
    seed: Annotated[int, training("Random seed.", at_least=0, below=2**32)] = 0
    lora_rank: Annotated[int, training("Rank of LoRA adapters; 0 = train all weights.", at_least=0)] = 0
    lora_alpha: Annotated[int | None, training("Scale of the adapters. (default: twice the rank)")] = None
    min_pixels: Annotated[int | None, training("Qwen2.5-VL: fewest image pixels. (default: 784)", at_least=1)] = None
    max_pixels: Annotated[int | None, training("Qwen2.5-VL: most image pixels. (default: 200704)", at_least=1)] = None
    max_patches: Annotated[int | None, training("InternVL: most tiles a question. (default: 6)", at_least=1)] = None
    benchmark: Annotated[tuple[str, ...], evaluation("Labelled steps to score during training.", "FILE")] = ()
    benchmark_root: Annotated[str | None, evaluation("Folder of its images; else the image root.", "DIR")] = None
    eval_every: Annotated[int, evaluation("Optimizer steps between scorings of it.", at_least=0)] = 0
    per_device: Annotated[int, compute("Mean rollouts in a micro-batch; the result is the same.", at_least=1)] = 8
    pack: Annotated[
        Literal["tree", "none"],
        compute("tree: no padding, one prompt for the rollouts of a problem; none: padded. The result is the same."),
    ] = "tree"
    precision: Annotated[
        Literal["auto", "bf16", "float32", "pure-bf16"],
        compute("bf16 keeps float32 weights; pure-bf16 halves memory and loses small changes."),
    ] = "auto"
    sharding: Annotated[Literal["none", "fsdp", "zero3"], compute("Shard model and optimizer over devices.")] = "none"
    gradient_checkpointing: Annotated[
        bool, compute("Keep activations instead of recomputing them in backward: faster, more memory.")
    ] = True
    liger: Annotated[bool, compute("Do without liger-kernel's faster layers, where it is installed.")] = True
    attention: Annotated[str | None, compute("Attention implementation, by transformers' name.", "NAME")] = None
    dataloader_workers: Annotated[int, compute("Processes a device that load images.", at_least=0)] = 4
    device: Annotated[Literal["auto", "cpu"], compute("Where to train; CUDA_VISIBLE_DEVICES picks a GPU.")] = "auto"
    save_every: Annotated[int, output("Optimizer steps between checkpoints; 0 = by time alone.", at_least=0)] = 100
    save_every_min: Annotated[
        float, output("Minutes after which a checkpoint is due anyway; 0 = never.", "MINUTES", at_least=0)
    ] = 15.0
    save_total_limit: Annotated[int, output("Checkpoints kept besides the model.", at_least=1)] = 2
    max_optimizer_steps: Annotated[
        int | None, output("Stop after so many optimizer steps, to be resumed later.", at_least=1)
    ] = None
    report_to: Annotated[tuple[str, ...], output("Loggers, as tensorboard, wandb, none.", "NAME")] = ("tensorboard",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_objective()
        for name, default in {"rho": None, "stratify": None, "columns": None, "alpha": 0.05}.items():
            if getattr(self, name) != default and self.strategy is None:
                raise ConfigError(f"{name} is for a selection; name its strategy too, such as bis")
        if bool(self.eval_every) != bool(self.benchmark):
            raise ConfigError("eval-every and benchmark go together: name both or neither")
        if self.lora_alpha is not None and not self.lora_rank:
            raise ConfigError("lora-alpha scales adapters, and lora-rank says that there are none")

    def _check_objective(self) -> None:
        if self.loss == "beta-binomial" and self.labels != "hard":
            raise ConfigError("loss beta-binomial takes the counts themselves; leave out labels")
        if self.loss == "ranking" and self.labels not in ("hard", "monotone"):
            raise ConfigError(f"loss ranking needs two classes, and labels {self.labels} are between them")
        if self.tau and (self.loss == "beta-binomial" or self.labels not in ("hard", "monotone", "scan")):
            what = "loss beta-binomial has" if self.loss == "beta-binomial" else f"labels {self.labels} have"
            raise ConfigError(f"{what} no threshold; leave out tau")
        if self.loss == "beta-binomial" and self.lora_rank:
            raise ConfigError(
                "loss beta-binomial reads a row of the head that LoRA does not train; leave out lora_rank"
            )
        if self.reliable != 0.5 and self.labels != "posterior":
            raise ConfigError("reliable is for labels posterior")
        if self.zeta != 4.0 and self.loss != "ranking":
            raise ConfigError("zeta is for loss ranking")
        if self.negative_weight != 1 and self.loss != "cross-entropy":
            raise ConfigError("negative_weight is for loss cross-entropy")
        if self.prior and (self.labels != "posterior" or len(self.prior) != 2):
            raise ConfigError("prior takes two numbers, a and b, for labels posterior")

    @property
    def image_settings(self) -> dict[str, int]:
        names = ("min_pixels", "max_pixels", "max_patches")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

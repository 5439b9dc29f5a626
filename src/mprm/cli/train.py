"""``mprm train``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.config import Alpha, Config, Force, InputFormat, Json, Option, Paths, SkipBad, Tau, TextOnly


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCommand(Config):
    """Train a process reward model on annotated rollouts, with the paper's hyperparameters by default.

    Several GPUs: torchrun --nproc-per-node 4 -m mprm train …, or accelerate launch -m mprm train ….
    """

    paths: Paths
    model: Annotated[
        str, Option("Checkpoint to begin with: Qwen2.5-VL, InternVL (native), or a causal language model.", "DIR")
    ]
    out: Annotated[str, Option("Folder of the run; the trained model lies in it at the end.", "DIR")]
    image_root: Annotated[str | None, Option("Folder that image paths are relative to.", "DIR")] = None
    tau: Tau = 0.0
    soft: Annotated[bool, Option("Teach the Monte-Carlo scores themselves instead of hard labels.")] = False
    select: Annotated[
        Literal["bis", "random", "low-mc", "mixed", "reliable"] | None,
        Option("Choose a subset first, by this strategy."),
    ] = None
    rho: Annotated[
        float | None, Option("Fraction chosen from each source, with --select. (default: 0.1)", "NUMBER")
    ] = None
    alpha: Alpha = 0.05
    select_seed: Annotated[int, Option("Seed of the choice.", "N")] = 0
    learning_rate: Annotated[float, Option("Highest learning rate of AdamW.", "NUMBER")] = 1e-5
    beta1: Annotated[float, Option("Decay of AdamW's first moment.", "NUMBER")] = 0.9
    beta2: Annotated[float, Option("Decay of AdamW's second moment.", "NUMBER")] = 0.999
    epsilon: Annotated[float, Option("AdamW's epsilon.", "NUMBER")] = 1e-8
    weight_decay: Annotated[float, Option("Weight decay.", "NUMBER")] = 0.05
    warmup: Annotated[float, Option("Share of the updates in which the learning rate rises.", "NUMBER")] = 0.05
    max_grad_norm: Annotated[float, Option("Gradients are cut to this norm; 0 for never.", "NUMBER")] = 1.0
    batch_size: Annotated[int, Option("Rollouts in an update, over all devices.", "N")] = 512
    per_device: Annotated[
        int, Option("Rollouts a device takes at once, on average; does not change the result.", "N")
    ] = 2
    pack: Annotated[
        Literal["tree", "none"],
        Option("tree: no padding, one prompt for the rollouts of a problem; none: padded. The result is the same."),
    ] = "tree"
    epochs: Annotated[int, Option("Passes over the data.", "N")] = 1
    max_length: Annotated[int, Option("Tokens of a rollout; longer ones are cut off at the end.", "N")] = 8192
    seed: Annotated[int, Option("Order of the data and whatever else is drawn.", "N")] = 0
    precision: Annotated[
        Literal["auto", "bf16", "float32", "pure-bf16"],
        Option("bf16 keeps float32 weights; pure-bf16 halves the memory and loses small updates."),
    ] = "auto"
    sharding: Annotated[Literal["none", "fsdp", "zero3"], Option("Split weights and optimizer over the devices.")] = (
        "none"
    )
    no_gradient_checkpointing: Annotated[bool, Option("Keep all activations: faster, more memory.")] = False
    lora_rank: Annotated[int, Option("Train adapters of this rank instead of all weights; 0 for none.", "N")] = 0
    lora_alpha: Annotated[int | None, Option("Scale of the adapters; twice the rank by default.", "N")] = None
    attention: Annotated[str | None, Option("Attention implementation, by transformers' name.", "NAME")] = None
    min_pixels: Annotated[int | None, Option("Qwen2.5-VL: fewest pixels of an image. (default: 784)", "N")] = None
    max_pixels: Annotated[int | None, Option("Qwen2.5-VL: most pixels of an image. (default: 200704)", "N")] = None
    max_patches: Annotated[int | None, Option("InternVL: most tiles of an image. (default: 6)", "N")] = None
    positive: Annotated[str, Option("Token that stands for a correct step.", "TOKEN")] = "Yes"
    negative: Annotated[str, Option("Token that stands for an incorrect step.", "TOKEN")] = "No"
    benchmark: Annotated[tuple[str, ...], Option("Labelled steps to score during training.", "FILE")] = ()
    benchmark_root: Annotated[
        str | None, Option("Folder of the benchmark's images; the image root by default.", "DIR")
    ] = None
    eval_every: Annotated[int, Option("Score the benchmark every so many updates.", "N")] = 0
    save_every: Annotated[int, Option("Checkpoint every so many updates; 0 for only the end.", "N")] = 100
    keep: Annotated[int, Option("Checkpoints kept besides the final model.", "N")] = 2
    max_updates: Annotated[int | None, Option("Stop after so many updates; go on later with --resume.", "N")] = None
    workers: Annotated[int, Option("Processes a device that prepare images and text.", "N")] = 4
    report_to: Annotated[tuple[str, ...], Option("Loggers, such as tensorboard, wandb, none.", "NAME")] = (
        "tensorboard",
    )
    device: Annotated[Literal["auto", "cpu"], Option("Where to train.")] = "auto"
    resume: Annotated[bool, Option("Go on from the last whole checkpoint.")] = False
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False
    json: Json = False


OF_THE_COMMAND = {"paths", "resume", "force", "json", "no_gradient_checkpointing"}
OF_IMAGES = ("min_pixels", "max_pixels", "max_patches")


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.train`, print."""
    options = parsed(
        TrainCommand,
        arguments,
        command="train",
        example="mprm train bis10.jsonl --model Qwen2.5-VL-7B-Instruct --image-root images --out runs/bis10",
    )
    from mprm.cli.progress import counting
    from mprm.training.config import TrainConfig
    from mprm.training.train import leave_group, train

    values = {field.name: getattr(options, field.name) for field in fields(options)}
    settings = {name: value for name in OF_IMAGES if (value := values.pop(name)) is not None}
    config = TrainConfig(
        **{name: value for name, value in values.items() if name not in OF_THE_COMMAND},
        image_settings=settings,
        gradient_checkpointing=not options.no_gradient_checkpointing,
    )
    with counting("preparing rollouts", None) as on_rollouts:
        trained = train(options.paths, config, resume=options.resume, force=options.force, on_rollouts=on_rollouts)
    leave_group()
    if not trained.is_first:
        return 0
    if options.json:
        print(as_json(trained))
        return 0
    data = trained.data
    n_dropped = sum(sum(kinds.values()) for kinds in data["dropped"].values())
    print(f"{data['rollouts']:,} rollouts with {data['steps']:,} steps, {data['positive_steps']:,} of them positive.")
    if data["steps_lost_to_truncation"]:
        print(
            f"{data['steps_lost_to_truncation']:,} steps of {data['rollouts_truncated']:,} rollouts were cut off"
            f" at {config.max_length:,} tokens."
        )
    if n_dropped:
        print(f"{n_dropped:,} rollouts dropped, each with its reason in {trained.out}/data/dropped.jsonl.")
    if trained.loss is None:
        print(f"The run was finished already; the model is in {trained.out}.")
        return 0
    end = f"the model is in {trained.out}" if trained.is_finished else "go on with --resume"
    since = " since it was resumed" if options.resume else ""
    print(f"{trained.n_updates:,} updates done, mean loss{since} {trained.loss:.4f}; {end}.")
    return 0

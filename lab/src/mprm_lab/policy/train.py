"""Train a small policy on the world's solutions, so that it solves most problems and makes errors of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Annotated, Any

from mprm import models
from mprm.config import Config, Option
from mprm.models import Backbone, resolve_device
from mprm_lab.policy.dataset import BATCHES_PER_POOL, TASKS, Batch, PolicyDataset

REPLAYED = 1
"""Older batches for each new one, while new ones come; the first ones are replayed at once."""
PATCH_LOSS_WEIGHT = 0.5
"""Weight of the loss of patch words before the language model."""


@dataclass(frozen=True, kw_only=True)
class PolicyTrainConfig(Config):
    """How long and how fast."""

    n_optimizer_steps: Annotated[int, Option("Optimizer steps.", at_least=1)] = 4000
    n_pools: Annotated[int, Option("Pools of different problems; all batches are replayed.", at_least=1)] = 120
    multitask: Annotated[float, Option("Share of the steps with all tasks.", at_least=0, at_most=1)] = 0.5
    """After this share of the optimizer steps, only solutions are trained on."""
    batch_size: Annotated[int, Option("Examples in a batch.", at_least=1)] = 128
    learning_rate: float = 1e-3
    warmup: Annotated[float, Option("Share of the steps that warm up.", at_least=0, at_most=1)] = 0.02
    weight_decay: float = 0.05
    seed: int = 0
    """Different seeds see different problems."""
    dataloader_workers: int = 5
    device: str = "auto"


def train_policy(
    policy: Backbone, config: PolicyTrainConfig, *, on_step: Callable[[int, float], None] | None = None
) -> list[float]:
    """Loss of each optimizer step; trains all parameters of the policy, vision tower included.

    ``on_step`` is called with the number of each step, from 0, and every 50th time with its loss, else with nan.
    """
    import torch

    device = resolve_device(config.device)
    model = policy.model.to(device).train()
    models.use_window_attention(policy.family.vision_tower(model))
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, config))
    losses = []
    for step, (pictures, batch) in enumerate(_batches(policy, config, device)):
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=device.startswith("cuda")):
            loss = _loss(policy, pictures, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if on_step is not None:
            on_step(step, float(losses[-1]) if step % 50 == 0 else math.nan)
    model.eval()
    return [float(loss) for loss in losses]


def _loss(policy: Backbone, pictures: Any, batch: Batch) -> Any:
    """Cross-entropy of the labels, and of the patch words by the same head before the language model."""
    import torch

    projected = list[Any]()
    hook = policy.family.projector(policy.model).register_forward_hook(lambda *call: projected.append(call[-1]))
    with hook:
        loss = policy.model(**_inputs(pictures, batch)).loss
    logits = policy.model.lm_head(policy.model.model.language_model.norm(projected[0])).float()
    patch_loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch.patch_ids.flatten())
    return loss + PATCH_LOSS_WEIGHT * patch_loss


def _inputs(pictures: Any, batch: Batch) -> dict[str, Any]:
    """A batch with its pictures, one after the other along the first dimension."""
    return {**batch.inputs, "pixel_values": pictures[batch.pictures].flatten(0, 1)}


def _rate_factor(step: int, config: PolicyTrainConfig) -> float:
    """Linear warm-up, then a cosine to zero."""
    n = config.n_optimizer_steps
    warmup = max(1, math.ceil(config.warmup * n))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, n - warmup)))


def _batches(policy: Backbone, config: PolicyTrainConfig, device: str) -> Iterator[tuple[Any, Batch]]:
    """Pictures and a batch about them for each optimizer step."""
    from torch.utils.data import DataLoader

    n_multitask = config.multitask * config.n_optimizer_steps
    n_needed = math.ceil(n_multitask / ((1 + REPLAYED) * BATCHES_PER_POOL * len(TASKS)))
    n_pools = max(1, min(n_needed, config.n_pools))
    dataset = PolicyDataset(policy, n_pools, batch_size=config.batch_size, seed=config.seed)
    loader: Any = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=BATCHES_PER_POOL * config.batch_size,
        collate_fn=dataset.collate_pool,
        num_workers=config.dataloader_workers,
    )
    return islice(_replayed(loader, config, device), config.n_optimizer_steps)


def _replayed(
    pools: Iterable[tuple[Any, list[Batch]]], config: PolicyTrainConfig, device: str
) -> Iterator[tuple[Any, Batch]]:
    """Batches with the pictures of their pools, without end.

    All stay on the device, as making one takes longer than training on it: while new pools come, older batches are
    replayed among theirs.
    """
    import torch

    order, kept, n = Random(config.seed), list[tuple[Any, Batch]](), 0
    for pixels, batches in pools:
        # half the size on a GPU, as the model takes them there
        pictures = pixels.to(device, dtype=torch.bfloat16 if device.startswith("cuda") else pixels.dtype)
        new = [(pictures, batch.to(device)) for batch in batches]
        coming = [*new, *order.choices(kept or new, k=REPLAYED * len(new))]
        kept += new
        yield from order.sample(coming, len(coming))
        n += len(coming)
    solutions = [entry for entry in kept if entry[1].is_solving]
    end = max(n, math.ceil(config.multitask * config.n_optimizer_steps))
    while True:
        coming = kept if n < end else solutions
        for entry in order.sample(coming, len(coming)):
            yield entry
            n += 1
            if n == end:
                break

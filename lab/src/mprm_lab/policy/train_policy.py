"""Train a small policy on the world's solutions, so that it solves most problems and errs by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from mprm.errors import ConfigError
from mprm.models import Backbone, resolve_device, use_window_attention
from mprm_lab.policy.lessons import LESSONS, POOL, Batch, Lessons

AGAIN = 1
"""Older batches for each new one, while new ones come; the first ones come again at once."""
NAMING = 0.5
"""Weight of the loss of what a picture's tokens name before the language model has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraining:
    """How long and how fast."""

    n_updates: int = 4000
    n_pools: int = 120
    """Of different problems, four batches of each lesson; all batches come again in another order."""
    lessons: float = 0.5
    """After this share of the updates, solutions alone come again."""
    batch_size: int = 128
    learning_rate: float = 1e-3
    warmup: float = 0.02
    weight_decay: float = 0.05
    seed: int = 0
    """Different seeds see different problems."""
    workers: int = 5
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("n_updates", "n_pools", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lessons", "warmup"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


def train_policy(
    policy: Backbone, how: PolicyTraining, *, on_update: Callable[[int, float], None] | None = None
) -> list[float]:
    """Train all weights of the policy, vision tower included; returns the loss of each update."""
    import torch

    device = resolve_device(how.device)
    model = policy.model.to(device).train()
    use_window_attention(policy.family.vision_tower(model))
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": how.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=how.learning_rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: _share_of_rate(update, how))
    losses = []
    for number, (pictures, batch) in enumerate(_batches(policy, how, device)):
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=device.startswith("cuda")):
            loss = _loss(policy, pictures, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if on_update is not None:
            on_update(number, float(losses[-1]) if number % 50 == 0 else math.nan)
    model.eval()
    return [float(loss) for loss in losses]


def _loss(policy: Backbone, pictures: Any, batch: Batch) -> Any:
    """Of the lesson's words, and of what the picture's tokens name, by the head that names words."""
    import torch

    seen = list[Any]()
    watch = policy.family.projector(policy.model).register_forward_hook(lambda *called: seen.append(called[-1]))
    with watch:
        told = policy.model(**_inputs(pictures, batch)).loss
    named = policy.model.lm_head(policy.model.model.language_model.norm(seen[0]))
    return told + NAMING * torch.nn.functional.cross_entropy(named.float().flatten(0, -2), batch.names.flatten())


def _share_of_rate(update: int, how: PolicyTraining) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = max(1, math.ceil(how.warmup * how.n_updates))
    if update < warm:
        return (update + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, how.n_updates - warm)))


def _batches(policy: Backbone, how: PolicyTraining, device: str) -> Iterator[tuple[Any, Batch]]:
    """What is learnt from, update by update: pictures, and a batch about them."""
    from torch.utils.data import DataLoader

    n_asked = how.lessons * how.n_updates / ((1 + AGAIN) * POOL * len(LESSONS))
    n_pools = max(1, min(math.ceil(n_asked), how.n_pools))
    lessons = Lessons(policy, n_pools, batch_size=how.batch_size, seed=how.seed)
    loader: Any = DataLoader(
        lessons,  # type: ignore[arg-type]
        batch_size=POOL * how.batch_size,
        collate_fn=lessons.pool,
        num_workers=how.workers,
    )
    return islice(_entries(loader, how, device), how.n_updates)


def _entries(
    pools: Iterable[tuple[Any, list[Batch]]], how: PolicyTraining, device: str
) -> Iterator[tuple[Any, Batch]]:
    """Batches with the pictures of their pools, without end.

    All stay on the device, as making one takes longer than learning it: while new pools come, older batches come
    again among theirs.
    """
    import torch

    order, kept, n = Random(how.seed), list[tuple[Any, Batch]](), 0
    for pixels, batches in pools:
        # in half the size on a GPU, as the model takes them there
        pictures = pixels.to(device, dtype=torch.bfloat16 if device.startswith("cuda") else pixels.dtype)
        new = [(pictures, batch.on(device)) for batch in batches]
        coming = [*new, *order.choices(kept or new, k=AGAIN * len(new))]
        kept += new
        yield from order.sample(coming, len(coming))
        n += len(coming)
    solutions = [entry for entry in kept if entry[1].is_solving]
    end = max(n, math.ceil(how.lessons * how.n_updates))
    while True:
        coming = kept if n < end else solutions
        for entry in order.sample(coming, len(coming)):
            yield entry
            n += 1
            if n == end:
                break


def _inputs(pictures: Any, batch: Batch) -> dict[str, Any]:
    """A batch with its pictures, one after the other along the first dimension."""
    return {**batch.inputs, "pixel_values": pictures[batch.pictures].flatten(0, 1)}

"""Train a small policy on the world's solutions, so that it solves most problems and errs by itself."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mprm.annotation.questions.prompt import prompt_of
from mprm.annotation.split_steps import JOINT
from mprm.backbones.chat import plain_text
from mprm.backbones.load import Backbone, resolve_device
from mprm.errors import ConfigError
from mprm.lab.world import SOURCES, SPLITS, as_question, draw, problem, solution

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraining:
    """How long and how fast; every problem is seen once."""

    n_updates: int = 3000
    batch_size: int = 256
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    seed: int = 0
    """Different seeds see different problems."""
    workers: int = 8
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("n_updates", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


class Solutions:
    """A torch data set of solved problems: the sources in turn, each with seeds of its own."""

    def __init__(self, policy: Backbone, n: int, *, seed: int) -> None:
        # all but the model: data workers need no weights
        self._encoder = Backbone(
            policy.family, SimpleNamespace(device="cpu"), policy.tokenizer, policy.image_processor
        )
        self._n = n
        self._first = SPLITS["train"].start + seed * 10_000_000
        if seed < 0 or self._first + n // len(SOURCES) >= SPLITS["train"].stop:
            raise ConfigError(f"seed {seed} leaves the problems that policies are trained on; expected 0 to 9")
        self._sources = list(SOURCES)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        one = problem(self._sources[index % len(self._sources)], self._first + index // len(self._sources))
        picture = Image.open(io.BytesIO(draw(one))).convert("RGB")
        told = JOINT.join(solution(one))
        inputs = self._encoder.encode_chat(prompt_of(as_question(one)), [picture], begun=told)
        n_told = len(plain_text(self._encoder.tokenizer).encode(told))
        ids = [*inputs["input_ids"][0].tolist(), self._encoder.tokenizer.eos_token_id]
        vision = {name: inputs[name] for name in ("pixel_values", "image_grid_thw") if name in inputs}
        return {"ids": ids, "n_told": n_told + 1, "vision": vision}

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch, padded on the right; the loss is taken of the solution alone."""
        import torch

        width = max(len(row["ids"]) for row in rows)
        input_ids = torch.full((len(rows), width), self._encoder.tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), IGNORED)
        for place, row in enumerate(rows):
            ids, n_told = torch.tensor(row["ids"]), row["n_told"]
            input_ids[place, : len(ids)] = ids
            labels[place, len(ids) - n_told : len(ids)] = ids[-n_told:]
        inputs: dict[str, Any] = {"input_ids": input_ids, "labels": labels}
        for name in rows[0]["vision"]:
            inputs[name] = torch.cat([row["vision"][name] for row in rows])
        return inputs | self._encoder.family.batch_inputs(self._encoder.tokenizer, input_ids)


def train_policy(
    policy: Backbone, how: PolicyTraining, *, on_update: Callable[[int, float], None] | None = None
) -> list[float]:
    """Train all weights of the policy, vision tower included; returns the loss of each update."""
    import torch

    device = resolve_device(how.device)
    model = policy.model.to(device).train()
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": how.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=how.learning_rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: _share_of_rate(update, how))
    losses = []
    for number, batch in enumerate(_batches(policy, how)):
        inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=device.startswith("cuda")):
            loss = model(**inputs).loss
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


def _share_of_rate(update: int, how: PolicyTraining) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = max(1, math.ceil(how.warmup * how.n_updates))
    if update < warm:
        return (update + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, how.n_updates - warm)))


def _batches(policy: Backbone, how: PolicyTraining) -> Iterator[dict[str, Any]]:
    from torch.utils.data import DataLoader

    solutions = Solutions(policy, how.n_updates * how.batch_size, seed=how.seed)
    loader: Any = DataLoader(
        solutions,  # type: ignore[arg-type]
        batch_size=how.batch_size,
        collate_fn=solutions.collate,
        num_workers=how.workers,
        prefetch_factor=4 if how.workers else None,
        pin_memory=resolve_device(how.device).startswith("cuda"),
    )
    yield from loader

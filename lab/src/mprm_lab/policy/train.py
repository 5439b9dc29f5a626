"""Train a small policy: first to solve problems, then to check solutions too.

A deep network spreads the prediction of the next number over all its layers, and none is left to compare it with
the number that is written. So the language-model loss is taken halfway up as well: the upper half sees what is
written and what was to be expected. While the policy learns to check, a layer in between learns to tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Annotated, Any

from mprm import models
from mprm.config import Config, Option
from mprm.data import Solution
from mprm.models import Backbone, resolve_device
from mprm_lab.policy.dataset import IGNORE_INDEX, Batch, PolicyDataset, Pool, image_features, pools_of

REPLAYED = 1
"""Older batches for each new one, while new ones come; the first ones are replayed at once."""
PROBLEMS_PER_POOL = 1024
PATCH_LOSS_WEIGHT = 0.5
"""Weight of the loss of patch words before the language model."""
SURPRISE, SURPRISE_WEIGHT = 0.05, 4.0
"""A token of lower probability halfway up is surprising; how much more such a token counts than another."""


@dataclass(frozen=True, kw_only=True)
class PolicyTrainConfig(Config):
    """How long and how fast."""

    n_optimizer_steps: Annotated[int, Option("Optimizer steps.", at_least=1)] = 6000
    n_problems: Annotated[int, Option("Different problems; all batches are replayed.", at_least=1)] = 61_440
    tokens_per_batch: Annotated[int, Option("Tokens in a batch, padding counted.", at_least=1)] = 26_880
    learning_rate: float = 1e-3
    last_rate: Annotated[float, Option("Share of the rate at the end.", at_least=0, at_most=1)] = 0.3
    warmup: Annotated[int, Option("Optimizer steps that warm up.", at_least=1)] = 150
    weight_decay: float = 0.05
    seed: int = 0
    """Different seeds see different problems."""
    dataloader_workers: int = 5
    device: str = "auto"


def train_policy(
    policy: Backbone,
    config: PolicyTrainConfig,
    *,
    rollouts: Sequence[Solution] = (),
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Loss of each optimizer step; trains all parameters of the policy, vision tower included.

    With labelled ``rollouts`` it learns to check them. ``on_step`` is called with the number of each step, from 0,
    and every 50th time with its loss, else with nan.
    """
    import torch

    device = resolve_device(config.device)
    model = policy.model.to(device).train()
    models.use_window_attention(policy.family.vision_tower(model))
    torch.manual_seed(config.seed)
    surprise_head = torch.nn.Linear(model.lm_head.in_features, 1).to(device)  # not part of the policy
    weights = [*model.parameters(), *surprise_head.parameters()]
    groups = [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, config))
    for weight in weights:
        weight.grad = torch.zeros_like(weight)  # for good: captured graphs add to these very tensors
    learn = LanguageStep(policy, surprise_head)
    dataset = PolicyDataset(policy, config.n_problems, seed=config.seed, rollouts=rollouts)
    losses = []
    for step, (pool, batch) in enumerate(islice(_batches(dataset, config, device), config.n_optimizer_steps)):
        with _autocast(device):
            features = image_features(model, pool.pictures[batch.pictures], pool.grid)
        loss, gradient = learn(batch, features.detach())
        features.backward(gradient.to(features.dtype))
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        schedule.step()
        losses.append(loss)
        if on_step is not None:
            on_step(step, float(loss) if step % 50 == 0 else math.nan)
    model.eval()
    return [float(loss) for loss in losses]


def _autocast(device: str) -> Any:
    import torch

    # weights are cast anew each time: a captured graph must not take them from a cache
    return torch.autocast(
        device.split(":")[0], torch.bfloat16, enabled=device.startswith("cuda"), cache_enabled=False
    )


def layer_states(policy: Backbone, batch: Batch, features: Any) -> list[Any]:
    """Hidden states after each layer of the language model, shape (B, T, H)."""
    language = policy.model.model.language_model
    embedded = language.embed_tokens(batch.input_ids)
    flat = embedded.flatten(0, 1).index_copy(0, batch.image_positions, features.to(embedded.dtype))
    hidden, states = flat.view_as(embedded), []
    rope = language.rotary_emb(hidden, batch.position_ids)
    for layer in language.layers:  # its own forward would look at the positions, and a graph cannot wait for that
        output = layer(hidden, attention_mask=None, position_ids=batch.position_ids, position_embeddings=rope)
        hidden = output[0] if isinstance(output, tuple) else output
        states.append(hidden)
    return states


def policy_loss(policy: Backbone, batch: Batch, features: Any, surprise_head: Any) -> Any:
    """The sum of all losses of a batch, each a mean over the tokens that it counts.

    Cross-entropy of the targets at the last layer and halfway up, of the verdicts at the last layer, and of the patch
    words before the first; and at three quarters of the height, binary cross-entropy of which tokens of a checked
    step are expected halfway up.
    """
    import torch
    from torch.nn import functional as F

    norm, head = policy.model.model.language_model.norm, policy.model.lm_head
    states = layer_states(policy, batch, features)
    n_layers = len(states)
    early, last = (head(norm(states[n - 1])).float() for n in (n_layers // 2, n_layers))
    is_verdict = batch.verdicts != IGNORE_INDEX
    words = torch.where(is_verdict, batch.verdicts, batch.targets)
    at_last = F.cross_entropy(last.flatten(0, 1), words.flatten(), reduction="none").view_as(words)
    at_early = F.cross_entropy(early.flatten(0, 1), batch.targets.flatten(), reduction="none").view_as(words)
    is_target = batch.targets != IGNORE_INDEX
    loss = PATCH_LOSS_WEIGHT * F.cross_entropy(head(norm(features)).float(), batch.patch_ids)
    loss = loss + _mean(at_last + at_early, is_target) + _mean(at_last, is_verdict)
    following = batch.input_ids[:, 1:]
    probability = early.detach()[:, :-1].softmax(-1).gather(-1, following[..., None])[..., 0]
    is_expected = (probability > SURPRISE).float()
    state = states[3 * n_layers // 4 - 1][:, 1:]
    flags = surprise_head(F.rms_norm(state, state.shape[-1:]))[..., 0].float()
    flag_loss = F.binary_cross_entropy_with_logits(flags, is_expected, reduction="none")
    weight = batch.is_checked[:, 1:] * torch.where(is_expected > 0, 1.0, SURPRISE_WEIGHT)
    return loss + _mean(flag_loss, weight)


def _mean(values: Any, weight: Any) -> Any:
    """Weighted mean; 0 without any weight."""
    return (values * weight).sum() / weight.sum().clamp(min=1)


class LanguageStep:
    """Loss of a batch and the gradient of its image features; gradients of weights are added to their ``grad``.

    On a GPU, layers are compiled, and forward and backward pass are a CUDA graph for each shape of batch: 10 ms
    instead of 46 for 12 layers of width 192 on an H200, as starting small kernels takes longer than running them.
    """

    def __init__(self, policy: Backbone, surprise_head: Any) -> None:
        self._policy, self._surprise_head = policy, surprise_head
        self._graphs: dict[Any, tuple[Any, Batch, Any, Any]] = {}
        if surprise_head.weight.is_cuda:
            for layer in policy.model.model.language_model.layers:
                layer.compile(dynamic=True)

    def __call__(self, batch: Batch, features: Any) -> tuple[Any, Any]:
        import torch

        if not features.is_cuda:
            leaf = features.requires_grad_()
            return self._run(batch, leaf), leaf.grad
        shape = (batch.input_ids.shape, len(features))
        if shape not in self._graphs:
            self._graphs[shape] = self._captured(batch, features)
        graph, static, leaf, loss = self._graphs[shape]
        names = Batch.__dataclass_fields__
        torch._foreach_copy_([getattr(static, name) for name in names], [getattr(batch, name) for name in names])
        leaf.detach().copy_(features)
        leaf.grad.zero_()
        graph.replay()
        return loss.clone(), leaf.grad

    def _run(self, batch: Batch, leaf: Any) -> Any:
        with _autocast(leaf.device.type):
            loss = policy_loss(self._policy, batch, leaf, self._surprise_head)
        loss.backward()
        return loss.detach()

    def _captured(self, batch: Batch, features: Any) -> tuple[Any, Batch, Any, Any]:
        import torch

        static = batch.map(lambda tensor: tensor.clone())
        leaf = features.detach().clone().requires_grad_()
        leaf.grad = torch.zeros_like(leaf)
        weights = [*self._policy.model.parameters(), *self._surprise_head.parameters()]
        kept = [weight.grad.clone() for weight in weights]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up outside of the capture
            self._run(static, leaf)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((entry[0].pool() for entry in self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            loss = self._run(static, leaf)
        for weight, gradient in zip(weights, kept, strict=True):
            weight.grad.copy_(gradient)
        return graph, static, leaf, loss


def _rate_factor(step: int, config: PolicyTrainConfig) -> float:
    """Linear warm-up, then a cosine to the last rate."""
    n = config.n_optimizer_steps
    warmup = min(config.warmup, n)
    if step < warmup:
        return (step + 1) / warmup
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, n - warmup)))
    return config.last_rate + (1 - config.last_rate) * cosine


def _batches(dataset: PolicyDataset, config: PolicyTrainConfig, device: str) -> Iterator[tuple[Pool, Batch]]:
    """Batches with their pools, without end.

    All stay on the device, as making one takes longer than training on it: while new pools come, older batches are
    replayed among theirs.
    """
    order, kept = Random(config.seed), list[tuple[Pool, Batch]]()
    size = min(PROBLEMS_PER_POOL, len(dataset))
    pools = pools_of(dataset, n_problems=size, tokens=config.tokens_per_batch, workers=config.dataloader_workers)
    for pool in pools:
        moved = pool._replace(pictures=pool.pictures.to(device))
        new = [(moved, batch.map(lambda tensor: tensor.to(device))) for batch in pool.batches]
        coming = [*new, *order.choices(kept or new, k=REPLAYED * len(new))]
        kept += new
        yield from order.sample(coming, len(coming))
    while True:
        yield from order.sample(kept, len(kept))

"""Step probabilities of many chains: in batches of like length, each up to a budget of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.backbones.step_reader import step_probabilities
from mprm.rollouts.chain import Chain

TOKENS_PER_BATCH = 16_384
LOOKAHEAD = 2
"""Batches that are being encoded while one is scored."""


def batches_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of like length, the longest first, each of at most ``budget`` tokens with its padding.

    Examples
    --------
    >>> batches_by_tokens([3, 9, 4, 5], budget=10)
    [[1], [3, 2], [0]]
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if room < 1:
            batches.append([])
            room = max(1, budget // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches


def score_chains(
    model: Any,
    encoder: PromptEncoder,
    chains: Sequence[Chain],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    rank: int = 0,
    world: int = 1,
    on_scored: Callable[[int], None] | None = None,
) -> dict[int, list[float]]:
    """Probability of each step being correct, by the chain's index; nan for steps that truncation cut off.

    With several ranks each scores its share of the batches, and all run the model equally often, as a
    model that is split over them demands.
    """
    measured = [encoder.measure(chain) for chain in chains]
    lost = {index: [math.nan] * item.n_steps for index, item in enumerate(measured) if not item.positions}
    order = [index for index in range(len(chains)) if index not in lost]
    lengths = [len(measured[index].ids) for index in order]
    batches = [[order[place] for place in batch] for batch in batches_by_tokens(lengths, tokens_per_batch)]
    while batches and len(batches) % world:
        batches.append(batches[-1])  # again the shortest: its scores come out the same
    scores = dict(lost) if rank == 0 else {}
    if on_scored is not None and lost:
        on_scored(len(lost))
    was_training = model.training
    model.eval()
    try:
        for batch, encoded in _encoded(batches[rank::world], chains, measured, encoder):
            scores.update(zip(batch, _probabilities(model, encoder, encoded), strict=True))
            if on_scored is not None:
                on_scored(len(batch))
    finally:
        model.train(was_training)
    return scores


def _encoded(
    batches: Sequence[list[int]], chains: Sequence[Chain], measured: Sequence[Encoded], encoder: PromptEncoder
) -> Iterator[tuple[list[int], list[Encoded]]]:
    """Each batch with what its chains show; images of the next ones are decoded meanwhile."""
    with ThreadPoolExecutor(LOOKAHEAD) as pool:

        def submit(batch: list[int]) -> Future[list[Encoded]]:
            return pool.submit(lambda: [encoder.see(chains[index], measured[index]) for index in batch])

        waiting = [submit(batch) for batch in batches[:LOOKAHEAD]]
        for number, batch in enumerate(batches):
            encoded = waiting.pop(0).result()
            if number + LOOKAHEAD < len(batches):
                waiting.append(submit(batches[number + LOOKAHEAD]))
            yield batch, encoded


@torch.no_grad()
def _probabilities(model: Any, encoder: PromptEncoder, batch: Sequence[Encoded]) -> list[list[float]]:
    device = next(model.parameters()).device
    inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in encoder.collate(batch).items()}
    found = step_probabilities(model(**inputs)["logits"]).tolist()
    scores, start = [], 0
    for encoded in batch:
        end = start + len(encoded.positions)
        scores.append(found[start:end] + [math.nan] * encoded.n_lost)
        start = end
    return scores

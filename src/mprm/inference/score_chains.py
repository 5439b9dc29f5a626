"""Step probabilities of many chains, in batches up to a budget of tokens.

Chains of a question are packed behind it, so that question and images are computed once; or, the plain way,
every chain is computed whole, those of like length together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch

from mprm.backbones.pack_prompts import pack_numbers, packed
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
    share_prefixes: bool = False,
    on_scored: Callable[[int], None] | None = None,
) -> dict[int, list[float]]:
    """Probability of each step being correct, by the chain's index; nan for steps that truncation cut off.

    With several ranks each scores its share of the batches, and all run the model equally often, as a
    model that is split over them demands.

    Parameters
    ----------
    tokens_per_batch
        Most tokens of a batch, padding counted; a longer chain is a batch of its own.
    share_prefixes
        Compute what chains of the same images begin with once; see `StepReader.why_no_trees` for models that
        cannot. The scores are the same but for rounding.
    """
    measured = [encoder.measure(chain) for chain in chains]
    lost = {index: [math.nan] * item.n_steps for index, item in enumerate(measured) if not item.positions}
    order = [index for index in range(len(chains)) if index not in lost]
    if share_prefixes:
        numbers = pack_numbers([measured[index] for index in order], tokens_per_batch)
    else:
        numbers = batches_by_tokens([len(measured[index].ids) for index in order], tokens_per_batch)
    batches = [[order[place] for place in batch] for batch in numbers]
    while batches and len(batches) % world:
        batches.append(batches[-1])  # again the last: its scores come out the same
    scores = dict(lost) if rank == 0 else {}
    if on_scored is not None and lost:
        on_scored(len(lost))
    was_training = model.training
    model.eval()
    try:
        for batch, inputs in _collated(
            batches[rank::world], chains, measured, encoder, share_prefixes=share_prefixes
        ):
            found = iter(_probabilities(model, inputs))
            for index in batch:
                encoded = measured[index]
                scores[index] = [*islice(found, len(encoded.positions)), *[math.nan] * encoded.n_lost]
            if on_scored is not None:
                on_scored(len(batch))
    finally:
        model.train(was_training)
    return scores


def _collated(
    batches: Sequence[list[int]],
    chains: Sequence[Chain],
    measured: Sequence[Encoded],
    encoder: PromptEncoder,
    *,
    share_prefixes: bool,
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Each batch with the model's inputs; images of the next ones are decoded meanwhile."""

    def collate(batch: list[int]) -> dict[str, Any]:
        if not share_prefixes:
            return encoder.collate([encoder.see(chains[index], measured[index]) for index in batch])
        first = {measured[index].images: index for index in reversed(batch)}  # the others show the same
        return packed(
            encoder,
            [
                encoder.see(chains[index], measured[index])
                if first[measured[index].images] == index
                else measured[index]
                for index in batch
            ],
        )

    with ThreadPoolExecutor(LOOKAHEAD) as pool:
        waiting = [pool.submit(collate, batch) for batch in batches[:LOOKAHEAD]]
        for number, batch in enumerate(batches):
            inputs = waiting.pop(0).result()
            if number + LOOKAHEAD < len(batches):
                waiting.append(pool.submit(collate, batches[number + LOOKAHEAD]))
            yield batch, inputs


@torch.no_grad()
def _probabilities(model: Any, inputs: dict[str, Any]) -> list[float]:
    device = next(model.parameters()).device
    placed = {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    return step_probabilities(model(**placed)["logits"]).tolist()

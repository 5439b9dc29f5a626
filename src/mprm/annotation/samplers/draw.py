"""Tokens drawn from logits, for many rows at once, with random numbers that belong to each row.

The random number of a token is a hash of the request's seed, the number of the continuation, the place in
the continuation and the token itself. A row is therefore drawn alike whatever else is drawn beside it.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mprm.annotation.samplers.sampler import SamplingParams

GAMMA = -7046029254386353131
"""2⁶⁴ divided by the golden ratio, as a signed number: steps of it visit all numbers of 64 bits evenly."""
FACTORS = ((30, -4658895280553007687), (27, -7723592293110705685))
"""Shifts and factors of SplitMix64."""
TIES = 16
"""So many tokens more than ``top_k`` are looked at: as in transformers, those as likely as the last are kept."""


def hashed(numbers: Tensor) -> Tensor:
    """SplitMix64 of 64-bit numbers: a bijection whose output looks random, whatever the input."""
    for shift, factor in FACTORS:
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, n: int) -> Tensor:
    """Shifted right as if unsigned."""
    return (numbers >> n) & ((1 << (64 - n)) - 1)


def row_keys(seed: int, numbers: Sequence[int]) -> list[int]:
    """What the random numbers of these continuations of a request are made of: signed numbers of 64 bits."""
    seed = (seed + 2**63) % 2**64 - 2**63
    stream = hashed(torch.tensor(seed) + GAMMA)
    keys: list[int] = hashed(stream + (torch.tensor(numbers) + 1) * GAMMA).tolist()
    return keys


def waiting_times(keys: Tensor, places: Tensor, ids: Tensor) -> Tensor:
    """Exponential random numbers, one for each token.

    The token with the least ``waiting_time / probability`` is a draw from the probabilities.

    Parameters
    ----------
    keys, places : shape (R,)
        `row_keys` of each row; how many tokens it has drawn.
    ids : shape (R, K) or (K,)
        Tokens.
    """
    streams = hashed(keys + (places + 1) * GAMMA)
    bits = hashed(streams[:, None] + (ids + 1) * GAMMA)
    # odd numbers of 53 bits, so never 0: a waiting time of 0 would choose a token of no probability
    uniform = (_shifted(bits, 11) | 1).float() * 2.0**-53
    return -torch.log1p(-uniform)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How each of R rows is drawn."""

    keys: Tensor
    """Shape (R,); see `row_keys`."""
    temperature: Tensor
    """Shape (R, 1); 1 where the likeliest token is taken."""
    top_k: Tensor
    """Shape (R, 1); the size of the vocabulary where all are allowed."""
    top_p: Tensor
    """Shape (R, 1); 2 where all are allowed, which no sum of probabilities reaches."""
    takes_likeliest: Tensor
    """Shape (R,)"""
    n_likeliest: int | None
    """No row needs more of its likeliest tokens; None where the order of tokens does not matter."""
    any_drawn: bool
    any_likeliest: bool


def drawing(
    rows: Sequence[SamplingParams], keys: Sequence[int], *, n_vocabulary: int, device: torch.device | str = "cpu"
) -> Drawing:
    """What `draw` needs of the rows' settings, on the device."""
    drawn = [row for row in rows if row.temperature > 0]
    most = max((row.top_k or n_vocabulary for row in drawn), default=1)
    is_sorted = any(row.top_k or row.top_p < 1 for row in drawn)

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[:, None]

    return Drawing(
        keys=torch.tensor(keys, dtype=torch.int64, device=device),
        temperature=column([row.temperature or 1.0 for row in rows], torch.float32),
        top_k=column([min(row.top_k or n_vocabulary, n_vocabulary) for row in rows], torch.int64),
        top_p=column([row.top_p if row.top_p < 1 else 2.0 for row in rows], torch.float32),
        takes_likeliest=torch.tensor([row.temperature == 0 for row in rows], device=device),
        n_likeliest=min(most + TIES, n_vocabulary) if is_sorted else None,
        any_drawn=bool(drawn),
        any_likeliest=len(drawn) < len(rows),
    )


def draw(logits: Tensor, how: Drawing, places: Tensor) -> Tensor:
    """One token for each row: temperature, top-k and top-p in this order, as in transformers; or the likeliest.

    Parameters
    ----------
    logits : shape (R, V), float32
    places : shape (R,)
        How many tokens each row has drawn before.

    Returns
    -------
    shape (R,)
    """
    if not how.any_drawn:
        return logits.argmax(-1)
    tokens = _drawn(logits / how.temperature, how, places)
    return torch.where(how.takes_likeliest, logits.argmax(-1), tokens) if how.any_likeliest else tokens


def _drawn(scores: Tensor, how: Drawing, places: Tensor) -> Tensor:
    if how.n_likeliest is None:
        ids = torch.arange(scores.shape[1], device=scores.device)
        return (scores - waiting_times(how.keys, places, ids).log()).argmax(-1)
    scores, ids = scores.topk(how.n_likeliest)
    last = scores.gather(1, (how.top_k - 1).clamp(max=scores.shape[1] - 1))
    scores = scores.masked_fill(scores < last, -torch.inf)
    probabilities = scores.softmax(-1)
    likelier = probabilities.cumsum(-1) - probabilities
    scores = scores.masked_fill(likelier >= how.top_p, -torch.inf)
    # by token, not by rank: which of two equally likely tokens comes first is no part of the request
    place = (scores - waiting_times(how.keys, places, ids).log()).argmax(-1, keepdim=True)
    return ids.gather(1, place)[:, 0]


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits with those of the tokens that were seen made smaller, as transformers' repetition penalty does."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)

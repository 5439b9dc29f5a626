"""Sequences that are decoded together, token by token: sampling of tokens, KV cache, prefix cache, decode batch.

The random number of a token is a hash of the request's seed, the number of the continuation, the token's position in
the continuation and the token itself. A sequence is therefore sampled alike whatever else is in its batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from mprm.annotation.samplers.sampler import Request, SamplingParams
from mprm.data.images import open_image
from mprm.models.attention import grouped_attention_in
from mprm.models.chat import Backbone

GAMMA = -7046029254386353131  # 2⁶⁴ / golden ratio, signed: steps of it visit all numbers of 64 bits evenly
N_TIED = 16  # so many tokens more than ``top_k`` are sorted: as in transformers, those as likely as the last are kept
WINDOW = 8  # tokens between two looks at what was sampled: each look waits for the device
BLOCK = 64  # cache lengths are rounded up to a multiple of it: fewer different shapes, and well aligned ones
PREFILL_SLOTS = 16_384  # prefixes are prefilled together up to so many slots, prompts and padding counted


def splitmix64(numbers: Tensor) -> Tensor:
    """SplitMix64 of 64-bit numbers: a bijection whose output looks random, whatever the input."""
    numbers = (numbers ^ _shifted(numbers, 30)) * -4658895280553007687
    numbers = (numbers ^ _shifted(numbers, 27)) * -7723592293110705685
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, n: int) -> Tensor:
    """Shifted right as if unsigned."""
    return (numbers >> n) & ((1 << (64 - n)) - 1)


def sequence_keys(seed: int, numbers: Sequence[int]) -> list[int]:
    """What the random numbers of these continuations of a request are made of: signed numbers of 64 bits."""
    seed = (seed + 2**63) % 2**64 - 2**63
    stream = splitmix64(torch.tensor(seed) + GAMMA)
    keys: list[int] = splitmix64(stream + (torch.tensor(numbers) + 1) * GAMMA).tolist()
    return keys


def exponential_noise(keys: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Exponential random numbers, shape (R, K); the token with the least noise / probability is a sample.

    `sequence_keys` and numbers of tokens sampled before have shape (R,), tokens (R, K) or (K,).
    """
    streams = splitmix64(keys + (positions + 1) * GAMMA)
    bits = splitmix64(streams[:, None] + (ids + 1) * GAMMA)
    # odd numbers of 53 bits, so never 0: noise of 0 would choose a token of no probability
    uniform = (_shifted(bits, 11) | 1).float() * 2.0**-53
    return -torch.log1p(-uniform)


class BatchParams:
    """Sampling parameters of R sequences: ``keys`` and ``is_greedy`` have shape (R,), the others (R, 1).

    Where decoding is greedy, ``temperature`` is 1. Where all tokens are allowed, ``top_k`` is the size of the
    vocabulary and ``top_p`` 2, which no sum of probabilities reaches. No sequence needs more than ``n_sorted`` of its
    most likely tokens; None where their order does not matter.
    """

    def __init__(
        self, params: Sequence[SamplingParams], keys: Sequence[int], *, vocab_size: int, device: Any = "cpu"
    ) -> None:
        def tensor(values: list[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        sampled = [each for each in params if each.temperature > 0]
        largest = max((each.top_k or vocab_size for each in sampled), default=1)
        is_sorted = any(each.top_k or each.top_p < 1 for each in sampled)
        self.n_sorted = min(largest + N_TIED, vocab_size) if is_sorted else None
        self.any_sampled, self.any_greedy = bool(sampled), len(sampled) < len(params)
        self.keys = tensor([*keys], torch.int64)
        self.temperature = tensor([[each.temperature or 1.0] for each in params], torch.float32)
        self.top_k = tensor([[min(each.top_k or vocab_size, vocab_size)] for each in params], torch.int64)
        self.top_p = tensor([[each.top_p if each.top_p < 1 else 2.0] for each in params], torch.float32)
        self.is_greedy = tensor([each.temperature == 0 for each in params], torch.bool)


def sample_tokens(logits: Tensor, params: BatchParams, positions: Tensor) -> Tensor:
    """One token for each sequence, from logits of shape (R, V): temperature, top-k, top-p, as in transformers."""
    if not params.any_sampled:
        return logits.argmax(-1)
    tokens = _sampled(logits / params.temperature, params, positions)
    return torch.where(params.is_greedy, logits.argmax(-1), tokens) if params.any_greedy else tokens


def _sampled(scores: Tensor, params: BatchParams, positions: Tensor) -> Tensor:
    if params.n_sorted is None:
        ids = torch.arange(scores.shape[1], device=scores.device)
        return (scores - exponential_noise(params.keys, positions, ids).log()).argmax(-1)
    scores, ids = scores.topk(params.n_sorted)
    last = scores.gather(1, (params.top_k - 1).clamp(max=scores.shape[1] - 1))
    scores = scores.masked_fill(scores < last, -torch.inf)
    probabilities = scores.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    scores = scores.masked_fill(mass_before >= params.top_p, -torch.inf)
    # noise by token, not by rank: which of two equally likely tokens is sorted first is no part of the request
    rank = (scores - exponential_noise(params.keys, positions, ids).log()).argmax(-1, keepdim=True)
    return ids.gather(1, rank)[:, 0]


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits with transformers' repetition penalty on the tokens that were seen."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


class KVCache:
    """Keys and values of sequences of different lengths, a row each, from slot 0 on without gaps.

    A row is as long as its owner says: what lies behind is masked, and overwritten in time. So a sequence that has
    ended leaves by being overwritten, and a new one comes by a copy into its row. ``like`` are keys and values of any
    tokens, shape (layers, 2, tokens, heads, width), which give shape, dtype and device.
    """

    def __init__(self, like: Tensor, n_rows: int, n_slots: int) -> None:
        self._like = like
        self.layers = [self._zeros(n_rows, n_slots) for _ in like]
        self.past_key_values = Cache(layers=[_CacheLayer(self, number) for number in range(len(like))])
        # where the next tokens of the first n_used rows go, row and slot as one number; slots that are attended to
        self.flat_slots, self.n_used, self.n_attended = torch.empty(0), 0, 0

    def _zeros(self, n_rows: int, n_slots: int) -> Tensor:
        # zeros, as even what is masked must be a number
        return self._like.new_zeros(2, n_rows, n_slots, *self._like.shape[3:])

    @property
    def size(self) -> tuple[int, int]:
        return self.layers[0].shape[1], self.layers[0].shape[2]

    def write_at(self, slots: Tensor, n_attended: int) -> Tensor:
        """Set the slots of the next tokens of the first R rows, shape (R, T); returns their attention mask.

        The mask has shape (R, 1, T, n_attended), 0 and -inf: each token sees its row up to itself.
        """
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        self.flat_slots = (rows * self.size[1] + slots).flatten()
        self.n_used, self.n_attended = len(slots), n_attended
        hidden = torch.arange(n_attended, device=slots.device) > slots[:, None, :, None]
        # as numbers: every layer would turn a boolean mask into them by itself
        return self._like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)

    def resize(self, n_rows: int, n_slots: int) -> None:
        """Other numbers of rows and slots; what fits stays. Layer by layer, so that little is held twice."""
        kept_rows, kept_slots = (min(pair) for pair in zip(self.size, (n_rows, n_slots), strict=True))
        for number, old in enumerate(self.layers):
            self.layers[number] = self._zeros(n_rows, n_slots)
            self.layers[number][:, :kept_rows, :kept_slots] = old[:, :kept_rows, :kept_slots]

    def put(self, rows: Sequence[int], kv: Tensor) -> None:
        """Write the same tokens at the start of these rows: shape (layers, 2, tokens, heads, width)."""
        row = torch.tensor(rows, device=self._like.device)
        for layer, given in zip(self.layers, kv, strict=True):
            layer[:, row, : given.shape[1]] = given[:, None]

    def copy_from(self, other: KVCache, sources: Sequence[int], first: int) -> None:
        """Copy rows of another cache, each as often as it is named, to row ``first`` and those after it."""
        source = torch.tensor(sources, device=self._like.device)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            # a slice: on a CPU twice as fast as index_copy_
            mine[:, first : first + len(sources), : theirs.shape[2]] = theirs.index_select(1, source)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows over others; no row may be both."""
        source, target = (torch.tensor(rows, device=self._like.device) for rows in (sources, targets))
        for layer in self.layers:
            layer.index_copy_(1, target, layer.index_select(1, source))


class _CacheLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a `KVCache`, as transformers wants it: writes in place and returns views."""

    is_sliding = False

    def __init__(self, cache: KVCache, number: int) -> None:
        super().__init__()
        self._cache, self._number = cache, number
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens, shape (R, heads, T, width); returns all that are attended to."""
        cache, layer = self._cache, self._cache.layers[self._number]
        for flat, new in zip(layer.view(2, -1, *layer.shape[3:]), (key_states, value_states), strict=True):
            flat.index_copy_(0, cache.flat_slots, new.transpose(1, 2).flatten(0, 1))
        keys, values = layer[:, : cache.n_used, : cache.n_attended].transpose(2, 3)
        return keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self._cache.n_attended, 0

    def get_seq_length(self) -> int:
        return self._cache.n_attended

    def get_max_length(self) -> int:
        return self._cache.size[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The user's turn and the opening of the assistant's; ``kv`` has shape (layers, 2, tokens, heads, width)."""

    ids: list[int]
    kv: Tensor
    offset: int  # position id minus slot of every later token; not 0 where an image takes fewer positions than tokens
    images: tuple[Any, ...]  # held, so that no other image gets the id of one of these


class PrefixCache:
    """Keys and values of the prompts used last, up to a number of tokens; the newest stays, however long it is."""

    def __init__(self, policy: Backbone, *, max_tokens: int) -> None:
        self._policy, self._max_tokens = policy, max_tokens
        self._prompts: OrderedDict[tuple[Any, ...], Prompt] = OrderedDict()
        self._n_tokens, self._n_before_answer = 0, len(policy.chat_ids(""))

    def prompt(self, request: Request) -> Prompt:
        """The prompt of a request; an image that cannot be used raises `DataError`."""
        key = (request.prompt, *(str(i) if isinstance(i, str | Path) else id(i) for i in request.images))
        if key in self._prompts:
            self._prompts.move_to_end(key)
            return self._prompts[key]
        images = [open_image(image) for image in request.images]
        prompt = prefill(self._policy.model, self._policy.encode_chat(request.prompt, images), request.images)
        self._prompts[key] = prompt
        self._n_tokens += len(prompt.ids)
        while self._n_tokens > self._max_tokens and len(self._prompts) > 1:
            _, oldest = self._prompts.popitem(last=False)
            self._n_tokens -= len(oldest.ids)
        return prompt

    def prefix_ids(self, prefix: str) -> list[int]:
        """The tokens of a prefix: what it adds to an empty prompt."""
        return self._policy.chat_ids("", prefix=prefix)[self._n_before_answer :]


def prefill(model: Any, inputs: dict[str, Any], images: tuple[Any, ...] = ()) -> Prompt:
    """The prompt with its keys and values."""
    input_ids = inputs["input_ids"]
    # shape (1, tokens), or (3, 1, tokens) where time, height and width of an image count; given, so that nothing
    # depends on what the model remembers of the prompt before
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    if "image_grid_thw" in inputs:
        names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
        positions = model.model.get_rope_index(**{name: inputs[name] for name in names})[0]
    cache = DynamicCache()
    model(**inputs, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    kv = torch.stack([torch.stack([layer.keys[0], layer.values[0]]).transpose(1, 2) for layer in cache.layers])
    ids = input_ids[0].tolist()
    return Prompt(ids=ids, kv=kv, offset=int(positions.max()) + 1 - len(ids), images=images)


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Continuations of a request, by their numbers; prompt and prefix are computed once for all of them."""

    request_id: int
    request: Request
    numbers: range
    prompt: Prompt
    prefix_ids: list[int]

    @property
    def n_tokens(self) -> int:
        return len(self.prompt.ids) + len(self.prefix_ids)

    @property
    def max_slots(self) -> int:
        """Slots that a continuation may come to need; it may be sampled on to the end of a window."""
        return self.n_tokens - 1 + self.request.sampling.max_new_tokens + WINDOW


@dataclass(slots=True)
class RunningSequence:
    """A continuation as far as it is sampled; ``key`` is one of `sequence_keys`."""

    group: SequenceGroup
    number: int
    key: int
    sampled: list[int] = field(default_factory=list)


class DecodeBatch:
    """Sequences in the first rows of a KV cache; new ones join at the end, the last fill gaps of those that end."""

    def __init__(self, model: Any, like: Tensor, *, penalty: float) -> None:
        self._model, self._like, self._penalty = model, like, penalty
        self._vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._cache = KVCache(like, 0, 0)
        # tokens of each row, for the penalty alone
        self._seen = torch.zeros(0, self._vocab_size if penalty != 1 else 0, dtype=torch.bool, device=like.device)
        self.sequences: list[RunningSequence] = []

    def add(self, groups: Sequence[SequenceGroup], *, n_slots: int, max_tokens: int) -> None:
        """Add sequences, with ``n_slots`` for each; ``max_tokens`` bounds what is kept beyond that."""
        self._reserve(len(self.sequences) + sum(len(group.numbers) for group in groups), n_slots, max_tokens)
        for together in _prefill_batches(groups):
            self._prefill(together)
            for group in together:
                first, last = len(self.sequences), len(self.sequences) + len(group.numbers)
                if self._penalty != 1:
                    self._seen[first:last] = False
                    self._seen[first:last, sorted({*group.prompt.ids, *group.prefix_ids})] = True
                keys = sequence_keys(group.request.seed, group.numbers)
                self.sequences += map(RunningSequence, repeat(group), group.numbers, keys)

    def _reserve(self, n_rows: int, n_slots: int, max_tokens: int) -> None:
        had_rows, had_slots = self._cache.size
        if n_rows <= had_rows and n_slots <= had_slots:
            return
        if had_rows * max(n_slots, had_slots) <= max_tokens:
            n_rows = max(n_rows, had_rows)
        if n_rows * had_slots <= max_tokens:
            n_slots = max(n_slots, had_slots)
        self._cache.resize(n_rows, _rounded(n_slots))
        seen = self._seen[: len(self.sequences)]
        self._seen = functional.pad(seen, (0, 0, 0, n_rows - len(seen)))

    def _prefill(self, groups: Sequence[SequenceGroup]) -> None:
        """Compute keys and values of prompts and prefixes once, and copy them to all their sequences."""
        device, n_slots = self._like.device, max(group.n_tokens for group in groups)
        stage = KVCache(self._like, len(groups), n_slots)
        for prompt in {id(group.prompt): group.prompt for group in groups}.values():
            stage.put([row for row, group in enumerate(groups) if group.prompt is prompt], prompt.kv)
        # the last token of a prefix is left to the first step of its sequences, which needs its logits
        prefixes = [group.prefix_ids[:-1] for group in groups]
        if longest := max(map(len, prefixes)):
            ids = torch.tensor([prefix + [0] * (longest - len(prefix)) for prefix in prefixes], device=device)
            starts = torch.tensor([len(group.prompt.ids) for group in groups], device=device)
            offsets = torch.tensor([group.prompt.offset for group in groups], device=device)
            # padding lies behind its row's end, where nobody looks; it must not leave the cache
            slots = (starts[:, None] + torch.arange(longest, device=device)).clamp(max=n_slots - 1)
            with grouped_attention_in(self._model):
                self._forward(stage, ids, slots, offsets, n_slots)
        sources = [row for row, group in enumerate(groups) for _ in group.numbers]
        self._cache.copy_from(stage, sources, len(self.sequences))

    def _forward(self, cache: KVCache, ids: Tensor, slots: Tensor, offsets: Tensor, n_attended: int) -> Tensor:
        """Logits after the last of these tokens, shape (R, V), float32."""
        mask, positions = cache.write_at(slots, n_attended), slots + offsets[:, None]
        options = {"past_key_values": cache.past_key_values, "use_cache": True, "logits_to_keep": 1}
        logits: Tensor = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, **options).logits
        return logits[:, -1].float()

    def step(self, n_steps: int) -> None:
        sequences, device = self.sequences, self._like.device
        settings, keys = zip(*((s.group.request.sampling, s.key) for s in sequences), strict=True)
        params = BatchParams(settings, keys, vocab_size=self._vocab_size, device=device)
        table = []
        for sequence in sequences:
            group, n_sampled = sequence.group, len(sequence.sampled)
            # the last token that is known is the first without keys and values, which go to the slot
            last_id = (sequence.sampled or group.prefix_ids or group.prompt.ids)[-1]
            table.append([last_id, group.n_tokens - 1 + n_sampled, group.prompt.offset, n_sampled])
        ids, slots, offsets, positions = torch.tensor(table, device=device).T
        last_slot = max(slot for _, slot, _, _ in table)
        seen, steps = self._seen[: len(sequences)], []
        with grouped_attention_in(self._model):
            for number in range(n_steps):
                n_attended = _rounded(last_slot + number + 1)
                logits = self._forward(self._cache, ids[:, None], slots[:, None] + number, offsets, n_attended)
                if self._penalty != 1:
                    logits = penalized(logits, seen, self._penalty)
                ids = sample_tokens(logits, params, positions + number)
                if self._penalty != 1:
                    seen.scatter_(1, ids[:, None], True)
                steps.append(ids)
        for sequence, sampled in zip(sequences, torch.stack(steps, dim=1).tolist(), strict=True):
            sequence.sampled += sampled

    def remove(self, rows: set[int]) -> None:
        n_left = len(self.sequences) - len(rows)
        gaps = sorted(row for row in rows if row < n_left)
        movers = [row for row in range(n_left, len(self.sequences)) if row not in rows]
        if gaps:
            self._cache.move(movers, gaps)
            self._seen[gaps] = self._seen[movers]
            for gap, mover in zip(gaps, movers, strict=True):
                self.sequences[gap] = self.sequences[mover]
        del self.sequences[n_left:]


def _rounded(n_slots: int) -> int:
    return -(-n_slots // BLOCK) * BLOCK


def _prefill_batches(groups: Sequence[SequenceGroup]) -> Iterator[list[SequenceGroup]]:
    """Groups in their order, in batches that are prefilled together."""
    batch: list[SequenceGroup] = []
    for group in groups:
        longest = max(each.n_tokens for each in [*batch, group])
        if batch and longest * (len(batch) + 1) > PREFILL_SLOTS:
            yield batch
            batch = []
        batch.append(group)
    yield batch

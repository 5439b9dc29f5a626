"""Keys and values of many rows that are of different lengths, come and go.

Prompts with their keys and values, computed once for all that is asked of them.

Rows that are continued together, token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from mprm.annotation.samplers.draw import draw, drawing, penalise
from mprm.annotation.samplers.policy import Policy
from mprm.annotation.samplers.sampler import Request, SamplingParams
from mprm.data.images import open_image
from mprm.models.attention import grouped_attention_in


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """What the keys and values of one token are."""

    n_layers: int
    n_heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def n_bytes(self) -> int:
        """Of one token."""
        return 2 * self.n_layers * self.n_heads * self.width * self.dtype.itemsize

    def zeros(self, *size: int) -> Tensor:
        """Room for keys and values of one layer; zeros, as even what is masked must be a number."""
        return torch.zeros(2, *size, self.n_heads, self.width, dtype=self.dtype, device=self.device)


def state_shape_of(model: Any) -> StateShape:
    """The shape of the language model's keys and values."""
    text = model.config.get_text_config()
    return StateShape(
        n_layers=text.num_hidden_layers,
        n_heads=text.num_key_value_heads,
        width=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        dtype=model.dtype,
        device=model.device,
    )


@dataclass(slots=True)
class _Places:
    """Where the next tokens go, in every layer alike."""

    flat: Tensor | None = None
    """Shape (R * T,); row and column as one number."""
    n_rows: int = 0
    extent: int = 0
    """Columns that are looked at."""


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of `RowCache`: writes in place and hands out views, so that no token moves the others."""

    is_sliding = False

    def __init__(self, states: Tensor, places: _Places) -> None:
        super().__init__()
        self.states = states
        self._places = places
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens of each row, shape (R, heads, T, width); returns all of them, to the extent."""
        places = self._places
        for states, new in zip(self.states, (key_states, value_states), strict=True):
            flat = states.view(-1, *states.shape[2:])
            flat.index_copy_(0, places.flat, new.transpose(1, 2).flatten(0, 1))
        keys, values = self.states[:, : places.n_rows, : places.extent].transpose(2, 3)
        return keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the room is there."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        """Columns that a mask must have, and the first of them."""
        return self._places.extent, 0

    def get_seq_length(self) -> int:
        """Columns that are looked at; rows have lengths of their own."""
        return self._places.extent

    def get_max_length(self) -> int:
        """Columns that there are."""
        return int(self.states.shape[2])


class RowCache:
    """Keys and values of ``n_rows`` rows, each from column 0 on without holes.

    A row is as long as its owner says: what lies behind is masked, and overwritten in time. So a row
    that has ended leaves by being overwritten, and a new one comes by a copy into its place.
    """

    def __init__(self, shape: StateShape, n_rows: int, n_columns: int) -> None:
        self._shape = shape
        self._places = _Places()
        self._layers = [_RowLayer(shape.zeros(n_rows, n_columns), self._places) for _ in range(shape.n_layers)]
        self.past = Cache(layers=self._layers)
        """For ``past_key_values``."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        n_rows, n_columns = self._layers[0].states.shape[1:3]
        return n_rows, n_columns

    def place(self, columns: Tensor, extent: int) -> Tensor:
        """Say where the next tokens of the first R rows go, shape (R, T); returns the mask of what they see.

        The mask has shape (R, 1, T, extent), 0 and -inf: each token sees its row up to itself.
        """
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        self._places.flat = (rows * self.size[1] + columns).flatten()
        self._places.n_rows, self._places.extent = len(columns), extent
        hidden = torch.arange(extent, device=columns.device) > columns[:, None, :, None]
        # as numbers: every layer would turn a mask of truth values into them by itself
        return torch.zeros(hidden.shape, dtype=self._shape.dtype, device=hidden.device).masked_fill_(
            hidden, -torch.inf
        )

    def resize(self, n_rows: int, n_columns: int) -> None:
        """Other numbers of rows and columns; what fits stays. Layer by layer, so that little is held twice."""
        kept_rows, kept_columns = (min(pair) for pair in zip(self.size, (n_rows, n_columns), strict=True))
        for layer in self._layers:
            states = self._shape.zeros(n_rows, n_columns)
            states[:, :kept_rows, :kept_columns] = layer.states[:, :kept_rows, :kept_columns]
            layer.states = states

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows over others; no row may be both."""
        source, target = (torch.tensor(rows, device=self._shape.device) for rows in (sources, targets))
        for layer in self._layers:
            layer.states.index_copy_(1, target, layer.states.index_select(1, source))

    def put(self, rows: Sequence[int], states: Tensor) -> None:
        """Begin these rows alike: shape (layers, 2, columns, heads, width)."""
        row = torch.tensor(rows, device=self._shape.device)
        for layer, given in zip(self._layers, states, strict=True):
            layer.states[:, row, : given.shape[1]] = given[:, None]

    def copy_from(self, other: RowCache, sources: Sequence[int], first: int) -> None:
        """Rows of another cache, each as often as it is named, from row ``first`` on."""
        source = torch.tensor(sources, device=self._shape.device)
        n_columns = other.size[1]
        for mine, theirs in zip(self._layers, other._layers, strict=True):
            mine.states[:, first : first + len(sources), :n_columns] = theirs.states.index_select(1, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The user's turn, and the opening of the assistant's."""

    ids: list[int]
    states: Tensor
    """Keys and values, shape (layers, 2, tokens, heads, width)."""
    offset: int
    """Position less column of every later token; not 0 where an image takes fewer positions than tokens."""
    images: tuple[Any, ...]
    """Held, so that no other image gets the identity of one of these."""


class PromptStore:
    """The prompts used last, up to a number of tokens; the newest stays, however long it is."""

    def __init__(self, policy: Policy, *, most_tokens: int) -> None:
        self._policy = policy
        self._most_tokens = most_tokens
        self._prompts: OrderedDict[tuple[Any, ...], Prompt] = OrderedDict()
        self._n_tokens = 0
        self._n_before_answer = policy.encode_chat("")["input_ids"].shape[1]

    def prompt(self, request: Request) -> Prompt:
        """The prompt of a request; an image that cannot be used raises `DataError`."""
        key = (request.prompt, *(str(i) if isinstance(i, str | Path) else id(i) for i in request.images))
        if key in self._prompts:
            self._prompts.move_to_end(key)
            return self._prompts[key]
        images = [open_image(image) for image in request.images]
        inputs = self._policy.encode_chat(request.prompt, images)
        prompt = _computed(self._policy.model, inputs, request.images)
        self._prompts[key] = prompt
        self._n_tokens += len(prompt.ids)
        while self._n_tokens > self._most_tokens and len(self._prompts) > 1:
            _, oldest = self._prompts.popitem(last=False)
            self._n_tokens -= len(oldest.ids)
        return prompt

    def prefix_ids(self, prefix: str) -> list[int]:
        """The tokens of the beginning of an answer: what it adds to a prompt without words."""
        if not prefix:
            return []
        ids = self._policy.encode_chat("", prefix=prefix)["input_ids"][0, self._n_before_answer :]
        return [int(id_) for id_ in ids.tolist()]


def _computed(model: Any, inputs: dict[str, Any], images: tuple[Any, ...]) -> Prompt:
    positions = _positions(model, inputs)
    past = DynamicCache()
    # positions are given, so that nothing depends on what the model remembers of the prompt before
    model(**inputs, position_ids=positions, past_key_values=past, use_cache=True, logits_to_keep=1)
    states = [torch.stack([layer.keys[0], layer.values[0]]).transpose(1, 2) for layer in past.layers]
    ids = inputs["input_ids"][0].tolist()
    offset = int(positions.max()) + 1 - len(ids)
    return Prompt(ids=ids, states=torch.stack(states), offset=offset, images=images)


def _positions(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Shape (1, tokens); (3, 1, tokens) where time, height and width of an image count."""
    if "image_grid_thw" not in inputs:
        return torch.arange(inputs["input_ids"].shape[1], device=inputs["input_ids"].device)[None]
    given = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    positions: Tensor = model.model.get_rope_index(**{name: inputs[name] for name in given})[0]
    return positions


WINDOW = 8
"""Tokens between two looks at what was drawn: each look waits for the device."""
EXTENT_STEP = 64
"""Columns that are attended to, rounded up: fewer different shapes, and well aligned ones."""
PREFIX_COLUMNS = 16_384
"""Prefixes are computed together up to so many columns, prompts and padding counted."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One continuation under way."""

    request: int
    number: int
    """Which of the request's continuations."""
    sampling: SamplingParams
    key: int
    """See `row_keys`."""
    next_id: int
    """The last token that is known, and the first that has no keys and values yet."""
    column: int
    """Where its keys and values go."""
    offset: int
    """See `Prompt.offset`."""
    drawn: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """Continuations of one prefix."""

    prompt: Prompt
    prefix_ids: list[int]
    rows: list[Row]

    @property
    def n_tokens(self) -> int:
        """Of prompt and prefix."""
        return len(self.prompt.ids) + len(self.prefix_ids)


class RowBatch:
    """Rows 0 to n - 1 of a cache; new ones join at the end, the last take the places of those that leave."""

    def __init__(self, model: Any, shape: StateShape, *, penalty: float) -> None:
        self._model = model
        self._shape = shape
        self._penalty = penalty
        self._n_vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self._cache = RowCache(shape, 0, 0)
        self._seen = self._none_seen(0)
        self.rows: list[Row] = []

    def _none_seen(self, n_rows: int) -> Tensor:
        n_vocabulary = self._n_vocabulary if self._penalty != 1 else 0
        return torch.zeros(n_rows, n_vocabulary, dtype=torch.bool, device=self._shape.device)

    def join(self, newcomers: Sequence[Newcomer], *, n_columns: int, most_tokens: int) -> None:
        """Take in more rows, with ``n_columns`` for each; ``most_tokens`` bounds what is kept beyond that."""
        n_new = sum(len(newcomer.rows) for newcomer in newcomers)
        self._reserve(len(self.rows) + n_new, n_columns, most_tokens)
        for together in _groups(newcomers):
            self._fill(together)
            for newcomer in together:
                self._note_seen(newcomer)
                self.rows += newcomer.rows

    def _reserve(self, n_rows: int, n_columns: int, most_tokens: int) -> None:
        had_rows, had_columns = self._cache.size
        if n_rows <= had_rows and n_columns <= had_columns:
            return
        if had_rows * max(n_columns, had_columns) <= most_tokens:
            n_rows = max(n_rows, had_rows)
        if n_rows * had_columns <= most_tokens:
            n_columns = max(n_columns, had_columns)
        n_columns = -(-n_columns // EXTENT_STEP) * EXTENT_STEP
        self._cache.resize(n_rows, n_columns)
        seen = self._seen
        self._seen = self._none_seen(n_rows)
        self._seen[: len(self.rows)] = seen[: len(self.rows)]

    def _fill(self, newcomers: Sequence[Newcomer]) -> None:
        """Keys and values of prompts and prefixes, each once, then copied to all their rows."""
        stage = RowCache(self._shape, len(newcomers), max(newcomer.n_tokens for newcomer in newcomers))
        for prompt in {id(newcomer.prompt): newcomer.prompt for newcomer in newcomers}.values():
            stage.put([place for place, n in enumerate(newcomers) if n.prompt is prompt], prompt.states)
        # the last token of a prefix is left to the first step of its rows, which needs its logits
        prefixes = [newcomer.prefix_ids[:-1] for newcomer in newcomers]
        if any(prefixes):
            self._read(stage, newcomers, prefixes)
        sources = [place for place, newcomer in enumerate(newcomers) for _ in newcomer.rows]
        self._cache.copy_from(stage, sources, len(self.rows))

    def _read(self, stage: RowCache, newcomers: Sequence[Newcomer], prefixes: list[list[int]]) -> None:
        """Run the prefixes as one block; what pads them lies behind their rows' ends, where nobody looks."""
        device, longest = self._shape.device, max(map(len, prefixes))
        ids = torch.tensor([prefix + [0] * (longest - len(prefix)) for prefix in prefixes], device=device)
        starts = torch.tensor([len(newcomer.prompt.ids) for newcomer in newcomers], device=device)
        offsets = torch.tensor([newcomer.prompt.offset for newcomer in newcomers], device=device)
        # the padding of one row must not leave the cache: it is written over its last column, over and over
        columns = (starts[:, None] + torch.arange(longest, device=device)).clamp(max=stage.size[1] - 1)
        with grouped_attention_in(self._model):
            self._forward(stage, ids, columns, offsets, stage.size[1])

    def _note_seen(self, newcomer: Newcomer) -> None:
        if self._penalty == 1:
            return
        first = len(self.rows)
        ids = sorted({*newcomer.prompt.ids, *newcomer.prefix_ids})
        seen = self._seen[first : first + len(newcomer.rows)]
        seen.fill_(False)
        seen[:, torch.tensor(ids, device=seen.device)] = True

    def _forward(self, cache: RowCache, ids: Tensor, columns: Tensor, offsets: Tensor, extent: int) -> Tensor:
        """Logits after the last of these tokens, shape (R, V), float32."""
        found = self._model(
            input_ids=ids,
            attention_mask=cache.place(columns, extent),
            position_ids=columns + offsets[:, None],
            past_key_values=cache.past,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = found.logits[:, -1].float()
        return logits

    def step(self, n_steps: int) -> None:
        """Draw so many tokens for each row."""
        rows, device = self.rows, self._shape.device
        how = drawing(
            [row.sampling for row in rows],
            [row.key for row in rows],
            n_vocabulary=self._n_vocabulary,
            device=device,
        )
        whole = [[row.next_id, row.column, row.offset, len(row.drawn)] for row in rows]
        ids, columns, offsets, places = torch.tensor(whole, device=device).T
        longest = max(row.column for row in rows)
        seen = self._seen[: len(rows)]
        drawn = []
        with grouped_attention_in(self._model):
            for number in range(n_steps):
                extent = -(-(longest + number + 1) // EXTENT_STEP) * EXTENT_STEP
                logits = self._forward(self._cache, ids[:, None], columns[:, None] + number, offsets, extent)
                if self._penalty != 1:
                    logits = penalise(logits, seen, self._penalty)
                ids = draw(logits, how, places + number)
                if self._penalty != 1:
                    seen.scatter_(1, ids[:, None], True)
                drawn.append(ids)
        for row, found in zip(rows, torch.stack(drawn, dim=1).tolist(), strict=True):
            row.drawn += found
            row.next_id = found[-1]
            row.column += n_steps

    def leave(self, places: set[int]) -> None:
        """Let go of the rows at these places."""
        n_left = len(self.rows) - len(places)
        gaps = sorted(place for place in places if place < n_left)
        movers = [place for place in range(n_left, len(self.rows)) if place not in places]
        if gaps:
            self._cache.move(movers, gaps)
            self._seen[gaps] = self._seen[movers]
            for gap, mover in zip(gaps, movers, strict=True):
                self.rows[gap] = self.rows[mover]
        del self.rows[n_left:]


def _groups(newcomers: Sequence[Newcomer]) -> Iterator[list[Newcomer]]:
    """Newcomers in their order, in groups that are computed together."""
    group: list[Newcomer] = []
    for newcomer in newcomers:
        longest = max(n.n_tokens for n in [*group, newcomer])
        if group and longest * (len(group) + 1) > PREFIX_COLUMNS:
            yield group
            group = []
        group.append(newcomer)
    yield group

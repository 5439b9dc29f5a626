"""Rows that are continued together, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mprm.annotation.samplers.draw import draw, drawing, penalise
from mprm.annotation.samplers.grouped_attention import grouped_attention_in
from mprm.annotation.samplers.prompt_store import Prompt
from mprm.annotation.samplers.row_cache import RowCache, StateShape
from mprm.annotation.samplers.sampler import Decoding

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
    decoding: Decoding
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
            [row.decoding for row in rows],
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

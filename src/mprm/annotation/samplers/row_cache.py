"""Keys and values of many rows that are of different lengths, come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


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

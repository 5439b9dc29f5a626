"""A table for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells, of which some are the best of their column."""

    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    """Numbers of the cells to mark."""
    is_total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows under one head."""

    head: str | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption and what must be said below it."""

    caption: str
    heads: tuple[str, ...]
    groups: tuple[Group, ...]
    below: tuple[str, ...] = ()


def best_marked(head: str | None, rows: Sequence[tuple[str, Sequence[float | None]]], form: str) -> Group:
    """Rows of numbers under a head, the largest of each column marked where there is more than one row.

    Examples
    --------
    >>> group = best_marked("10%", [("bis", [0.5, 0.25]), ("random", [0.25, 0.25])], "{:.2f}")
    >>> [sorted(row.best) for row in group.rows]
    [[1, 2], [2]]
    """
    # equal when they are shown alike
    shown = [[None if value is None else form.format(value) for value in values] for _, values in rows]
    tops = []
    for column in zip(*(values for _, values in rows), strict=True):
        known = [value for value in column if value is not None]
        tops.append(form.format(max(known)) if known and len(rows) > 1 else None)
    made = [
        Row(
            cells=(name, *("–" if cell is None else cell for cell in cells)),
            best=frozenset(n for n, cell in enumerate(cells, 1) if cell is not None and cell == tops[n - 1]),
        )
        for (name, _), cells in zip(rows, shown, strict=True)
    ]
    return Group(head=head, rows=tuple(made))

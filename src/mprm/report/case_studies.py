"""Single rollouts to look at: the best, those around the cut, the worst, and the least reliable positives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mprm.report.label_cells import SourceCells
from mprm.rollouts.chunks import lines_of
from mprm.rollouts.formats import FORMATS
from mprm.rollouts.read import read_line
from mprm.rollouts.rollout import Rollout
from mprm.scores.label_counts import LabelCounts, Part
from mprm.scores.rank import R_of

Kind = Literal["top", "last kept", "first left out", "bottom", "pseudo-positive"]
KINDS: dict[Kind, str] = {
    "top": "Highest BIS",
    "last kept": "Last kept",
    "first left out": "First left out",
    "bottom": "Lowest BIS",
    "pseudo-positive": "Likely pseudo-positives",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rollout, and why it is shown."""

    source: str
    kinds: tuple[Kind, ...]
    place: int
    """From 1: how good it is by BIS among its source's rollouts."""
    is_kept: bool
    row: int
    """Among the corpus's rows."""
    file: str = ""
    line: int = 0
    rollout: Rollout | None = None
    """None until it is read."""


def choose_cases(cells: SourceCells, *, alpha: float, n_keep: int, n_each: int) -> list[Case]:
    """Up to ``n_each`` rollouts of each kind from a source; one of several kinds is one case."""
    ranked = cells.ranked("bis", alpha=alpha)
    n = len(ranked)
    has_positive = cells.rows["n_pos"][cells.order[ranked]] > 0
    R = np.where(has_positive, R_of(cells.rows)[cells.order[ranked]], np.inf)  # noqa: N806 - the paper's symbol
    wanted: dict[Kind, Iterable[int]] = {
        "top": range(n_each),
        "last kept": range(n_keep - 1, n_keep - 1 - n_each, -1),
        "first left out": range(n_keep, n_keep + n_each),
        "bottom": range(n - 1, n - 1 - n_each, -1),
        "pseudo-positive": np.argsort(R, kind="stable")[: min(n_each, int(has_positive.sum()))].tolist(),
    }
    kinds: dict[int, list[Kind]] = {}
    for kind, places in wanted.items():
        for place in places:
            if 0 <= place < n:
                kinds.setdefault(place, []).append(kind)
    return [
        Case(
            source=cells.name,
            kinds=tuple(found),
            place=place + 1,
            is_kept=place < n_keep,
            row=int(cells.numbers[ranked[place]]),
        )
        for place, found in kinds.items()
    ]


def read_cases(counts: LabelCounts, cases: Sequence[Case]) -> list[Case]:
    """The cases with their rollouts and where these stand."""
    by_row = {case.row: case for case in cases}
    found: dict[int, Case] = {}
    path, offset = "", 0
    for part in counts.parts:
        if part.chunk.path != path:
            path, offset = part.chunk.path, 0
        wanted = [row for row in by_row if part.first_row <= row < part.first_row + part.n_rows]
        sizes = counts.rows["n_bytes"][part.first_row : part.first_row + part.n_rows]
        for row, line in _lines(part, sorted(wanted), sizes, offset):
            (rollout,) = read_line(line, FORMATS[part.chunk.format], None, _ignore)
            line_number = part.first_line + row - part.first_row
            found[row] = replace(by_row[row], file=path, line=line_number, rollout=rollout)
        offset += int(sizes.sum())
    return [found[case.row] for case in cases]


def _lines(part: Part, rows: list[int], sizes: NDArray[np.uint64], offset: int) -> Iterator[tuple[int, bytes]]:
    """(row, line) of the wanted rows; looked up where the file is plain, else found by reading on."""
    if part.chunk.is_range:
        ends = offset + np.cumsum(sizes, dtype=np.int64)
        with open(part.chunk.path, "rb") as handle:  # noqa: PTH123
            for row in rows:
                n_bytes = int(sizes[row - part.first_row])
                handle.seek(int(ends[row - part.first_row]) - n_bytes)
                yield row, handle.read(n_bytes)
    elif rows:
        for number, line in enumerate(lines_of(part.chunk), part.first_row):
            if number in rows:
                yield number, line


def _ignore(_kind: str, _text: str) -> None:
    """A good record has been judged before; its warnings are `mprm check`'s to tell."""

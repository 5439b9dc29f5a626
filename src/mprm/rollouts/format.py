"""What mprm must know of a file format to read it, judge it and write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout

Record = Mapping[str, Any]
"""One decoded JSON object, or one Parquet row."""

PRM_TOKEN = "<prm>"
"""Stands after each step in MM-PRM text; the model is read out at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which people store rollouts."""

    name: str
    """As users type it after ``--format`` and ``--to``."""
    title: str
    labels: Literal["mc", "binary", "either"]
    """``mc``: success rates; ``binary``: only right or wrong; ``either``: the file's own numbers decide."""
    has_images: bool
    recognise: Callable[[Record], bool]
    parse: Callable[[Record, Report], tuple[Rollout, ...]]
    """The record's rollouts; what is wrong is reported, and an unusable record gives none."""
    quick: Callable[[bytes], Rollout | None] | None = None
    """The rollout of a plain line, decoded at once; None for any other line, which ``parse`` then sees."""
    dump: Callable[[Rollout, float], Any] | None = None
    """The rollout as a record of this format, ready to be encoded, labels cut at tau; None: only read."""
    writes: Literal["mc", "binary"] = "binary"
    """What ``dump`` needs: MC scores, or labels of any kind."""
    forbids: str | None = None
    """Text that a step or question must not hold, because this format ends a step with it."""
    many: bool = False
    """Whether one record holds several rollouts, or one rollout several records."""
    regroup: (
        Callable[[Iterable[tuple[int, Record]], Callable[[int], Report]], Iterator[tuple[int, Rollout]]] | None
    ) = None
    """Reads rollouts that are spread over rows: (row, record) in, (row, rollout) out."""

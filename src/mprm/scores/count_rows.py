"""Label counts of v1.1-Raw and VL-PRM300K lines, as fast as they can be read.

Every strategy ranks by n, n_pos and the sum of scores alone, and the statistics need little more,
so a record is reduced to one row of 56 bytes. ``count_rows`` is the compiled function where mprm
was installed with a compiler at hand, and its Python twin elsewhere; both give the same rows.
"""

from __future__ import annotations

from functools import lru_cache
from mmap import mmap
from struct import Struct
from typing import Annotated, Any

import msgspec

from mprm.rollouts.rollout import Count

ROW = Struct("=IIIIIIIIddQ")
"""n_steps, n_pos, n_words, n_unsampled, source, kind, n_mc, unused, sum_pos, sum_all, n_bytes."""
ROLLOUT, BLANK, BAD = 0, 1, 2
"""Kinds of line; a line that is handed back as odd counts as bad until Python has looked at it."""

Odd = list[tuple[int, int, int]]
"""(row, first byte, end) of each line that needs a closer look."""


def pack_row(
    texts: list[str],
    scores: list[float],
    n_totals: list[int | None],
    *,
    tau: float,
    source: int,
    n_bytes: int,
) -> bytes:
    """The row of one rollout.

    Sums run from left to right in float64, as the reference adds; Python's own ``sum`` does not
    from 3.12 on, and with N other than a power of two the last bit decides ties.
    """
    n_pos, sum_pos, sum_all = 0, 0.0, 0.0
    for score in scores:
        sum_all += score
        if score > tau:
            n_pos += 1
            sum_pos += score
    n_words = sum([len(text.split()) for text in texts])
    n_mc = max([n_total or 0 for n_total in n_totals], default=0)
    return ROW.pack(
        len(scores), n_pos, n_words, n_totals.count(0), source, ROLLOUT, n_mc, 0, sum_pos, sum_all, n_bytes
    )


class _Step(msgspec.Struct, gc=False):
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    step: str
    num_mc_correct: Count | None = None
    num_mc_total: Count | None = None

    @property
    def is_consistent(self) -> bool:
        if self.num_mc_correct is None or self.num_mc_total is None:
            return True
        expected = self.num_mc_correct / self.num_mc_total if self.num_mc_total else 0.0
        return self.num_mc_correct <= self.num_mc_total and abs(self.score - expected) < 1e-6


@lru_cache
def _decoder(with_source: bool) -> msgspec.json.Decoder[Any]:
    """Decodes what a row needs and skips the rest of the line."""
    fields: list[Any] = [
        ("steps_with_score", list[_Step]),
        ("question", str),
        ("image", str | list[str] | None, None),
        ("source", str, "") if with_source else ("source", msgspec.UnsetType, msgspec.UNSET),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("FastRecord", fields, gc=False, kw_only=True))


def count_rows_python(
    data: bytes | mmap,
    place: int,
    stop: int,
    needs_image: bool,
    tau: float,
    sources: dict[str, int] | None,
    mark: bytes,
    /,
) -> tuple[bytearray, Odd]:
    """One row for each line that begins in [place, stop); what is not plainly right is handed back.

    Parameters
    ----------
    data
        Whole lines; ``place`` is the first byte of one.
    needs_image
        Hand back records without an image.
    tau
        A step is positive when its score is strictly above it.
    sources
        Number of each source seen so far, added to; None where the file is the source, and a
        record that names one is handed back.
    mark
        Hand back lines that hold these bytes, if any, or that hide letters as escapes.
    """
    rows, odd = bytearray(), []
    decode = _decoder(sources is not None).decode
    n_rows = 0
    while place < min(stop, len(data)):
        end = data.find(b"\n", place) + 1 or len(data)
        line = data[place:end]
        row = (
            _row(line, decode, needs_image, tau, sources)
            if not mark or not (mark in line or b"\\u00" in line)
            else None
        )
        if row is None and not line.strip(b" \t\r\n"):
            row = ROW.pack(0, 0, 0, 0, 0, BLANK, 0, 0, 0.0, 0.0, len(line))
        if row is None:
            row = ROW.pack(0, 0, 0, 0, 0, BAD, 0, 0, 0.0, 0.0, len(line))
            odd.append((n_rows, place, end))
        rows += row
        n_rows += 1
        place = end
    return rows, odd


def _row(line: bytes, decode: Any, needs_image: bool, tau: float, sources: dict[str, int] | None) -> bytes | None:
    try:
        line.decode()
        record = decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    steps, image = record.steps_with_score, record.image
    texts = [step.step for step in steps]
    if (
        not steps
        or not all(map(str.strip, texts))
        or not all(step.is_consistent for step in steps)
        or not record.question.strip()
        or (needs_image and not image)
        or (isinstance(image, list) and not (image and all(image)))
        or (sources is not None and not record.source)
    ):
        return None
    source = 0 if sources is None else sources.setdefault(record.source, len(sources))
    scores = [step.score for step in steps]
    n_totals = [step.num_mc_total for step in steps]
    return pack_row(texts, scores, n_totals, tau=tau, source=source, n_bytes=len(line))


try:
    from mprm.scores._count_rows import count_rows as count_rows
except ImportError:  # installed without a compiler: the same rows, several times slower
    count_rows = count_rows_python
    IS_COMPILED = False
else:
    IS_COMPILED = True

"""Tables that commands print and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mprm.errors import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under heads, with a title above and notes below."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    has_total: bool = False
    """Whether the last row sums up the others."""

    def markdown(self) -> str:
        """The table in Markdown, under its title."""
        notes = map(printable, self.notes)
        return "\n\n".join([f"## {printable(self.title)}", markdown_table(self.heads, self.rows), *notes]) + "\n"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""The table in Markdown: the first column left, the others right; whatever could break it is escaped.

    Examples
    --------
    >>> print(markdown_table(["source", "n"], [["a|b", "1"]]))
    | source | n |
    | --- | ---: |
    | a\|b | 1 |
    """
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(printable(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)

"""Text of others' making, safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text on one line, with whatever could steer a terminal or break a table written as an escape.

    Examples
    --------
    >>> print(printable("ai2d\x1b[2J\n"), printable("Größe"))
    ai2d\x1b[2J\n Größe
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

"""What is odd about records that can be used all the same."""

from __future__ import annotations


class Notes:
    """Counts what is odd, and keeps the first place of each."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def __call__(self, place: str, text: str) -> None:
        """Note something odd at a place."""
        n, first = self._found.get(text, (0, place))
        self._found[text] = (n + 1, first)

    def lines(self) -> tuple[str, ...]:
        """What was odd, how often, and where first."""
        return tuple(f"{n:,} records: {text} (the first {first})" for text, (n, first) in self._found.items())

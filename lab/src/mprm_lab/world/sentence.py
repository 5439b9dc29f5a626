"""Sentences with places for names and numbers, and what they claim.

A form is written as a sentence with slots such as ``<item>``, and claims such as ``total <item> = <total>``. A claim
says that a fact, here ``total cell 7``, has a value. The same form writes a true sentence, with the values of
the facts, and reads a sentence back into its claims.

"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mprm_lab.world.names import BARS, CELLS, FITS, LARGEST, LINES, LOOKS, MORE, OPTIONS, SHAPE_THINGS

Facts = Mapping[str, str]
"""What is true: the value of each fact."""

NUMBERS = tuple(map(str, range(LARGEST + 1)))
FILLERS: dict[str, tuple[str, ...]] = {
    "answer": (*NUMBERS, *OPTIONS, *BARS, "Yes", "No"),
    "fits": tuple(FITS.values()),
    "item": (*CELLS, *BARS),
    "line": LINES,
    "look": LOOKS,
    "relation": tuple(MORE.values()),
    "result": (*NUMBERS, *BARS),
    "sign": ("+", "-"),
    "thing": SHAPE_THINGS,
    "turn": ("add", "subtract"),
}
"""What may stand in a slot of this name, or of this name and a digit; all other slots take numbers."""

_SLOT = re.compile(r"<(\w+)>")
_NUMBER = "[0-9]{1,3}"


def filled(text: str, names: Mapping[str, str]) -> str:
    """The text with its slots filled; a slot with a capital begins a sentence.

    Examples
    --------
    >>> filled("<Item> is <value>.", {"item": "bar K", "value": "7"})
    'Bar K is 7.'
    """
    return _SLOT.sub(lambda slot: _capital(slot[1], names[slot[1].lower()]), text)


def _capital(slot: str, name: str) -> str:
    return name[0].upper() + name[1:] if slot[0].isupper() else name


@dataclass(frozen=True, slots=True)
class Form:
    """A sentence with slots, and its claims."""

    text: str
    claims: tuple[tuple[str, str], ...]
    """Facts and their values, both with slots."""
    pattern: re.Pattern[str]
    """Matches the sentences of this form."""

    def write(self, names: Mapping[str, str], facts: Facts) -> str:
        """The sentence about these names, true by the facts; slots that are not given are looked up in order."""
        known = dict(names)
        for key, value in self.claims:
            slot = value[1:-1]
            if slot not in known and value[0] == "<":
                known[slot] = facts[filled(key, known)]
        return filled(self.text, known)

    def read(self, sentence: str) -> list[tuple[str, str]] | None:
        """The claims of a sentence; None when it has another form."""
        found = self.pattern.fullmatch(sentence)
        if found is None:
            return None
        names = {slot.lower(): _lower(slot, text) for slot, text in found.groupdict().items()}
        return [(filled(key, names), filled(value, names)) for key, value in self.claims]


def _lower(slot: str, text: str) -> str:
    return text[0].lower() + text[1:] if slot[0].isupper() else text


def form(text: str, *claims: str) -> Form:
    """A form from its sentence and its claims, each written as ``fact = value``.

    Examples
    --------
    >>> taller = form("<Item> is <value>.", "height <item> = <value>")
    >>> taller.write({"item": "bar K"}, {"height bar K": "7"})
    'Bar K is 7.'
    >>> taller.read("Bar K is 8.")
    [('height bar K', '8')]
    """
    pairs = [claim.partition(" = ") for claim in claims]
    return Form(text, tuple((key, value) for key, _, value in pairs), re.compile(_pattern(text)))


def _pattern(text: str) -> str:
    pieces, seen = _SLOT.split(text), set[str]()
    for place in range(0, len(pieces), 2):
        pieces[place] = re.escape(pieces[place])
    for place in range(1, len(pieces), 2):
        slot = pieces[place]
        # a name that comes twice must be the same both times
        pieces[place] = f"(?P={slot})" if slot in seen else f"(?P<{slot}>{_choices(slot)})"
        seen.add(slot)
    return "".join(pieces)


def _choices(slot: str) -> str:
    kind = slot.lower().rstrip("0123456789")
    if kind not in FILLERS:
        return _NUMBER
    words = [_capital(slot, name) for name in FILLERS[kind] if not name.isdigit()]
    numbers = [_NUMBER] if "0" in FILLERS[kind] else []
    return "|".join([*map(re.escape, words), *numbers])

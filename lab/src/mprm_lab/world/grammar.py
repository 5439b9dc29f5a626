"""The one grammar that writes solutions and judges them: sentences with slots, and what each claims.

A form is a sentence with slots such as ``<item>``, and claims such as ``total <item> = <total>``. A claim says that a
fact, here ``total cell 7``, has a value. The same form writes a true sentence, with the values of the facts, and
reads a sentence back into its claims.

The facts that claims name:

- ``value ITEM``: the digit of a cell, the height of a bar, what a cell of a scene holds; ``start ITEM`` is ``yes``
  for the first item in the question's order; ``next ITEM``: the item that follows it there.
- ``total ITEM``, ``before ITEM``, ``count ITEM``, ``largest ITEM``: the running total, the total before the item,
  the running count, the running maximum, each in the question's order up to the item.
- ``turn ITEM``, ``sign ITEM``: whether the item is added or subtracted; ``begin``: what the total begins with.
- ``level``: what is asked for is more than it; ``relation ITEM LEVEL``: whether a digit or bar is more than a number
  from 0 to 9.
- ``fits ITEM``: whether the shape in a cell is one that is asked for; ``each ITEM``: its points.
- ``tallest``, ``next tallest``, ``shortest``: bars; ``high``, ``low``, ``difference``: heights of
  the tallest and the shortest, and the one less the other.
- ``first``, ``second``, ``relation``: the two sides of a comparison, and whether the first is more.
- ``largest``, ``at``, ``in``: the largest digit, its cell, and the column or row that is asked for.
- ``result``, ``option LETTER``: what the question asks for; what an option says. ``answer TEXT`` is ``right`` for
  the texts that answer the question.

A sentence names a cell before what it holds, and adds one number at a time to a total: a small policy finds each next
number in one look or one addition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import msgspec

from mprm_lab.world.scene import BARS, CELLS, COLUMNS, LOOKS, MORE, ROWS, Facts

OPTIONS = "ABCD"
FITS = {True: "counts", False: "does not count"}
LARGEST = 99
"""No number of the world is larger."""
NUMBERS = tuple(map(str, range(LARGEST + 1)))
FILLERS: dict[str, tuple[str, ...]] = {
    "answer": (*NUMBERS, *OPTIONS, *BARS, "Yes", "No"),
    "fits": tuple(FITS.values()),
    "item": (*CELLS, *BARS),
    "line": (*ROWS, *COLUMNS),
    "look": LOOKS,
    "relation": tuple(MORE.values()),
    "result": (*NUMBERS, *BARS),
    "sign": ("+", "-"),
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
        match = self.pattern.fullmatch(sentence)
        if match is None:
            return None
        names = {slot.lower(): _lower(slot, text) for slot, text in match.groupdict().items()}
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
    pattern, seen = "", set[str]()
    for number, piece in enumerate(_SLOT.split(text)):
        if number % 2 == 0:
            pattern += re.escape(piece)
        else:  # a name that comes twice must be the same both times
            pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{_choices(piece)})"
            seen.add(piece)
    return pattern


def _choices(slot: str) -> str:
    kind = slot.lower().rstrip("0123456789")
    if kind not in FILLERS:
        return _NUMBER
    words = [_capital(slot, name) for name in FILLERS[kind] if not name.isdigit()]
    numbers = [_NUMBER] if "0" in FILLERS[kind] else []
    return "|".join([*map(re.escape, words), *numbers])


FORMS: dict[str, tuple[Form, ...]] = {
    name: tuple(form(*sentence_and_claims) for sentence_and_claims in forms)
    for name, forms in msgspec.json.decode((files("mprm_lab.world") / "forms.json").read_bytes()).items()
}
"""Ways to say one thing, by what is said."""

NEUTRAL = (
    "Let us go on.",
    "Let us look at the picture.",
    "Now we go on with the rest.",
    "We do this step by step.",
    "Let us read on from here.",
    "Now we look at the next ones.",
    "Let us take one after the other.",
    "We look at it with care.",
)
"""Sentences that claim nothing."""

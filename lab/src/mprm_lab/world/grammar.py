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


_ANSWER = r"the answer is \boxed{<answer>}."
_RIGHT = "answer <answer> = right"
_START = ("value <item> = <value>", "start <item> = yes")
_ITEM = ("value <item> = <value>",)
_ITEMS = (*_ITEM, "value <item2> = <value2>")
_IN_A_ROW = (*_ITEMS, "next <item> = <item2>")
_TOTAL = ("total <item> = <total>",)
_TOTALS = (*_TOTAL, "total <item2> = <total2>")
_TURN = (*_ITEM, "turn <item> = <turn>", *_TOTAL)
_LARGEST = (*_ITEM, "largest <item> = <largest>")
_COUNT = ("count <item> = <count>",)
_COUNTS = (*_COUNT, "count <item2> = <count2>")
_ABOVE = (*_ITEM, "level = <level>", "relation <item> <level> = <relation>", *_COUNT)
_LOOK = ("value <item> = <look>",)
_SEEN = (*_LOOK, "fits <item> = <fits>", *_COUNT)
_EACH = (*_LOOK, "each <item> = <each>")
_TALLEST = (*_ITEM, "tallest = <item>")
_NEXT = (*_ITEM, "next tallest = <item>")
_SHORTEST = (*_ITEM, "shortest = <item>")
_SIDES = ("first = <first>", "second = <second>")
_COMPARED = (*_SIDES, "relation = <relation>")
_RESULT = ("result = <result>", _RIGHT)
_AT = ("largest = <largest>", "at = <item>")
_DIFFERENCE = ("high = <high>", "low = <low>", "difference = <difference>")
_SUM = (*_ITEM, "before <item> = <before>", "sign <item> = <sign>", *_TOTAL)
_SHOWN = form("<Item> shows <value>, and <before> <sign> <value> = <total>.", *_SUM)


def _chosen(opening: str, letter: str) -> Form:
    """The options up to the one that says the result."""
    slots = {other: f"<result{number}>" for number, other in enumerate(OPTIONS[: OPTIONS.index(letter)], 1)}
    slots[letter] = "<result>"
    options = ", ".join(f"option {other} says {slot}" for other, slot in slots.items())
    claims = [f"option {other} = {slot}" for other, slot in slots.items()]
    return form(f"{opening}, {options}, so {_ANSWER}", "result = <result>", *claims, _RIGHT)


FORMS: dict[str, tuple[Form, ...]] = {
    "start": (
        form("We start at <item> with <value>.", *_START),
        form("The first one is <item> with <value>.", *_START),
    ),
    "total": (
        form("<Item> is <value>, so the total is <total>.", *_ITEM, *_TOTAL),
        _SHOWN,
        form("At <item> we add <value> and get <total>.", *_ITEM, "sign <item> = +", *_TOTAL),
    ),
    "total of two": (
        form(
            "<Item> is <value>, which makes <total>, and <item2> is <value2>, which makes <total2>.",
            *(*_IN_A_ROW, *_TOTALS),
        ),
        form(
            "<Item> adds <value> and gives <total>, then <item2> adds <value2> and gives <total2>.",
            *(*_IN_A_ROW, "sign <item> = +", "sign <item2> = +", *_TOTALS),
        ),
    ),
    "begin": (
        form("We begin with <begin>.", "begin = <begin>"),
        form("At first we have <begin>.", "begin = <begin>"),
    ),
    "turn": (
        form("<Item> is <value>, so we <turn> it and get <total>.", *_TURN),
        _SHOWN,
        form("Next we go to <item>, <turn> <value> and get <total>.", *_TURN),
    ),
    "largest": (
        form("<Item> is <value>, so the largest so far is <largest>.", *_LARGEST),
        form("At <item> we see <value>, and the largest so far is <largest>.", *_LARGEST),
    ),
    "largest of two": (
        form(
            "<Item> is <value> and <item2> is <value2>, so the largest so far is <largest>.",
            *(*_IN_A_ROW, "largest <item2> = <largest>"),
        ),
    ),
    "largest answer": (
        form(f"The largest digit is <largest> at <item> in <line>, so {_ANSWER}", *_AT, "in = <line>", _RIGHT),
        form(f"We find the largest digit <largest> at <item>, and {_ANSWER}", *_AT, _RIGHT),
    ),
    "above": (
        form("<Item> is <value>, which is <relation> <level>, so the count is <count>.", *_ABOVE),
        form("At <item> we see <value>, and the count is <count>.", *_ITEM, *_COUNT),
    ),
    "above of two": (
        form(
            "<Item> is <value>, which makes the count <count>, and <item2> is <value2>, which makes it <count2>.",
            *(*_IN_A_ROW, *_COUNTS),
        ),
    ),
    "seen": (
        form("<Item> has <look>, which <fits>, so the count is <count>.", *_SEEN),
        form("At <item> we see <look>, which <fits>, and the count is <count>.", *_SEEN),
    ),
    "seen of two": (
        form(
            "<Item> has <look>, which makes the count <count>, and <item2> has <look2>, which makes it <count2>.",
            *(*_LOOK, "value <item2> = <look2>", "next <item> = <item2>", *_COUNTS),
        ),
    ),
    "points": (
        form(
            "<Item> has <look> for <each>, and <before> + <each> = <total>.",
            *(*_EACH, "before <item> = <before>", *_TOTAL),
        ),
        form("At <item> we see <look> worth <each>, so the total is <total>.", *_EACH, *_TOTAL),
    ),
    "tallest": (
        form("The tallest bar is <item> with <value>.", *_TALLEST),
        form("The largest height is <value> at <item>.", *_TALLEST),
    ),
    "next tallest": (
        form("The next tallest bar is <item> with <value>.", *_NEXT),
        form("After it comes <item> with <value>.", *_NEXT),
    ),
    "shortest": (
        form("The shortest bar is <item> with <value>.", *_SHORTEST),
        form("The smallest height is <value> at <item>.", *_SHORTEST),
    ),
    "two tallest": (
        form(
            "The tallest bars are <item> with <value> and then <item2> with <value2>.",
            *(*_ITEMS, "tallest = <item>", "next tallest = <item2>"),
        ),
    ),
    "tallest and shortest": (
        form(
            "The tallest bar is <item> with <value> and the shortest is <item2> with <value2>.",
            *(*_ITEMS, "tallest = <item>", "shortest = <item2>"),
        ),
    ),
    "difference": (form("The difference is <high> - <low> = <difference>.", *_DIFFERENCE),),
    "compared": (form("We see that <first> is <relation> <second>.", *_COMPARED),),
    "compared answer": (
        form(f"We see that <first> is <relation> <second>, so {_ANSWER}", *_COMPARED, _RIGHT),
        form(f"We compare <first> with <second>, and {_ANSWER}", *_SIDES, _RIGHT),
    ),
    "open answer": (
        form(f"This gives <result>, so {_ANSWER}", *_RESULT),
        form(f"We get <result> in the end, and {_ANSWER}", *_RESULT),
    ),
    **{
        f"choice answer {letter}": (_chosen("This gives <result>", letter), _chosen("We get <result>", letter))
        for letter in OPTIONS
    },
    "plain answer": (form(f"So {_ANSWER}", _RIGHT), form(f"Therefore {_ANSWER}", _RIGHT)),
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

"""Every sentence that a solution can be made of, and what it claims.

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

A sentence names a place before what is there, and takes one number after the other into a total: a small policy finds
each next number in one look or one addition.

"""

from __future__ import annotations

from mprm_lab.world.names import OPTIONS
from mprm_lab.world.sentence import Form, form

_ANSWER = r"the answer is \boxed{<answer>}."
_RIGHT = "answer <answer> = right"
_ITEM = "value <item> = <value>"
_ITEMS = (_ITEM, "value <item2> = <value2>")
_IN_A_ROW = (*_ITEMS, "next <item> = <item2>")
_TOTALS = ("total <item> = <total>", "total <item2> = <total2>")
_COUNTS = ("count <item> = <count>", "count <item2> = <count2>")
_LOOK = "value <item> = <look>"
_SEEN = (_LOOK, "fits <item> = <fits>", "count <item> = <count>")
_COMPARED = ("first = <first>", "second = <second>")
_SHOWN = form(
    "<Item> shows <value>, and <before> <sign> <value> = <total>.",
    _ITEM,
    "before <item> = <before>",
    "sign <item> = <sign>",
    "total <item> = <total>",
)


def _chosen(opening: str, letter: str) -> Form:
    """The options up to the one that says the result."""
    others = OPTIONS[: OPTIONS.index(letter)]
    said = [f"option {other} says <result{number}>" for number, other in enumerate(others, 1)]
    told = ", ".join([*said, f"option {letter} says <result>"])
    claims = [f"option {other} = <result{number}>" for number, other in enumerate(others, 1)]
    return form(
        f"{opening}, {told}, so {_ANSWER}", "result = <result>", *claims, f"option {letter} = <result>", _RIGHT
    )


FORMS: dict[str, tuple[Form, ...]] = {
    "start": (
        form("We start at <item> with <value>.", _ITEM, "start <item> = yes"),
        form("The first one is <item> with <value>.", _ITEM, "start <item> = yes"),
    ),
    "total": (
        form("<Item> is <value>, so the total is <total>.", _ITEM, "total <item> = <total>"),
        _SHOWN,
        form("At <item> we add <value> and get <total>.", _ITEM, "sign <item> = +", "total <item> = <total>"),
    ),
    "total of two": (
        form(
            "<Item> is <value>, which makes <total>, and <item2> is <value2>, which makes <total2>.",
            *_IN_A_ROW,
            *_TOTALS,
        ),
        form(
            "<Item> adds <value> and gives <total>, then <item2> adds <value2> and gives <total2>.",
            *_IN_A_ROW,
            "sign <item> = +",
            "sign <item2> = +",
            *_TOTALS,
        ),
    ),
    "begin": (
        form("We begin with <begin>.", "begin = <begin>"),
        form("At first we have <begin>.", "begin = <begin>"),
    ),
    "turn": (
        form(
            "<Item> is <value>, so we <turn> it and get <total>.",
            _ITEM,
            "turn <item> = <turn>",
            "total <item> = <total>",
        ),
        _SHOWN,
        form(
            "Next we go to <item>, <turn> <value> and get <total>.",
            _ITEM,
            "turn <item> = <turn>",
            "total <item> = <total>",
        ),
    ),
    "largest": (
        form("<Item> is <value>, so the largest so far is <largest>.", _ITEM, "largest <item> = <largest>"),
        form("At <item> we see <value>, and the largest so far is <largest>.", _ITEM, "largest <item> = <largest>"),
    ),
    "largest of two": (
        form(
            "<Item> is <value> and <item2> is <value2>, so the largest so far is <largest>.",
            *_IN_A_ROW,
            "largest <item2> = <largest>",
        ),
    ),
    "largest answer": (
        form(
            f"The largest digit is <largest> at <item> in <line>, so {_ANSWER}",
            "largest = <largest>",
            "at = <item>",
            "in = <line>",
            _RIGHT,
        ),
        form(
            f"We find the largest digit <largest> at <item>, and {_ANSWER}",
            "largest = <largest>",
            "at = <item>",
            _RIGHT,
        ),
    ),
    "above": (
        form(
            "<Item> is <value>, which is <relation> <level>, so the count is <count>.",
            _ITEM,
            "level = <level>",
            "relation <item> <level> = <relation>",
            "count <item> = <count>",
        ),
        form("At <item> we see <value>, and the count is <count>.", _ITEM, "count <item> = <count>"),
    ),
    "above of two": (
        form(
            "<Item> is <value>, which makes the count <count>, and <item2> is <value2>, which makes it <count2>.",
            *_IN_A_ROW,
            *_COUNTS,
        ),
    ),
    "seen": (
        form("<Item> has <look>, which <fits>, so the count is <count>.", *_SEEN),
        form("At <item> we see <look>, which <fits>, and the count is <count>.", *_SEEN),
    ),
    "seen of two": (
        form(
            "<Item> has <look>, which makes the count <count>, and <item2> has <look2>, which makes it <count2>.",
            _LOOK,
            "value <item2> = <look2>",
            "next <item> = <item2>",
            *_COUNTS,
        ),
    ),
    "points": (
        form(
            "<Item> has <look> for <each>, and <before> + <each> = <total>.",
            _LOOK,
            "each <item> = <each>",
            "before <item> = <before>",
            "total <item> = <total>",
        ),
        form(
            "At <item> we see <look> worth <each>, so the total is <total>.",
            _LOOK,
            "each <item> = <each>",
            "total <item> = <total>",
        ),
    ),
    "tallest": (
        form("The tallest bar is <item> with <value>.", _ITEM, "tallest = <item>"),
        form("The largest height is <value> at <item>.", _ITEM, "tallest = <item>"),
    ),
    "next tallest": (
        form("The next tallest bar is <item> with <value>.", _ITEM, "next tallest = <item>"),
        form("After it comes <item> with <value>.", _ITEM, "next tallest = <item>"),
    ),
    "shortest": (
        form("The shortest bar is <item> with <value>.", _ITEM, "shortest = <item>"),
        form("The smallest height is <value> at <item>.", _ITEM, "shortest = <item>"),
    ),
    "two tallest": (
        form(
            "The tallest bars are <item> with <value> and then <item2> with <value2>.",
            *_ITEMS,
            "tallest = <item>",
            "next tallest = <item2>",
        ),
    ),
    "tallest and shortest": (
        form(
            "The tallest bar is <item> with <value> and the shortest is <item2> with <value2>.",
            *_ITEMS,
            "tallest = <item>",
            "shortest = <item2>",
        ),
    ),
    "difference": (
        form(
            "The difference is <high> - <low> = <difference>.",
            "high = <high>",
            "low = <low>",
            "difference = <difference>",
        ),
    ),
    "compared": (form("We see that <first> is <relation> <second>.", *_COMPARED, "relation = <relation>"),),
    "compared answer": (
        form(
            f"We see that <first> is <relation> <second>, so {_ANSWER}", *_COMPARED, "relation = <relation>", _RIGHT
        ),
        form(f"We compare <first> with <second>, and {_ANSWER}", *_COMPARED, _RIGHT),
    ),
    "open answer": (
        form(f"This gives <result>, so {_ANSWER}", "result = <result>", _RIGHT),
        form(f"We get <result> in the end, and {_ANSWER}", "result = <result>", _RIGHT),
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

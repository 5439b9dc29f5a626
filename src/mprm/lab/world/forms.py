r"""Every sentence that a solution can be made of, and what it claims.

The facts that claims name:

- ``value ITEM``: the digit of a cell, the height of a bar; ``start ITEM`` is ``yes`` for the first item in the
  question's order; ``next ITEM``: the item that follows it there.
- ``total ITEM``, ``before ITEM``, ``count ITEM``, ``largest ITEM``: the running total, the total before the item,
  the running count, the running maximum, each in the question's order up to the item.
- ``turn ITEM``, ``sign ITEM``: whether the item is added or subtracted; ``begin``: what the total begins with.
- ``number THING LINE``, ``total THING LINE``, ``before THING LINE``: how many things a row or column holds, and
  running totals; ``number THING``: how many there are.
- ``digit PLACE LINE``, ``sum LINE``: digits of a row or column, from the left or the top, and their sum.
- ``relation ITEM LEVEL``: whether a bar is higher than a level from 0 to 9.
- ``each THING``, ``worth THING``, ``points THING``: points of one, of all, and running totals by kind of shape.
- ``tallest``, ``next tallest``, ``shortest``: bars; ``high``, ``low``: heights of the tallest and the shortest.
- ``first``, ``second``, ``relation``: the two sides of a comparison, and whether the first is more.
- ``largest``, ``place``: the largest digit, and the column or row it is in.
- ``result``, ``option LETTER``: what the question asks for; what an option says. ``answer TEXT`` is ``right`` for
  the texts that answer the question.
"""

from __future__ import annotations

from mprm.lab.world.sentence import Form, form

_ANSWER = r"the answer is \boxed{<answer>}."
_RIGHT = "answer <answer> = right"
_ITEM = "value <item> = <value>"
_ITEMS = (_ITEM, "value <item2> = <value2>")
_IN_A_ROW = (*_ITEMS, "next <item> = <item2>")
_NUMBER = "number <thing> <line> = <number>"
_COMPARED = ("first = <first>", "second = <second>")
_POINTS = ("number <thing> = <number>", "each <thing> = <each>", "points <thing> = <total>")
_CHOSEN = ("result = <result>", "option <letter> = <result>", _RIGHT)
_SHOWN = form(
    "<Item> shows <value>, and <before> <sign> <value> = <total>.",
    _ITEM,
    "before <item> = <before>",
    "sign <item> = <sign>",
    "total <item> = <total>",
)

FORMS: dict[str, tuple[Form, ...]] = {
    "start": (
        form("We start at <item> with <value>.", _ITEM, "start <item> = yes"),
        form("The first one is <item> with <value>.", _ITEM, "start <item> = yes"),
    ),
    "total": (
        form("<Item> is <value>, so the total is <total>.", _ITEM, "total <item> = <total>"),
        _SHOWN,
        form("We add <value> from <item> and get <total>.", _ITEM, "sign <item> = +", "total <item> = <total>"),
    ),
    "total of two": (
        form(
            "<Item> is <value> and <item2> is <value2>, so the total is <total>.",
            *_IN_A_ROW,
            "total <item2> = <total>",
        ),
        form(
            "We add <value> from <item> and <value2> from <item2> and get <total>.",
            *_IN_A_ROW,
            "sign <item> = +",
            "sign <item2> = +",
            "total <item2> = <total>",
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
            "Now we <turn> <value> from <item> and get <total>.",
            _ITEM,
            "turn <item> = <turn>",
            "total <item> = <total>",
        ),
    ),
    "largest": (
        form("<Item> is <value>, so the largest so far is <largest>.", _ITEM, "largest <item> = <largest>"),
        form("We see <value> at <item>, and the largest so far is <largest>.", _ITEM, "largest <item> = <largest>"),
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
            f"The largest digit is <largest> in place <place>, so {_ANSWER}",
            "largest = <largest>",
            "place = <place>",
            _RIGHT,
        ),
        form(f"We find the largest digit <largest>, and {_ANSWER}", "largest = <largest>", _RIGHT),
    ),
    "above": (
        form(
            "<Item> is <value>, which is <relation> <level>, so the count is <count>.",
            _ITEM,
            "relation <item> <level> = <relation>",
            "count <item> = <count>",
        ),
        form("We see <value> at <item>, and the count is <count>.", _ITEM, "count <item> = <count>"),
    ),
    "above of two": (
        form(
            "<Item> is <value> and <item2> is <value2>, so the count is <count>.",
            *_IN_A_ROW,
            "count <item2> = <count>",
        ),
    ),
    "number": (
        form(
            "The number of <thing> in <line> is <number>, so the total is <total>.",
            _NUMBER,
            "total <thing> <line> = <total>",
        ),
        form(
            "In <line> we count <number> for <thing>, and <before> + <number> = <total>.",
            _NUMBER,
            "before <thing> <line> = <before>",
            "total <thing> <line> = <total>",
        ),
        form("<Line> adds <number> to the <thing>, which makes <total>.", _NUMBER, "total <thing> <line> = <total>"),
    ),
    "number of two": (
        form(
            "The number of <thing> is <number> in <line> and <number2> in <line2>, so the total is <total>.",
            _NUMBER,
            "number <thing> <line2> = <number2>",
            "next <line> = <line2>",
            "total <thing> <line2> = <total>",
        ),
    ),
    "number in all": (
        form("The number of <thing> is <number>.", "number <thing> = <number>"),
        form("In all we count <number> for <thing>.", "number <thing> = <number>"),
    ),
    "sum": (
        form(
            "The sum of <line> is <a> + <b> + <c> + <d> = <sum>.",
            *(f"digit {place} <line> = <{slot}>" for place, slot in enumerate("abcd", 1)),
            "sum <line> = <sum>",
        ),
        form(
            "<Line> shows <a>, <b>, <c> and <d>, so its sum is <sum>.",
            *(f"digit {place} <line> = <{slot}>" for place, slot in enumerate("abcd", 1)),
            "sum <line> = <sum>",
        ),
    ),
    "points": (
        form(
            "The number of <thing> is <number>, and <number> times <each> is <worth>, so the total is <total>.",
            *_POINTS,
            "worth <thing> = <worth>",
        ),
        form("We count <number> for <thing> at <each> points, so the total is <total>.", *_POINTS),
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
        form("The difference is <high> - <low> = <result>.", "high = <high>", "low = <low>", "result = <result>"),
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
    "choice answer": (
        form(f"This gives <result>, which is option <letter>, so {_ANSWER}", *_CHOSEN),
        form(f"Option <letter> says <result>, so {_ANSWER}", *_CHOSEN),
    ),
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

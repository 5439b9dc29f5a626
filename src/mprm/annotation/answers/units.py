"""The unit behind a number: told apart from it, and given one name however it is written."""

from __future__ import annotations

import re

_NAMES = {
    "degree": "degree degrees deg",
    "%": "% percent",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "l": "l liter liters litre litres",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "unit": "unit units",
    "dollar": "dollar dollars",
    "cent": "cent cents",
    "rad": "rad radian radians",
    "mph": "mph",
    "N": "newton newtons",
    "J": "j joule joules",
    "W": "w watt watts",
    "V": "v volt volts",
    "Hz": "hz hertz",
}
UNITS = {word: symbol for symbol, words in _NAMES.items() for word in words.split()}
"""Each way to write a unit, in lower case, with the name that stands for it."""

_JOINS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cubed": "^3", "per": "/", "/": "/"}

_NO_UNIT = frozenset(
    {"and", "nor", "not", "none", "plus", "minus", "times", "over", "divided", "half", "third", "quarter", "dozen",
     "hundred", "thousand", "million", "billion", "trillion", "factorial", "root", "mod", "when", "where", "are",
     "remainder", "with", "from", "than", "squared", "cubed"}
)  # fmt: skip
"""Words behind a number that change what it says."""

_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*$")
_PERCENT = re.compile(r"\s*\\?%$")
_WRAPPED = re.compile(
    r"\s*(?:\\(?:text|textrm|mathrm|mbox|rm)\s*)?\{([A-Za-z ./]+)\}\s*((?:\^\s*(?:[23]|\{\s*[23]\s*\}))?)\s*$"
)
_BARE = re.compile(r"(?<=[0-9})])(\s*)([A-Za-z][A-Za-z /]*\.?)\s*((?:\^\s*(?:[23]|\{\s*[23]\s*\}))?)$")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LETTER = re.compile(r"[A-Za-z]")
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")


def unit_named(words: str) -> str | None:
    """The one name of a unit; None when the words are no unit.

    Examples
    --------
    >>> unit_named("square inches"), unit_named("km per hour"), unit_named("apples")
    ('in^2', 'km/h', None)
    """
    found, power = "", ""
    for word in words.lower().replace("/", " / ").replace(".", " ").split():
        square = next((prefix for prefix in ("square", "cubic") if word.startswith(prefix) and word != prefix), None)
        if square is not None:
            word, power = word.removeprefix(square), _JOINS[square]
        if word in ("squared", "cubed"):
            found += _JOINS[word]
        elif word in _JOINS:
            power, found = (power, found + "/") if _JOINS[word] == "/" else (_JOINS[word], found)
        elif word in UNITS:
            found, power = found + UNITS[word] + power, ""
        else:
            return None
    return found if found and not power and not found.endswith("/") else None


def split_unit(latex: str, *, is_number: bool) -> tuple[str, str]:
    """The expression and its unit, ``""`` when there is none.

    Parameters
    ----------
    is_number
        Whether what stands before the words is a plain number, so that any words behind it count what
        the number counts: ``12 apples``. After anything else only words that are units for sure are cut off.
    """
    if found := _DEGREES.search(latex):
        # the sine of 30 degrees is not the sine of 30
        return (latex, "") if _TRIGONOMETRY.search(latex) else (latex[: found.start()], "degree")
    if found := _PERCENT.search(latex):
        return latex[: found.start()], "%"
    if found := _WRAPPED.search(latex):
        words, power, is_apart = found[1], found[2], True
    elif found := _BARE.search(latex):
        words, power, is_apart = found[2], found[3], bool(found[1])
    else:
        return latex, ""
    body = latex[: found.start()].rstrip()
    # 5m and 5s may be products, 5 m and 5cm are lengths; 3 h 5 min is more than a number of minutes
    if not body or (len(words) == 1 and not is_apart) or _LETTER.search(_COMMAND.sub("", body)):
        return latex, ""
    unit = unit_named(words)
    if unit is None and is_number and not power:
        unit = _counted(words)
    return (latex, "") if unit is None else (body, unit + re.sub(r"[\s{}]", "", power))


def _counted(words: str) -> str | None:
    """What a number counts, in the singular; None when the words may mean more than that."""
    parts = words.lower().replace(".", " ").split()
    if not parts or any(len(part) < 3 or part in _NO_UNIT or "/" in part for part in parts):
        return None
    return " ".join(part.removesuffix("s") for part in parts)

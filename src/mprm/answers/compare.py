r"""What an answer says, a number, words or mathematics, and whether two answers are the same without algebra.

Numbers are read exactly and written in one way; the unit behind a number is split off and given one name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from mprm.answers.extract import cleaned

LONGEST_NUMBER = 40
"""Characters of the longest number that is read here; longer ones are left to the algebra system."""
ROUNDED = 3
"""A gold answer with so many digits after the point, or more, is taken for a rounded value."""

_SIGN = r"(?P<sign>[-+]?)\s*"
_POWER = (
    r"(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<power>[-+]?[0-9]{1,2})\s*\}|(?P<digit>[0-9]))"
    r"|[eE](?P<e>[-+]?[0-9]{1,2}))?"
)
_DECIMAL = re.compile(_SIGN + r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.(?P<decimals>[0-9]*))?" + _POWER)
_SLASH = re.compile(_SIGN + r"(?:(?P<whole>[0-9]+)\s+)?(?P<above>[0-9]+)\s*/\s*(?P<below>[0-9]+)")
_FRAC = re.compile(
    _SIGN + r"(?P<whole>[0-9]*)\s*\\frac\s*\{\s*(?P<above>[-+]?[0-9]+)\s*\}\s*\{\s*(?P<below>[0-9]+)\s*\}"
)


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value, and how many digits stood after its point."""

    value: Fraction
    decimals: int | None = None
    """None where the number was written without a point: it is exact."""

    def __str__(self) -> str:
        """Decimal where that is exact and short, else a fraction: ``0.5``, ``1/3``."""
        n_digits = _n_decimals(self.value, 12)
        if n_digits is None:
            return f"{self.value.numerator}/{self.value.denominator}"
        return f"{Decimal(f'{(self.value * 10**n_digits).numerator}e-{n_digits}'):f}"

    @property
    def tolerance(self) -> Fraction:
        """How far the exact value may be from this gold number: half a unit in the last digit of a rounded one."""
        if self.decimals is None or self.decimals < ROUNDED:
            return Fraction(0)
        return Fraction(1, 2 * 10**self.decimals)

    def without_noise(self) -> Number:
        """The number without what binary arithmetic left behind: 5.000000000000001 is 5."""
        if self.decimals is None or self.decimals <= 10:
            return self
        value = round(self.value, 9)
        return Number(value, _n_decimals(value, 9))


def _n_decimals(value: Fraction, most: int) -> int | None:
    """Digits after the point that write the value exactly; None where more than ``most`` are needed."""
    return next((n for n in range(most + 1) if (value * 10**n).denominator == 1), None)


def number_in(latex: str) -> Number | None:
    r"""The number that the text is, whole; None when it is anything else.

    Reads ``-1,234.5``, ``1/2``, ``\frac{1}{2}``, ``1 1/2``, ``3\frac{1}{2}``, ``1.2\times 10^{3}`` and ``2e-3``.

    >>> str(number_in(r"\frac{1}{2}")), str(number_in("1,000.50")), number_in("2x")
    ('0.5', '1000.5', None)
    """
    text = latex.strip()
    if len(text) > LONGEST_NUMBER:
        return None
    if fraction := _SLASH.fullmatch(text) or _FRAC.fullmatch(text):
        above, below = int(fraction["above"]), int(fraction["below"])
        if below == 0 or (fraction["whole"] and above < 0):
            return None
        value = Fraction(above, below) + int(fraction["whole"] or 0)
        return Number(-value if fraction["sign"] == "-" else value)
    if (number := _DECIMAL.fullmatch(text)) and (number["whole"] or number["decimals"]):
        decimals = number["decimals"]
        power = int(number["power"] or number["digit"] or number["e"] or 0)
        value = Fraction(f"{(number['whole'] or '0').replace(',', '')}.{decimals or '0'}") * Fraction(10) ** power
        is_decimal = decimals is not None and power == 0
        return Number(-value if number["sign"] == "-" else value, len(decimals) if is_decimal else None)
    return None


def equal_numbers(answer: Number, gold: Number) -> bool:
    """Whether the numbers are the same, to the precision of the gold number.

    A gold number with three digits after its point or more is a rounded one: an exact answer, or one with as
    many digits, need only round to it. 2.0944 takes 2.09440 and 2.09439510, not 2.09.
    """
    answer, gold = answer.without_noise(), gold.without_noise()
    if answer.value == gold.value:
        return True
    if not gold.tolerance or (answer.decimals is not None and answer.decimals < (gold.decimals or 0)):
        return False
    return abs(answer.value - gold.value) <= gold.tolerance


_UNIT_NAMES = {
    "degree": "degree degrees deg", "%": "% percent", "rad": "rad radian radians", "unit": "unit units",
    "mm": "mm millimeter millimeters millimetre millimetres", "in": "in inch inches", "ft": "ft foot feet",
    "cm": "cm centimeter centimeters centimetre centimetres", "yd": "yd yard yards", "mi": "mi mile miles",
    "km": "km kilometer kilometers kilometre kilometres", "m": "m meter meters metre metres", "mph": "mph",
    "mg": "mg milligram milligrams", "g": "g gram grams", "kg": "kg kilogram kilograms",
    "ml": "ml milliliter milliliters millilitre millilitres", "l": "l liter liters litre litres",
    "s": "s sec secs second seconds", "min": "min mins minute minutes", "h": "h hr hrs hour hours",
    "day": "day days", "week": "week weeks", "month": "month months", "year": "year years yr yrs",
    "dollar": "dollar dollars", "cent": "cent cents", "N": "newton newtons", "J": "j joule joules",
    "W": "w watt watts", "V": "v volt volts", "Hz": "hz hertz",
}  # fmt: skip
UNITS = {word: symbol for symbol, words in _UNIT_NAMES.items() for word in words.split()}
"""The symbol of each way to write a unit, in lower case."""

_JOINS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cubed": "^3", "per": "/", "/": "/"}
_UNIT_WORD = re.compile(r"(?:square|cubic)(?!d\b)|[^\s./]+|/")

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
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
"""A letter that is not part of a LaTeX command."""
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")


def unit_named(words: str) -> str | None:
    """The symbol of a unit; None when the words are no unit.

    >>> unit_named("square inches"), unit_named("km per hour"), unit_named("apples")
    ('in^2', 'km/h', None)
    """
    unit, power = "", ""
    for word in _UNIT_WORD.findall(words.lower()):
        if word in ("per", "/") or (word in ("squared", "cubed") and unit):
            unit += _JOINS[word]
        elif word in _JOINS:
            power = _JOINS[word]
        elif word in UNITS:
            unit, power = unit + UNITS[word] + power, ""
        else:
            return None
    return unit if unit and not power and not unit.endswith("/") else None


def split_unit(latex: str) -> tuple[str, str]:
    """The expression and its unit, ``""`` when there is none.

    Any words behind a plain number say what it counts: ``12 apples``. Behind anything else only units are cut off.
    """
    if degrees := _DEGREES.search(latex):
        # the sine of 30 degrees is not the sine of 30
        return (latex, "") if _TRIGONOMETRY.search(latex) else (latex[: degrees.start()], "degree")
    if percent := _PERCENT.search(latex):
        return latex[: percent.start()], "%"
    if unit_match := _WRAPPED.search(latex):
        words, power, is_apart = unit_match[1], unit_match[2], True
    elif unit_match := _BARE.search(latex):
        words, power, is_apart = unit_match[2], unit_match[3], bool(unit_match[1])
    else:
        return latex, ""
    body = latex[: unit_match.start()].rstrip()
    # 5m and 5s may be products, 5 m and 5cm are lengths; 3 h 5 min is more than a number of minutes
    if not body or (len(words) == 1 and not is_apart) or _VARIABLE.search(body):
        return latex, ""
    unit = unit_named(words)
    if unit is None and not power and number_in(body) is not None:
        unit = _counted(words)
    return (latex, "") if unit is None else (body, unit + re.sub(r"[\s{}]", "", power))


def _counted(words: str) -> str | None:
    """What a number counts, in the singular; None when the words may mean more than that."""
    parts = words.lower().replace(".", " ").split()
    if not parts or any(len(part) < 3 or part in _NO_UNIT or "/" in part for part in parts):
        return None
    return " ".join(part.removesuffix("s") for part in parts)


LONGEST_ANSWER = 1000
"""Characters of the longest answer that is read as anything but words."""

_NO_WORD = re.compile(r"\\(?:begin|end)\s*\{[a-z]*\*?\}|\\[A-Za-z]+|\b(?:or|and)\b")
"""What is no word in mathematics."""
_WORD = re.compile(r"[^\W\d_]{3,}|(?=[^\x00-\x7f])[^\W\d_]")
"""Three letters in a row, or a letter of another alphabet, are no product of variables."""
_PAIR = re.compile(r"([0-9]{1,6})\s*:\s*([0-9]{1,6})")
_SPACE = re.compile(r"\s*(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")
"""White space that can go: not between two letters or digits, where ``1 2`` would become ``12``."""
_YES_NO = re.compile(r"(yes|no)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """An answer as `read_answer` parses it."""

    kind: Literal["number", "words", "mathematics"]
    latex: str
    """The answer without decoration and unit: the input of the algebra system."""
    key: str
    """The same for answers that are the same, as far as that can be told without algebra."""
    unit: str = ""
    number: Number | None = None


@lru_cache(maxsize=1 << 14)
def read_answer(text: str) -> ParsedAnswer:
    r"""The answer as it stands in a response or a data set, parsed.

    Equal keys are equal answers but for units: numbers are written in one way (``0.5``, ``1/2`` and ``\frac12``
    share ``0.5``) and lose their unit, save ``%``; words lose case, punctuation and surplus space; of mathematics
    only the ways of writing LaTeX are made one. ``2\sqrt{3}`` and ``\sqrt{12}`` keep two keys: telling that they
    are equal takes algebra.

    >>> read_answer(r"$\dfrac12$").key, read_answer("5 cm").key, read_answer("The  May.").key
    ('0.5', '5', 'the may')
    """
    latex = cleaned(text)
    if len(latex) > LONGEST_ANSWER:
        return ParsedAnswer(kind="words", latex=latex, key=_words_key(latex))
    body, unit = split_unit(latex)
    number = number_in(body)
    if number is not None:
        key = str(number.without_noise()) + ("%" if unit == "%" else "")
        return ParsedAnswer(kind="number", latex=body, key=key, unit=unit, number=number)
    if pair := _PAIR.fullmatch(body):
        # a time or a ratio: 5:0 is 5:00
        return ParsedAnswer(kind="mathematics", latex=body, key=f"{int(pair[1])}:{int(pair[2])}", unit=unit)
    if _WORD.search(_NO_WORD.sub(" ", body)) or not body:
        return ParsedAnswer(kind="words", latex=latex, key=_words_key(latex))
    return ParsedAnswer(kind="mathematics", latex=body, key=_SPACE.sub("", body), unit=unit)


def _words_key(latex: str) -> str:
    plain = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)\s*(?=\{)|[{}*_\"'“”‘’`]|[.,;:!?](?=\s|$)", "", latex)
    return " ".join(plain.casefold().split())


def same_answer(answer: ParsedAnswer, gold: ParsedAnswer) -> bool | None:
    """Whether the answers are the same; None when only algebra can tell."""
    if answer.number is not None and gold.number is not None:
        if equal_numbers(answer.number, gold.number):
            return not (answer.unit and gold.unit) or answer.unit == gold.unit
        if {answer.unit, gold.unit} != {"", "%"}:
            return False
        # 50% stands for 50, and for 0.5 too
        return answer.number.value * (100 if gold.unit == "%" else Fraction(1, 100)) == gold.number.value
    if answer.unit and gold.unit and answer.unit != gold.unit:
        return False
    if answer.key == gold.key:
        return True
    if "words" in (answer.kind, gold.kind):
        first = _YES_NO.match(answer.key)
        return first is not None and first[1] == gold.key
    pairs = [key for key in (answer.key, gold.key) if _PAIR.fullmatch(key)]
    if len(pairs) == 2 or any(pair.endswith(":0") for pair in pairs):
        return False  # as fractions 5:10 and 10:20 are equal, as times they are not; 5:00 is a time for sure
    return None

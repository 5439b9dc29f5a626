"""Plain numbers in an answer: read exactly, written in one way.

The unit behind a number: told apart from it, and given one name however it is written.

What an answer says: a number, words, or mathematics; and the key under which equal answers vote.

Whether two expressions are equal, by math-verify; runs in a worker process, as it may never come back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from mprm.answers.extract import cleaned

NUMBERS_LONGEST = 40
"""Digits of the longest number that is read here; longer ones are left to the algebra system."""

ROUNDED = 3
"""A gold answer with so many digits after the point, or more, is taken for a rounded value."""

_SIGN = r"(?P<sign>[-+]?)\s*"
_POWER = (
    r"(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<power>[-+]?[0-9]{1,2})\s*\}|(?P<digit>[0-9]))"
    r"|[eE](?P<e>[-+]?[0-9]{1,2}))?"
)
_DECIMAL = re.compile(_SIGN + r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.(?P<decimals>[0-9]*))?" + _POWER)
_STROKE = re.compile(_SIGN + r"(?:(?P<whole>[0-9]+)\s+)?(?P<above>[0-9]+)\s*/\s*(?P<below>[0-9]+)")
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
        n_digits = next((n for n in range(13) if (self.value * 10**n).denominator == 1), None)
        if n_digits is None:
            return f"{self.value.numerator}/{self.value.denominator}"
        if n_digits == 0:
            return str(self.value.numerator)
        digits = str(abs((self.value * 10**n_digits).numerator)).rjust(n_digits + 1, "0")
        return f"{'-' if self.value < 0 else ''}{digits[:-n_digits]}.{digits[-n_digits:]}"


def number_in(latex: str) -> Number | None:
    r"""The number that the text is, whole; None when it is anything else.

    Reads ``-1,234.5``, ``1/2``, ``\frac{1}{2}``, ``1 1/2``, ``3\frac{1}{2}``, ``1.2\times 10^{3}`` and ``2e-3``.

    Examples
    --------
    >>> str(number_in(r"\frac{1}{2}")), str(number_in("1,000.50")), number_in("2x")
    ('0.5', '1000.5', None)
    """
    text = latex.strip()
    if len(text) > NUMBERS_LONGEST:
        return None
    if found := _STROKE.fullmatch(text) or _FRAC.fullmatch(text):
        above, below = int(found["above"]), int(found["below"])
        if below == 0 or (found["whole"] and above < 0):
            return None
        value = Fraction(above, below) + int(found["whole"] or 0)
        return Number(-value if found["sign"] == "-" else value)
    if (found := _DECIMAL.fullmatch(text)) and (found["whole"] or found["decimals"]):
        decimals = found["decimals"]
        value = Fraction(f"{(found['whole'] or '0').replace(',', '')}.{decimals or '0'}")
        power = int(found["power"] or found["digit"] or found["e"] or 0)
        value *= Fraction(10) ** power
        is_decimal = decimals is not None and power == 0
        return Number(-value if found["sign"] == "-" else value, len(decimals) if is_decimal else None)
    return None


def is_rounded(gold: Number) -> bool:
    """Whether a gold number is taken for a rounded value."""
    return gold.decimals is not None and gold.decimals >= ROUNDED


def without_noise(number: Number) -> Number:
    """The number without what binary arithmetic left behind: 5.000000000000001 is 5."""
    if number.decimals is None or number.decimals <= 10:
        return number
    value = round(number.value, 9)
    n_digits = next(n for n in range(10) if (value * 10**n).denominator == 1)
    return Number(value, n_digits)


def rounding_error(gold: Number) -> Fraction:
    """How far the exact value may be from a rounded gold number."""
    return Fraction(1, 2 * 10 ** (gold.decimals or 0))


def equal_numbers(answer: Number, gold: Number) -> bool:
    """Whether the numbers are the same, as far as the gold number tells.

    A gold number with three digits after its point or more is a rounded one: an exact answer, or one with as
    many digits, need only round to it. 2.0944 takes 2.09440 and 2.09439510, not 2.09.
    """
    answer, gold = without_noise(answer), without_noise(gold)
    if answer.value == gold.value:
        return True
    if not is_rounded(gold) or (answer.decimals is not None and answer.decimals < (gold.decimals or 0)):
        return False
    return abs(answer.value - gold.value) <= rounding_error(gold)


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
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")
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
    if not body or (len(words) == 1 and not is_apart) or _LETTER.search(_LATEX_COMMAND.sub("", body)):
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


READING_LONGEST = 1000
"""Characters of the longest answer that is read as anything but words."""

_NO_WORD = re.compile(r"\\(?:begin|end)\s*\{[a-z]*\*?\}|\\[A-Za-z]+|\b(?:or|and)\b")
"""What is no word in mathematics."""
_WORD = re.compile(r"[^\W\d_]{3,}|(?=[^\x00-\x7f])[^\W\d_]")
"""Three letters in a row, or a letter of another alphabet, are no product of variables."""
_PAIR = re.compile(r"([0-9]{1,6})\s*:\s*([0-9]{1,6})")
_SPACE = re.compile(r"\s*(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")
"""White space that can go: not between two letters or digits, where ``1 2`` would become ``12``."""
_YES_NO = re.compile(r"(yes|no)\b")

Kind = Literal["number", "words", "mathematics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An answer, read."""

    kind: Kind
    latex: str
    """The answer without decoration and unit: what an algebra system is given."""
    key: str
    """The same for answers that are the same, as far as that can be told without algebra."""
    unit: str = ""
    number: Number | None = None


@lru_cache(maxsize=1 << 14)
def read_answer(text: str) -> Reading:
    r"""Read an answer as it stands in a response or a data set.

    Equal keys are equal answers but for units: numbers are written in one way (``0.5``, ``1/2`` and ``\frac12``
    share ``0.5``) and lose their unit, save ``%``; words lose case, punctuation and surplus space; of mathematics
    only the ways of writing LaTeX are made one. ``2\sqrt{3}`` and ``\sqrt{12}`` keep two keys: telling that they
    are equal takes algebra.

    Examples
    --------
    >>> read_answer(r"$\dfrac12$").key, read_answer("5 cm").key, read_answer("The  May.").key
    ('0.5', '5', 'the may')
    """
    latex = cleaned(text)
    if len(latex) > READING_LONGEST:
        return Reading(kind="words", latex=latex, key=_words(latex))
    body, unit = split_unit(latex, is_number=False)
    number = number_in(body)
    if number is None:
        counted, counted_unit = split_unit(latex, is_number=True)
        if (number := number_in(counted)) is not None:
            body, unit = counted, counted_unit
    if number is not None:
        key = str(without_noise(number)) + ("%" if unit == "%" else "")
        return Reading(kind="number", latex=body, key=key, unit=unit, number=number)
    if pair := _PAIR.fullmatch(body):
        # a time or a ratio: 5:0 is 5:00
        return Reading(kind="mathematics", latex=body, key=f"{int(pair[1])}:{int(pair[2])}", unit=unit)
    if _WORD.search(_NO_WORD.sub(" ", body)) or not body:
        return Reading(kind="words", latex=latex, key=_words(latex))
    return Reading(kind="mathematics", latex=body, key=_SPACE.sub("", body), unit=unit)


def _words(latex: str) -> str:
    plain = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)\s*(?=\{)|[{}*_\"'“”‘’`]|[.,;:!?](?=\s|$)", "", latex)
    return " ".join(plain.casefold().split())


def same_answer(answer: Reading, gold: Reading) -> bool | None:
    """Whether the answers are the same; None when only algebra can tell."""
    if answer.number is not None and gold.number is not None:
        return _same_number(answer, gold)
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


def _same_number(answer: Reading, gold: Reading) -> bool:
    assert answer.number is not None
    assert gold.number is not None
    if equal_numbers(answer.number, gold.number):
        return not (answer.unit and gold.unit) or answer.unit == gold.unit
    if {answer.unit, gold.unit} != {"", "%"}:
        return False
    # 50% stands for 50, and for 0.5 too
    return answer.number.value * (100 if gold.unit == "%" else Fraction(1, 100)) == gold.number.value


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt to compare came to."""

    equal: int | None = None
    """Place of the first expression that the answer is equal to."""
    failed: bool = False
    """Whether nothing could be decided."""
    reason: str | None = None
    """Why it failed, or why the answer is equal to none."""
    crashed: bool = False
    """Whether the worker died for a cause that may lie outside the comparison: another attempt may succeed."""


@lru_cache(maxsize=4096)
def parsed(latex: str) -> Any:
    """The expression that the whole of the LaTeX is, as math-verify reads it; None when it is none."""
    from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse

    # units are cut off before: math-verify takes 3 \text{h} 5 \text{min} for 3
    normalization = LatexNormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    # without the extraction of bare numbers, which would read any text with a 3 in it as 3;
    # without time-outs, which need the main thread's signals and do not interrupt C code
    config = LatexExtractionConfig(normalization_config=normalization)
    found = parse(f"${latex}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def first_equal(answer: str, candidates: Sequence[str]) -> Outcome:
    """Which of the expressions the answer is equal to; the first of them is the gold answer.

    A gold answer that cannot be read leaves the comparison undecided, unless the answer is equal to another one.
    """
    expression = parsed(answer)
    for place, candidate in enumerate(candidates if expression is not None else ()):
        found = parsed(candidate)
        if found is not None and (_verified(expression, found) or _rounds_to(expression, candidate)):
            return Outcome(equal=place)
    if parsed(candidates[0]) is None:
        return Outcome(failed=True, reason=f"math-verify cannot read the gold answer {candidates[0]!r}")
    return Outcome(reason=None if expression is not None else "math-verify cannot read the answer")


def _verified(answer: Any, gold: Any) -> bool:
    from math_verify import verify

    return bool(verify([gold], [answer], timeout_seconds=None, raise_on_error=True))


def _rounds_to(answer: Any, candidate: str) -> bool:
    r"""Whether an exact answer, such as ``\frac{2\pi}{3}``, is what a rounded gold number stands for."""
    gold = number_in(candidate)
    if gold is None or not is_rounded(gold := without_noise(gold)):
        return False
    if not getattr(answer, "is_number", False) or not answer.is_real:
        return False
    value = Fraction(str(answer.evalf(30)))
    return abs(value - gold.value) <= rounding_error(gold)

"""Plain numbers in an answer: read exactly, written in one way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 40
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
    if len(text) > LONGEST:
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

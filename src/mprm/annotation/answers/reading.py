"""What an answer says: a number, words, or mathematics; and the key under which equal answers vote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from mprm.annotation.answers.latex import cleaned
from mprm.annotation.answers.numbers import Number, equal_numbers, number_in, without_noise
from mprm.annotation.answers.units import split_unit

LONGEST = 1000
"""Characters of the longest answer that is read as anything but words."""

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-z]*\*?\}|\\[A-Za-z]+|\b(?:or|and)\b")
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
    if len(latex) > LONGEST:
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
    if _WORD.search(_COMMAND.sub(" ", body)) or not body:
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

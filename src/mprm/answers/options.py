"""The options of a multiple-choice question: in its text, in the gold answer, and in a response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from mprm.answers.compare import ParsedAnswer, read_answer, same_answer
from mprm.answers.extract import (
    cleaned,
    final_answer,
    last_box,
    leading_letter,
    stated_answer,
    stated_gold,
    trailing_letter,
)

LETTERS = ascii_uppercase
"""Names of the options, in order."""

_BRACKETED = re.compile(r"\(([A-Z])\)")
_IN_BRACKETS = re.compile(r"(?<![A-Za-z0-9])\(([A-Z])\)")
_AT_LINE_START = re.compile(r"^[ \t]*([A-Z])[.:)](?=\s|[^\s])", re.MULTILINE)


def are_letters(options: Sequence[str]) -> bool:
    """Whether the options say nothing but their own letters, because the picture shows them."""
    return all(
        cleaned(option).strip("().: ") in ("", letter) for option, letter in zip(options, LETTERS, strict=False)
    )


def options_in(text: str) -> tuple[str, ...]:
    r"""The options that the text lists, as ``(A) yes (B) no`` or one a line as ``A. 3``, ``A: 3``, ``A) 3``.

    >>> options_in("Is it even? Choices: (A) yes (B) no")
    ('yes', 'no')
    """
    for label in (_IN_BRACKETS, _AT_LINE_START):
        marks = list(label.finditer(text))
        starts = [index for index, mark in enumerate(marks) if mark[1] == "A"]
        if not starts:
            continue
        marks = marks[starts[-1] :]  # an earlier (A) may be a point of the figure
        if len(marks) < 2 or any(mark[1] != letter for mark, letter in zip(marks, LETTERS, strict=False)):
            continue
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        texts = [text[mark.end() : end].strip(" \t\r\n,;") for mark, end in zip(marks, ends, strict=True)]
        return tuple(option or mark[1] for option, mark in zip(texts, marks, strict=True))
    return ()


def with_options(text: str, options: Sequence[str]) -> str:
    """The question with its options, one a line, unless the text lists them already or the picture shows them."""
    if not options or are_letters(options) or len(options_in(text)) == len(options):
        return text
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([text.rstrip(), *lines])


def letter_options(gold: str) -> tuple[str, ...]:
    """Options A to D, or more, for a gold answer of one capital letter that comes without options; else none."""
    letter = gold.strip()
    return tuple(LETTERS[: max(4, LETTERS.index(letter) + 1)]) if letter in tuple(LETTERS) else ()


def letter_of(answer: str | int, options: Sequence[str], *, text_first: bool = False) -> str | None:
    """The letter of the option that a gold answer names; None when it names none, or several.

    The answer is a letter (``B``, ``(B)``, ``B.``), the text of an option, its number from 0, or a rationale that
    ends in one of these; with ``text_first`` one that could be a letter and an option's text is the text.
    """
    if isinstance(answer, int):
        # a number among numbers is the option's text
        if any(read_answer(option).number is not None for option in options):
            return letter_of(str(answer), options, text_first=True)
        return LETTERS[answer] if 0 <= answer < len(options) else None
    name = cleaned(answer).strip("().: ")
    letter = name if len(name) == 1 and name in LETTERS[: len(options)] else None
    by_text = _letter_by_text(read_answer(answer), options)
    if letter is None and by_text is None and (gold := stated_gold(answer)) is not None and gold != answer:
        return letter_of(gold, options, text_first=text_first)
    return by_text or letter if text_first else letter or by_text


def _compared(answer: ParsedAnswer, options: Sequence[str]) -> list[tuple[str, bool | None]]:
    """Each option's letter, and whether the answer is its text; None where only algebra can tell."""
    if are_letters(options):
        return []
    pairs = zip(LETTERS, options, strict=False)
    return [(letter, same_answer(answer, read_answer(option))) for letter, option in pairs]


def _letter_by_text(answer: ParsedAnswer, options: Sequence[str]) -> str | None:
    """The letter of the one option whose text the answer is."""
    letters = [letter for letter, is_same in _compared(answer, options) if is_same]
    return letters[0] if len(letters) == 1 else None


def undecided_letters(answer: ParsedAnswer, options: Sequence[str]) -> list[str]:
    """Letters of the options of which only algebra can tell whether the answer is equal to them."""
    return [letter for letter, is_same in _compared(answer, options) if is_same is None]


def choice_in(response: str, n_options: int) -> str | None:
    """The final answer of a response to a multiple choice: what is boxed or stated, else a letter at the end."""
    answer = last_box(response) or stated_answer(response)
    if answer is not None and answer.strip():
        return answer
    letter = trailing_letter(response)
    return letter if letter is not None and letter in LETTERS[:n_options] else final_answer(response)


def chosen_letter(answer: str, options: Sequence[str]) -> str | None:
    """The letter that the answer gives, by itself or by the text of its option; None when it is not plain."""
    letters = LETTERS[: len(options)]
    name = cleaned(answer)
    if len(name) == 1 and name in letters:
        return name
    if by_text := _letter_by_text(read_answer(answer), options):
        return by_text
    if len(name) == 1 and name.upper() in letters:
        return name.upper()
    letter = leading_letter(answer)
    # (A) and (B) chooses nothing
    return letter if letter is not None and letter in letters and len(set(_BRACKETED.findall(answer))) < 2 else None

"""The options of a multiple choice: in the text of a question, and the letter of the right one.

Which option of a multiple choice a response chose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from mprm.answers.compare import Reading, read_answer, same_answer
from mprm.answers.extract import cleaned, final_answer, last_box, leading_letter, stated_answer, trailing_letter

LETTERS = ascii_uppercase
"""Names of the options, in order."""

_IN_BRACKETS = re.compile(r"(?<![A-Za-z0-9])\(([A-Z])\)")
_AT_LINE_START = re.compile(r"^[ \t]*([A-Z])[.:)](?=\s|[^\s])", re.MULTILINE)


def are_letters(options: Sequence[str]) -> bool:
    """Whether the options say nothing but their own letters, because the picture shows them."""
    return all(
        cleaned(option).strip("().: ") in ("", letter) for option, letter in zip(options, LETTERS, strict=False)
    )


def options_in(text: str) -> tuple[str, ...]:
    r"""The options that the text lists, as ``(A) yes (B) no`` or one a line as ``A. 3``, ``A: 3``, ``A) 3``.

    Examples
    --------
    >>> options_in("Is it even? Choices: (A) yes (B) no")
    ('yes', 'no')
    """
    for label in (_IN_BRACKETS, _AT_LINE_START):
        found = list(label.finditer(text))
        starts = [number for number, mark in enumerate(found) if mark[1] == "A"]
        if not starts:
            continue
        run = found[starts[-1] :]  # an earlier (A) may be a point of the figure
        if len(run) < 2 or any(mark[1] != letter for mark, letter in zip(run, LETTERS, strict=False)):
            continue
        ends = [*(mark.start() for mark in run[1:]), len(text)]
        texts = [text[mark.end() : end].strip(" \t\r\n,;") for mark, end in zip(run, ends, strict=True)]
        return tuple(option or mark[1] for option, mark in zip(texts, run, strict=True))
    return ()


def with_options(text: str, options: Sequence[str]) -> str:
    """The question with its options, one a line, unless the text lists them already or the picture shows them."""
    if not options or are_letters(options) or len(options_in(text)) == len(options):
        return text
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([text.rstrip(), *lines])


def letter_of(answer: str | int, options: Sequence[str], *, text_first: bool = False) -> str | None:
    """The letter of the option that a gold answer names; None when it names none, or several.

    Parameters
    ----------
    answer
        A letter (``B``, ``(B)``, ``B.``), the text of an option, or its number from 0.
    text_first
        Whether an answer that could be a letter and an option's text is the text.
    """
    if isinstance(answer, int):
        # a number among numbers is the option's text
        if any(read_answer(option).number is not None for option in options):
            return letter_of(str(answer), options, text_first=True)
        return LETTERS[answer] if 0 <= answer < len(options) else None
    name = cleaned(answer).strip("().: ")
    letter = name if len(name) == 1 and name in LETTERS[: len(options)] else None
    reading = read_answer(answer)
    texts = [] if are_letters(options) else [same_answer(reading, read_answer(option)) for option in options]
    fitting = [LETTERS[place] for place, is_same in enumerate(texts) if is_same]
    text = fitting[0] if len(fitting) == 1 else None
    return text or letter if text_first else letter or text


_BRACKETED = re.compile(r"\(([A-Z])\)")


def choice_in(response: str, n_options: int) -> str | None:
    """The final answer of a response to a multiple choice: what is boxed or stated, else a letter at the end."""
    found = last_box(response) or stated_answer(response)
    if found is not None and found.strip():
        return found
    letter = trailing_letter(response)
    return letter if letter is not None and letter in LETTERS[:n_options] else final_answer(response)


def chosen_letter(answer: str, options: Sequence[str]) -> str | None:
    """The letter that the answer gives, by itself or by the text of its option; None when it is not plain."""
    letters = LETTERS[: len(options)]
    name = cleaned(answer)
    if len(name) == 1 and name in letters:
        return name
    by_text = [letter for letter, is_same in _compared(read_answer(answer), options) if is_same]
    if len(by_text) == 1:
        return by_text[0]
    if len(name) == 1 and name.upper() in letters:
        return name.upper()
    letter = leading_letter(answer)
    # (A) and (B) chooses nothing
    return letter if letter is not None and letter in letters and len(set(_BRACKETED.findall(answer))) < 2 else None


def undecided(answer: Reading, options: Sequence[str]) -> list[str]:
    """Letters of the options of which only algebra can tell whether the answer is equal to them."""
    return [letter for letter, is_same in _compared(answer, options) if is_same is None]


def _compared(answer: Reading, options: Sequence[str]) -> list[tuple[str, bool | None]]:
    if are_letters(options):
        return []
    pairs = zip(LETTERS, options, strict=False)
    return [(letter, same_answer(answer, read_answer(option))) for letter, option in pairs]

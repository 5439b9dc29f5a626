"""The options of a multiple choice: in the text of a question, and the letter of the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from mprm.annotation.answers.latex import cleaned
from mprm.annotation.answers.reading import read_answer, same_answer

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

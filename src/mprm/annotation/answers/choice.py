"""Which option of a multiple choice a response chose."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mprm.annotation.answers.extract import final_answer, last_box, leading_letter, stated_answer, trailing_letter
from mprm.annotation.answers.latex import cleaned
from mprm.annotation.answers.reading import Reading, read_answer, same_answer
from mprm.annotation.questions.options import LETTERS, are_letters

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

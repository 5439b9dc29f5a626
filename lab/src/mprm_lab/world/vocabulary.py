"""The words of the world."""

from __future__ import annotations

import hashlib
import re

from mprm.data.questions import CHOICE, OPEN, STEPS
from mprm_lab.world import bar_questions, grid_questions, paths, shape_questions
from mprm_lab.world.forms import FORMS, NEUTRAL
from mprm_lab.world.scene import SHAPES
from mprm_lab.world.sentence import FILLERS, NUMBERS

_WORD = re.compile(r"\n\n|\\boxed|[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]")
_SLOT = re.compile(r"<\w+>")

POINT = "What is at each place?"
"""What is asked of those who learn to look."""
QUESTIONS = (
    paths.LINE,
    paths.DIAGONAL,
    *grid_questions.SUM,
    *grid_questions.PATH,
    *grid_questions.ALTERNATE,
    *grid_questions.MAXIMUM,
    *grid_questions.ABOVE,
    *grid_questions.COMPARE,
    *bar_questions.TOTAL,
    *bar_questions.RANGE,
    *bar_questions.ABOVE,
    *bar_questions.COMPARE,
    *bar_questions.SECOND,
    *shape_questions.COUNT,
    *shape_questions.LINES,
    *shape_questions.COMPARE,
    *shape_questions.POINTS,
    *shape_questions.PRICE,
)
"""Every question, with slots."""


def words_of(text: str) -> list[str]:
    r"""The words, numbers and signs of a text; blank lines count, other white space does not.

    Examples
    --------
    >>> words_of(r"So the answer is \boxed{19}.")
    ['So', 'the', 'answer', 'is', '\\boxed', '{', '19', '}', '.']
    """
    return _WORD.findall(text)


def vocabulary() -> tuple[str, ...]:
    """All words of questions, of prompts, of solutions, and of the numbers up to 99, in alphabetical order."""
    names = [name for group in FILLERS.values() for name in group]
    texts = [
        *QUESTIONS,
        *(form.text for forms in FORMS.values() for form in forms),
        *NEUTRAL,
        POINT,
        *(STEPS, OPEN, CHOICE, "\n\n", "Options: (A)", "and"),
        *paths.MOVES,
        *(end for ends in paths.WAYS for end in ends),
        *SHAPES,
        *NUMBERS,
        *names,
    ]
    words = {word for text in texts for word in words_of(_SLOT.sub(" ", text))}
    # what stands in a slot can begin a sentence
    return tuple(sorted(words | {"Cell", "Bar", "Each"}))


def world_version() -> str:
    """Changes when a question or a sentence is put in other words: who learnt the ones does not know the others."""
    texts = [*QUESTIONS, *(form.text for forms in FORMS.values() for form in forms), *NEUTRAL]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

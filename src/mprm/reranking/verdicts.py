"""Which candidates are right, and which agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mprm.annotation.answers.extract import final_answer
from mprm.annotation.answers.judged import Judged
from mprm.annotation.answers.reading import read_answer
from mprm.annotation.candidates import Candidate, CandidateSet


def judge_candidates(
    sets: Sequence[CandidateSet],
    *,
    timeout_s: float = 5.0,
    processes: int | None = None,
    on_checked: Callable[[int], None] | None = None,
) -> list[list[Judged]]:
    """The verdict on each candidate: the file's label where it has one, else the checker's."""
    found = [[_by_label(candidate) for candidate in entry.candidates] for entry in sets]
    places = [(i, j) for i, row in enumerate(found) for j, judged in enumerate(row) if judged is None]
    if places:
        from mprm.annotation.answers.checker import AnswerChecker

        pairs = [(sets[i].candidates[j].text, sets[i].question) for i, j in places]
        with AnswerChecker(timeout_s=timeout_s, processes=processes) as checker:
            checked = checker.check_many(pairs, on_checked=lambda _place, _judged: on_checked and on_checked(1))
        for (i, j), judged in zip(places, checked, strict=True):
            found[i][j] = judged
    return [[judged for judged in row if judged is not None] for row in found]


def _by_label(candidate: Candidate) -> Judged | None:
    """The label as a verdict, with the answer that the text states, so that equal answers vote together."""
    if candidate.is_correct is None:
        return None
    answer = final_answer(candidate.text)
    return Judged("correct" if candidate.is_correct else "wrong", None if answer is None else read_answer(answer).key)


def answer_numbers(judged: Sequence[Judged]) -> NDArray[np.intp]:
    """Equal numbers, from 0, for equal answers; -1 for candidates in which no answer was found.

    Examples
    --------
    >>> answer_numbers([Judged("correct", "4"), Judged("wrong", None), Judged("correct", "4")]).tolist()
    [0, -1, 0]
    """
    numbers: dict[str, int] = {}
    return np.array(
        [-1 if one.answer is None else numbers.setdefault(one.answer, len(numbers)) for one in judged], dtype=np.intp
    )

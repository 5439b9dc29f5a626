"""The outcome of comparing a response with the gold answer.

Judging responses by their final answers, thousands at a time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Literal

from mprm.annotation.checker_pool import Job, WorkerPool
from mprm.answers.compare import Outcome, read_answer, same_answer
from mprm.answers.extract import final_answer
from mprm.answers.options import LETTERS, choice_in, chosen_letter, letter_of, undecided
from mprm.data.engine import n_cores
from mprm.data.format import shown
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MissingDependencyError

Verdict = Literal["correct", "wrong", "failed"]
"""``failed``: the checker itself could not decide (time-out, crash); never counted as wrong in silence."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One response, judged."""

    verdict: Verdict
    answer: str | None
    """The final answer of the response, normalised so that equal answers vote together; None if none was found."""
    reason: str | None = None
    """Why the checker failed, or that no answer was found."""


NO_ANSWER = "no answer found"


@dataclass(frozen=True, slots=True)
class Undecided:
    """A response whose verdict takes algebra."""

    job: Job
    key: str
    """The answer, as it votes when it is equal to nothing."""
    names: tuple[str, ...]
    """The answer, as it votes when it is equal to the candidate at that place."""

    def judged(self, outcome: Outcome) -> Judged:
        """The verdict, now that algebra has spoken."""
        if outcome.failed:
            return Judged("failed", self.key, outcome.reason)
        if outcome.equal is None:
            return Judged("wrong", self.key, outcome.reason)
        return Judged("correct" if outcome.equal == 0 else "wrong", self.names[outcome.equal])


def judge(response: str, question: Question) -> Judged | Undecided:
    """The verdict on a response, as far as it can be told without algebra."""
    gold = letter_of(question.answer, question.options) if question.options else None
    if gold is not None:
        return _judge_choice(response, question.options, gold)
    found = final_answer(response)
    answer = read_answer(found) if found is not None else None
    if answer is None or not answer.latex:
        return Judged("wrong", None, NO_ANSWER)
    golden = read_answer(question.answer)
    is_same = same_answer(answer, golden)
    if is_same is None:
        # the key stays the response's own: the gold answer must not decide what votes together
        return Undecided(Job(answer.latex, (golden.latex,)), answer.key, (answer.key,))
    return Judged("correct" if is_same else "wrong", answer.key)


def _judge_choice(response: str, options: Sequence[str], gold: str) -> Judged | Undecided:
    found = choice_in(response, len(options))
    if found is None:
        return Judged("wrong", None, NO_ANSWER)
    letter = chosen_letter(found, options)
    if letter is not None:
        return Judged("correct" if letter == gold else "wrong", letter)
    answer = read_answer(found)
    if not answer.latex:
        return Judged("wrong", None, NO_ANSWER)
    letters = undecided(answer, options)
    if gold not in letters:
        return Judged("wrong", answer.key)
    letters = [gold, *(letter for letter in letters if letter != gold)]
    candidates = tuple(read_answer(options[LETTERS.index(letter)]).latex for letter in letters)
    return Undecided(Job(answer.latex, candidates), answer.key, tuple(letters))


def _check_no_text(place: int, response: Any, question: Question) -> None:
    """Stop at what cannot be compared, before anything is."""
    if not isinstance(response, str):
        raise DataError(f"pair {place}: the response is {shown(response)}; expected text")
    if not isinstance(question.answer, str):
        raise DataError(
            f"pair {place}: question {question.id!r} has the gold answer {shown(question.answer)}; expected text"
        )


class AnswerChecker:
    r"""Judges responses; owns the worker processes in which math-verify runs.

    Most verdicts need no algebra: equal or different numbers, letters and words. The rest go to the workers,
    each pair of answer and gold answer once. A comparison that takes too long is killed; its verdict, and that
    of one whose worker crashed, is ``failed``.

    Parameters
    ----------
    timeout_s
        Seconds that one comparison may take.
    processes
        Worker processes; all cores when None.

    Examples
    --------
    >>> with AnswerChecker() as checker:
    ...     question = Question(id="1", question="Half of one?", answer=r"\frac{1}{2}")
    ...     checker.check(r"It is \boxed{0.5}.", question)
    Judged(verdict='correct', answer='0.5', reason=None)
    """

    def __init__(self, timeout_s: float = 5.0, processes: int | None = None) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s must be a number of seconds above 0, got {timeout_s}")
        if processes is not None and processes < 1:
            raise ConfigError(f"processes must be at least 1, got {processes}")
        if find_spec("math_verify") is None:
            raise MissingDependencyError(
                "checking answers needs math-verify: pip install math-verify,"
                " or install mprm with its extra [annotate]"
            )
        self._pool = WorkerPool(processes or n_cores(), timeout_s)
        self._known: dict[Job, Outcome] = {}
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, self._pool.close)

    def __enter__(self) -> AnswerChecker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; they start again when there is more to check."""
        with self._lock:
            self._pool.close()

    def check(self, response: str, question: Question) -> Judged:
        """The verdict on one response."""
        return self.check_many([(response, question)])[0]

    def check_many(
        self,
        pairs: Sequence[tuple[str, Question]],
        *,
        on_checked: Callable[[int, Judged], Any] | None = None,
    ) -> list[Judged]:
        """The verdicts on many responses, in their order.

        Parameters
        ----------
        pairs
            Responses, each with its question; a place in an error counts them from 0.
        on_checked
            Called with the place of a response and its verdict, as soon as it is known.
        """
        for place, (response, question) in enumerate(pairs):
            _check_no_text(place, response, question)
        verdicts: list[Judged | None] = [None] * len(pairs)
        places: dict[Job, list[tuple[int, Undecided]]] = {}

        def settle(place: int, judged: Judged) -> None:
            verdicts[place] = judged
            if on_checked is not None:
                on_checked(place, judged)

        with self._lock:
            for place, (response, question) in enumerate(pairs):
                found = judge(response, question)
                if isinstance(found, Judged):
                    settle(place, found)
                elif found.job in self._known:
                    settle(place, found.judged(self._known[found.job]))
                else:
                    places.setdefault(found.job, []).append((place, found))
            jobs = list(places)
            with closing(self._pool.run(jobs)) as outcomes:  # no worker keeps a job when on_checked raises
                for number, outcome in outcomes:
                    if not outcome.crashed:
                        self._known[jobs[number]] = outcome
                    for place, found in places[jobs[number]]:
                        settle(place, found.judged(outcome))
        return [judged for judged in verdicts if judged is not None]

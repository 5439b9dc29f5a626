"""The work of annotating: the sampler is kept busy, and what it answers is judged and saved at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import msgspec

from mprm.annotation.answers.checker import AnswerChecker
from mprm.annotation.answers.extract import last_box
from mprm.annotation.answers.judged import Judged
from mprm.annotation.journal import Journal, Key
from mprm.annotation.monte_carlo import ROLLOUTS, Annotation, Procedure, Tally
from mprm.annotation.questions.question import Question
from mprm.annotation.samplers.sampler import Answered, Completion, Request, Sampler
from mprm.annotation.task import Task
from mprm.errors import DataError, MprmError

Note = Callable[[int, str], None]
"""Called with the number of questions done since the last call, and how things stand."""
NotedWatch = Callable[[str, int], AbstractContextManager[Note]]

HOPELESS = 32
"""So many questions that fail for one reason, before any is done, stop the run."""


@contextmanager
def unwatched(_title: str, _total: int) -> Iterator[Note]:
    """Show nothing."""
    yield lambda _n, _text: None


@dataclass(slots=True)
class _Asked:
    annotation: Annotation
    part: str
    n: int


class Work:
    """Keeps the sampler busy until every task is done or has failed."""

    def __init__(
        self, journal: Journal, sampler: Sampler, procedure: Procedure, note: Note, *, timeout_s: float
    ) -> None:
        self._journal, self._sampler, self._procedure, self._note = journal, sampler, procedure, note
        self._timeout_s = timeout_s
        self._under_way: dict[int, _Asked] = {}
        self._ready: deque[tuple[_Asked, Request]] = deque()
        self._n_open: dict[Key, int] = {}
        self._reasons: dict[Key, list[str]] = {}
        self._n_done = 0
        self._tally, self._began = Tally(), monotonic()

    def do(self, tasks: Iterable[Task]) -> dict[Key, list[str]]:
        """The reasons of the tasks that failed."""
        following, number = iter(tasks), 0
        with AnswerChecker(self._timeout_s) as checker, self._sampler.session() as session:
            while True:
                while session.room > 0:
                    while not self._ready and (task := next(following, None)) is not None:
                        self._go_on(Annotation(task, self._procedure))
                    if not self._ready:
                        break
                    asked, request = self._ready.popleft()
                    self._under_way[number] = asked
                    session.submit(number, request)
                    number += 1
                if not self._under_way:
                    return self._reasons
                answered = session.wait()
                if not answered:
                    raise MprmError(
                        f"{self._sampler.name} left {len(self._under_way):,} requests unanswered;"
                        f" what is done is kept in {self._journal.path}"
                    )
                self._take(answered, checker)

    def _go_on(self, annotation: Annotation) -> None:
        """Ask for what the question wants next, unless an earlier run has it; save it when it wants nothing."""
        key = annotation.task.key
        known = self._journal.parts(key)
        is_new = True
        while is_new:
            is_new = False
            for part, request in annotation.wanted():
                if part in known:
                    self._take_known(annotation, part)
                    is_new = True
                elif not annotation.errors:
                    self._ready.append((_Asked(annotation, part, request.n), request))
                    self._n_open[key] = self._n_open.get(key, 0) + 1
        if not self._n_open.get(key):
            self._end(annotation)

    def _take_known(self, annotation: Annotation, part: str) -> None:
        key = annotation.task.key
        try:
            annotation.take(part, msgspec.json.decode(self._journal.line(key, part)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._journal.path}: the line of part {part} of question {key[1]!r} of {key[0]!r} is damaged"
                f" ({type(error).__name__} {error}); remove the line, or the file to begin anew"
            ) from error

    def _take(self, answered: Sequence[Answered], checker: AnswerChecker) -> None:
        """Judge what was answered, and save each request as soon as it is judged."""
        self._refuse_odd(answered)
        pairs: list[tuple[str, Question]] = []
        slots: list[tuple[int, int]] = []
        verdicts: dict[int, list[Judged | None]] = {}
        for number, completions in answered:
            asked = self._under_way[number]
            if asked.part == ROLLOUTS or any(c.finish_reason == "error" for c in completions):
                self._settle(number, completions, [])
                continue
            prefix, question = asked.annotation.prefix_of(asked.part), asked.annotation.task.judged_as
            verdicts[number] = [None] * len(completions)
            slots += [(number, place) for place in range(len(completions))]
            pairs += [(prefix + completion.text, question) for completion in completions]
        given = dict(answered)

        def note(pair: int, judged: Judged) -> None:
            number, place = slots[pair]
            verdicts[number][place] = judged
            found = [verdict for verdict in verdicts[number] if verdict is not None]
            if len(found) == len(given[number]):
                self._settle(number, given[number], found)

        checker.check_many(pairs, on_checked=note)

    def _refuse_odd(self, answered: Sequence[Answered]) -> None:
        """Stop where a sampler does not keep to what `Session` says: its counts could not be trusted."""
        for number, completions in answered:
            asked = self._under_way.get(number)
            if asked is None or len(completions) != asked.n:
                wanted = "which was not asked for" if asked is None else f"of which {asked.n} were asked for"
                raise MprmError(
                    f"{self._sampler.name} gave {len(completions)} answers to request {number}, {wanted};"
                    f" what is done is kept in {self._journal.path}"
                )

    def _settle(self, number: int, completions: Sequence[Completion], judged: Sequence[Judged]) -> None:
        """Save what came of a request, and go on with its question."""
        asked = self._under_way.pop(number)
        annotation, part = asked.annotation, asked.part
        key = annotation.task.key
        errors = {c.error or "no reason given" for c in completions if c.finish_reason == "error"}
        self._n_open[key] -= 1
        if errors:
            annotation.errors |= errors
        else:
            outcome = _rollouts(completions) if part == ROLLOUTS else _counts(completions, judged)
            self._journal.add({"source": key[0], "id": key[1], "part": part, **outcome})
            annotation.take(part, outcome)
            self._count(outcome)
        self._go_on(annotation)

    def _end(self, annotation: Annotation) -> None:
        key = annotation.task.key
        self._n_open.pop(key, None)
        problems = sorted(annotation.errors)
        if not problems and (annotation.unscored or not annotation.chains):
            problems = annotation.unscored or [f"all {annotation.n_empty} rollouts are empty"]
            self._journal.forget(key)  # what is saved would fail again
        if problems:
            self._reasons[key] = problems
            self._refuse_hopeless()
        else:
            self._n_done += 1
            records, tally = annotation.records(), annotation.tally()
            self._journal.add({"source": key[0], "id": key[1], "records": records, "tally": tally})
        self._tell(1)

    def _refuse_hopeless(self) -> None:
        """Stop when all questions fail, and all for one reason: the others would as well."""
        reasons = {reason for some in self._reasons.values() for reason in some}
        if not self._n_done and len(self._reasons) == HOPELESS and len(reasons) == 1:
            raise MprmError(
                f"the first {HOPELESS} questions all failed, and none was done: {reasons.pop()}."
                f" What is done is kept in {self._journal.path}"
            )

    def _count(self, outcome: dict[str, Any]) -> None:
        tally = self._tally
        tally.n_tokens += outcome["n_tokens"]
        if "n_correct" in outcome:
            tally.n_correct += outcome["n_correct"]
            tally.n_continuations += sum(outcome[f"n_{fate}"] for fate in ("correct", "wrong", "cut", "failed"))
            self._tell(0)

    def _tell(self, n: int) -> None:
        tally, seconds = self._tally, max(1e-9, monotonic() - self._began)
        share = f", {tally.n_correct / tally.n_continuations:.0%} correct" if tally.n_continuations else ""
        tokens = f", {tally.n_tokens / seconds:,.0f} tokens/s" if tally.n_tokens else ""
        self._note(n, f"{tally.n_continuations / seconds:,.1f} continuations/s{tokens}{share}")


def _rollouts(completions: Sequence[Completion]) -> dict[str, Any]:
    return {
        # what is no character in UTF-8, half of a surrogate pair, cannot be written
        "rollouts": [
            {"text": c.text.encode("utf-8", "replace").decode(), "finish_reason": c.finish_reason}
            for c in completions
        ],
        "n_tokens": sum(c.n_tokens or 0 for c in completions),
    }


def _counts(completions: Sequence[Completion], judged: Sequence[Judged]) -> dict[str, Any]:
    """How many continuations came to which end; with the reasons of the checker's failures."""
    fates = {"correct": 0, "wrong": 0, "cut": 0, "failed": 0}
    for completion, verdict in zip(completions, judged, strict=True):
        # of a text that was cut off only a box that it closes itself is sure to be its answer
        is_cut = completion.finish_reason == "length" and last_box(completion.text) is None
        fates["cut" if is_cut else verdict.verdict] += 1
    outcome: dict[str, Any] = {f"n_{fate}": n for fate, n in fates.items()}
    outcome["n_tokens"] = sum(c.n_tokens or 0 for c in completions)
    failures = sorted({verdict.reason or "" for verdict in judged if verdict.verdict == "failed"})
    return outcome | ({"failures": failures} if failures else {})

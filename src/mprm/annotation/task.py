"""What is annotated: questions, or rollouts that exist already."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from mprm.annotation.journal import Key
from mprm.answers.options import LETTERS
from mprm.data.candidate_formats import JOINT, LAYOUTS, read_candidates, split_steps
from mprm.data.corpus import PlacedRollout, is_blank, open_corpus
from mprm.data.format import Record
from mprm.data.images import image_files
from mprm.data.output import Dropped
from mprm.data.questions import prompt_of
from mprm.data.records import chunks_of, corpus_files, lines_of
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class GivenStep:
    """A step that exists, with the continuations that it came with."""

    text: str
    k: int = 0
    n: int = 0
    n_cut: int = 0
    n_failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRollout:
    """A rollout that exists."""

    number: int
    """Which of the question's rollouts it is."""
    steps: tuple[GivenStep, ...]
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with the text that the policy is asked, and its rollouts where they are given."""

    question: Question
    prompt: str
    images: tuple[Path, ...] = ()
    judged_as: Question
    """What answers are checked against."""
    given: tuple[GivenRollout, ...] | None = None
    """Rollouts to annotate; None where the policy is to make them."""
    n_empty: int = 0
    """Rollouts that were given without a word."""

    @property
    def key(self) -> Key:
        """Source and id: no two tasks have the same."""
        return self.question.source, self.question.id

    def digest(self) -> bytes:
        """Changes with whatever the annotation depends on; of images, with their names and sizes."""
        fields = [self.question, self.prompt, self.given, [path.stat().st_size for path in self.images]]
        return xxhash.xxh3_128_digest(msgspec.json.encode(fields))


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` equal parts of the tasks, from 1."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ConfigError(f"shard {self.index}/{self.count}: expected I/N with I from 1 to N")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``3/64``.

        Examples
        --------
        >>> Shard.parse("3/64")
        Shard(index=3, count=64)
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if found is None:
            raise ConfigError(f"shard {text!r}: expected a form such as 3/64, the third of 64 parts")
        return cls(int(found[1]), int(found[2]))

    def of(self, items: Iterable[Item]) -> list[Item]:
        """Every ``count``-th, so that each shard has its share of every source."""
        return [item for number, item in enumerate(items) if number % self.count == self.index - 1]


def question_tasks(questions: Iterable[Question], image_root: str | Path | None) -> Iterator[Task]:
    """Questions whose rollouts the policy is to make."""
    for question in questions:
        yield Task(
            question=question,
            prompt=prompt_of(question),
            images=image_files(question, image_root),
            judged_as=question,
        )


def rollout_tasks(
    paths: Any,
    *,
    image_root: str | Path | None,
    max_steps: int | None,
    fresh: bool = False,
    input_format: str | None = None,
    on_bad: Callable[[Dropped], None] | None = None,
) -> list[Task]:
    """Rollouts that exist, by question: of any corpus, or candidates as ``mprm sample`` writes them.

    Parameters
    ----------
    max_steps
        Most steps that a candidate is split into; steps of a corpus stay as they are.
    fresh
        Leave out the counts that the rollouts have, instead of adding to them.
    on_bad
        Told of records that cannot be used; the first stops the run when None.
    """
    if _are_candidates(paths):
        return list(_candidate_tasks(paths, image_root, max_steps))
    tasks: dict[Key, Task] = {}
    corpus = open_corpus(paths, format=input_format, text_only=True)
    for number, placed in enumerate(corpus.placed(on_bad=on_bad)):
        task = _corpus_task(placed, number, image_root, fresh=fresh)
        first = tasks.get(task.key, task)
        if (first.question, first.prompt) != (task.question, task.prompt):  # an id that stands for several questions
            first = task = replace(task, question=replace(task.question, id=_row(number)))
        tasks[task.key] = task if first is task else _joined(first, task)
    return list(tasks.values())


class _Own(msgspec.Struct):
    """What `mprm annotate` writes beyond the format."""

    id: str | None = None
    rollout: int | None = None
    finish_reason: str | None = None
    options: tuple[str, ...] = ()
    steps_with_score: tuple[_OwnStep, ...] = ()


class _OwnStep(msgspec.Struct):
    num_mc_cut: int = 0
    num_mc_failed: int = 0


def _own_fields(raw: bytes) -> _Own:
    try:
        return msgspec.json.decode(raw, type=_Own)
    except (ValueError, RecursionError, msgspec.MsgspecError):  # another format, or other fields of these names
        return _Own()


def _corpus_task(placed: PlacedRollout, number: int, image_root: str | Path | None, *, fresh: bool) -> Task:
    rollout, own = placed.rollout, _own_fields(placed.raw)
    if rollout.answer is None or not rollout.answer.strip():
        raise DataError(
            f'{placed.file}:{placed.line}: the rollout has no gold answer; expected one as text in "answer",'
            " to tell which continuations are right. Take it out, or annotate from questions"
        )
    question = Question(
        id=_row(number) if own.id is None else own.id,
        question=rollout.question,
        answer=rollout.answer,
        images=rollout.images,
        source=placed.source,
        options=own.options,
    )
    steps = []
    for place, step in enumerate(rollout.steps):
        has_counts = not fresh and step.n_total and step.n_correct is not None
        extra = own.steps_with_score[place] if has_counts and place < len(own.steps_with_score) else _OwnStep()
        counts = (step.n_correct or 0, step.n_total or 0) if has_counts else (0, 0)
        steps.append(GivenStep(step.text, *counts, extra.num_mc_cut, extra.num_mc_failed))
    given = GivenRollout(number=own.rollout or 0, steps=tuple(steps), finish_reason=own.finish_reason)
    return Task(
        question=question,
        prompt=rollout.prompt or prompt_of(question),
        images=image_files(question, image_root),
        judged_as=_with_letters(question),
        given=(given,),
    )


def _with_letters(question: Question) -> Question:
    """A gold answer of one capital letter is an option's, though the corpus does not tell the options."""
    letter = question.answer.strip()
    if question.options or letter not in tuple(LETTERS):
        return question
    return replace(question, options=tuple(LETTERS[: max(4, LETTERS.index(letter) + 1)]))


def _row(number: int) -> str:
    return f"#{number}"


def _joined(first: Task, other: Task) -> Task:
    """Both tasks' rollouts as rollouts of one question."""
    assert first.given is not None, "tasks of a corpus have rollouts"
    assert other.given is not None, "tasks of a corpus have rollouts"
    [new] = other.given
    taken = {rollout.number for rollout in first.given}
    number = new.number if new.number not in taken else max(taken) + 1
    return replace(first, given=(*first.given, replace(new, number=number)))


def _candidate_tasks(paths: Any, image_root: str | Path | None, max_steps: int | None) -> Iterator[Task]:
    for entry in read_candidates(paths):
        question = entry.question
        if not question.answer:
            raise DataError(
                f'{entry.place}: the question has no gold answer; expected one in "answer",'
                " to tell which continuations are right"
            )
        given = [
            GivenRollout(
                number=number,
                steps=tuple(map(GivenStep, split_steps(JOINT.join(candidate.steps), max_steps))),
                finish_reason=candidate.finish_reason,
            )
            for number, candidate in enumerate(entry.candidates)
        ]
        spoken = tuple(rollout for rollout in given if rollout.steps)
        yield Task(
            question=question,
            prompt=prompt_of(question),
            images=image_files(question, image_root),
            judged_as=question,
            given=spoken,
            n_empty=len(given) - len(spoken),
        )


def _are_candidates(paths: Any) -> bool:
    """Whether the first record of the files has several answers to a question."""
    for file in corpus_files(paths):
        for chunk in chunks_of(file):
            for line in lines_of(chunk):
                if is_blank(line):
                    continue
                try:
                    record: Record = msgspec.json.decode(line, type=dict[str, Any])
                except (ValueError, msgspec.MsgspecError):
                    return False
                return any(layout.telltale in record for layout in LAYOUTS.values())
    return False

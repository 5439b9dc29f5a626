"""What is annotated: questions, or rollouts that exist already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm.annotation.candidates import LAYOUTS, read_candidates
from mprm.annotation.image_files import image_files
from mprm.annotation.journal import Key
from mprm.annotation.questions.prompt import prompt_of
from mprm.annotation.questions.question import Question
from mprm.annotation.split_steps import split_steps
from mprm.errors import ConfigError, DataError
from mprm.rollouts.chunks import chunks_of, lines_of
from mprm.rollouts.corpus import open_corpus
from mprm.rollouts.files import corpus_files
from mprm.rollouts.format import Record
from mprm.rollouts.read import is_blank
from mprm.rollouts.rollout import Step

UNSAMPLED = 0.0
"""The score of a step before any continuation; it is never written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with the text that the policy is asked, and its rollouts where they are given."""

    question: Question
    prompt: str
    images: tuple[Path, ...] = ()
    given: tuple[tuple[Step, ...], ...] = ()
    """Rollouts to annotate, with the counts that they have; none where the policy is to make them."""

    @property
    def key(self) -> Key:
        """Source and id: no two tasks have the same."""
        return self.question.source, self.question.id

    def digest(self) -> bytes:
        """Changes with whatever the annotation depends on."""
        fields = [asdict(self.question), self.prompt, self.given]
        return xxhash.xxh3_128_digest(msgspec.json.encode(fields))


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` equal parts of the tasks, from 1."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ConfigError(f"shard {self.index}/{self.count}: expected one from 1/{self.count} up")

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

    def of(self, items: Iterable[Any]) -> list[Any]:
        """Every ``count``-th, so that each shard has its share of every source."""
        return [item for number, item in enumerate(items) if number % self.count == self.index - 1]


def question_tasks(questions: Iterable[Question], image_root: str | Path | None) -> Iterator[Task]:
    """Questions whose rollouts the policy is to make."""
    for question in questions:
        yield Task(question=question, prompt=prompt_of(question), images=image_files(question, image_root))


def rollout_tasks(
    paths: Any,
    *,
    image_root: str | Path | None,
    max_steps: int | None,
    fresh: bool = False,
    text_only: bool = False,
    input_format: str | None = None,
) -> Iterator[Task]:
    """Rollouts that exist: of any corpus, or candidates as ``mprm sample`` writes them.

    Parameters
    ----------
    max_steps
        Most steps that a candidate is split into; steps of a corpus stay as they are.
    fresh
        Leave out the counts that the rollouts have, instead of adding to them.
    """
    if _are_candidates(paths):
        yield from _candidate_tasks(paths, image_root, max_steps)
        return
    corpus = open_corpus(paths, format=input_format, text_only=text_only)
    for number, placed in enumerate(corpus.placed()):
        rollout = placed.rollout
        if rollout.answer is None or not rollout.answer.strip():
            raise DataError(
                f'{placed.file}:{placed.line}: the rollout has no gold answer; expected one in "answer",'
                " to tell which continuations are right. Take it out, or annotate from questions"
            )
        question = Question(
            id=str(number),
            question=rollout.question,
            answer=rollout.answer,
            images=rollout.images,
            source=placed.source,
        )
        steps = tuple(_unsampled(step.text) if fresh or not step.n_total else step for step in rollout.steps)
        yield Task(
            question=question,
            prompt=rollout.prompt or prompt_of(question),
            images=image_files(question, image_root),
            given=(steps,),
        )


def _unsampled(text: str) -> Step:
    return Step(text, UNSAMPLED, 0, 0)


def _candidate_tasks(paths: Any, image_root: str | Path | None, max_steps: int | None) -> Iterator[Task]:
    for entry in read_candidates(paths):
        question = entry.question
        if not question.answer:
            raise DataError(
                f'{entry.place}: the question has no gold answer; expected one in "answer",'
                " to tell which continuations are right"
            )
        given = [split_steps("\n\n".join(candidate.steps), max_steps) for candidate in entry.candidates]
        yield Task(
            question=question,
            prompt=prompt_of(question),
            images=image_files(question, image_root),
            given=tuple(tuple(map(_unsampled, steps)) for steps in given if steps),
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

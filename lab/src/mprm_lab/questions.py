"""Problems of the world as a file of questions, as any stage reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from mprm.data.output import atomic_write
from mprm.errors import ConfigError
from mprm_lab.world import SOURCES, SPLITS, Problem, as_question, problem


def problems_of(split: str, n: int, *, first: int = 0, sources: Sequence[str] = tuple(SOURCES)) -> list[Problem]:
    """``n`` problems of a split from the ``first`` on, the sources in turn; the same numbers give the same ones.

    A source that comes up more than once in ``sources`` has so many problems in each turn.
    """
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r} in the lab; choose one of {', '.join(SPLITS)}")
    if not sources:
        raise ConfigError("no sources; name at least one")
    if n < 1 or first < 0:
        raise ConfigError(f"n must be 1 or more and first 0 or more, got {n} and {first}")
    seeds, found = SPLITS[split], []
    for number in range(first, first + n):
        turn, place = divmod(number, len(sources))
        source = sources[place]
        found.append(problem(source, seeds[turn * sources.count(source) + sources[:place].count(source)]))
    return found


def write_questions(problems: Iterable[Problem], path: str | Path) -> None:
    """Write the problems as plain questions; their images are drawn by `mprm_lab.world.write_images`."""
    with atomic_write(str(path)) as temporary, temporary.open("wb") as lines:
        for one in problems:
            question = as_question(one)
            record = {
                "id": question.id,
                "question": question.question,
                "answer": question.answer,
                "image": one.image,
                "source": question.source,
                **({"options": question.options} if question.options else {}),
            }
            lines.write(msgspec.json.encode(record) + b"\n")

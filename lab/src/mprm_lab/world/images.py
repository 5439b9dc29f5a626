"""Pictures on disk, drawn when they are first needed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mprm.data.output import atomic_write
from mprm.errors import DataError
from mprm_lab.world.drawing import draw
from mprm_lab.world.problem import Problem
from mprm_lab.world.sources import SOURCES, problem

_NAME = re.compile(r"([a-z-]+)/(0|[1-9][0-9]*)(?:\.png)?")


def problem_named(name: str) -> Problem:
    """The problem with this id, or with the picture of this name.

    Examples
    --------
    >>> problem_named("bars-range/3.png").id
    'bars-range/3'
    """
    return problem(*_parts(name))


def _parts(name: str) -> tuple[str, int]:
    """The source and the seed in a name."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in SOURCES:
        raise DataError(
            f"{name!r} names no problem of the lab; expected SOURCE/SEED or SOURCE/SEED.png"
            f" with one of the sources {', '.join(SOURCES)}"
        )
    return found[1], int(found[2])


def write_images(problems: Iterable[Problem | str], root: str | Path) -> list[Path]:
    """The paths of the problems' pictures under the root; those that are not there yet are drawn.

    Parameters
    ----------
    problems
        Problems, their ids, or the names of their pictures: the seed in the name says what to draw.
    """
    folder = Path(root).expanduser()
    paths = []
    for given in problems:
        source, seed = (given.source, given.seed) if isinstance(given, Problem) else _parts(given)
        path = folder / source / f"{seed}.png"
        if not path.is_file():
            with atomic_write(str(path)) as temporary:
                temporary.write_bytes(draw(problem(source, seed)))
        paths.append(path)
    return paths

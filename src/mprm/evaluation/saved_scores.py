"""Scores files: one line a solution, and a manifest beside it that names the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mprm.errors import DataError, InputNotFoundError
from mprm.evaluation.notes import Notes
from mprm.evaluation.scored_solution import ScoredBenchmark, ScoredSolution, refuse_bad
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.manifest import hash_file, write_manifest
from mprm.rollouts.read import is_blank
from mprm.rollouts.source_ranges import MANIFEST_SUFFIX

OCCURS_TWICE = "the line is the same in every field as an earlier one of its file; both count"


def write_scores(
    path: str, scored: ScoredBenchmark, *, config: Mapping[str, Any], inputs: list[dict[str, Any]]
) -> None:
    """Write the scores and their manifest."""
    encode = msgspec.json.Encoder().encode
    with atomic_write(path) as temporary:
        with temporary.open("wb") as out:
            out.writelines(encode(solution) + b"\n" for solution in scored.solutions)
        write_manifest(
            path,
            command="evaluate",
            config=config,
            inputs=inputs,
            sources=Counter(solution.source for solution in scored.solutions),
            output={
                "path": path,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "n_solutions": len(scored.solutions),
                "n_steps": sum(len(solution.labels) for solution in scored.solutions),
                "n_unscored": sum(solution.scores.count(None) for solution in scored.solutions),
            },
        )


def read_scores(path: str | Path) -> ScoredBenchmark:
    """Read what `write_scores` wrote.

    A line that occurs twice is noted, not refused: a benchmark may hold a solution twice.
    """
    here = Path(path).expanduser()
    if not here.is_file():
        raise InputNotFoundError(f"{path}: no such file; expected scores that mprm evaluate --out saved")
    decoder = msgspec.json.Decoder(ScoredSolution)
    notes = Notes()
    solutions: list[ScoredSolution] = []
    seen: set[ScoredSolution] = set()
    with here.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if is_blank(line):
                continue
            place = f"{path}:{number}"
            try:
                solution = decoder.decode(line)
            except (ValueError, msgspec.MsgspecError) as error:
                raise DataError(
                    f"{place}: is no line of a scores file: {error}. Expected the fields"
                    f" {', '.join(ScoredSolution.__struct_fields__)}; make the file with mprm evaluate --out."
                ) from error
            refuse_bad(solution, place)
            if solution in seen:
                notes(place, OCCURS_TWICE)
            seen.add(solution)
            solutions.append(solution)
    if not solutions:
        raise DataError(f"{path}: the file holds no scores; expected one line a solution")
    name = _model_name(str(here)) or str(path)
    return ScoredBenchmark(name=name, solutions=tuple(solutions), notes=notes.lines())


class _Config(msgspec.Struct):
    model: str


class _Manifest(msgspec.Struct):
    config: _Config


def _model_name(path: str) -> str | None:
    """The model's name, from the manifest beside the scores; None where there is none."""
    try:
        return msgspec.json.decode(Path(path + MANIFEST_SUFFIX).read_bytes(), type=_Manifest).config.model
    except (OSError, ValueError, msgspec.MsgspecError):
        return None

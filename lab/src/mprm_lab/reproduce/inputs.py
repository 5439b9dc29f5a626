"""What the lab holds that reward models are trained and measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mprm.data.candidate_formats import read_candidates
from mprm.data.corpus import hash_file
from mprm.data.output import atomic_write
from mprm.errors import DataError, InputNotFoundError
from mprm.evaluation.rerank import judge_candidates
from mprm.models import fingerprint_of
from mprm_lab.pictures import draw_missing

FILES = ("corpus", "benchmark", "validation", "candidates")
WORK = "work"
"""Folder of trainings that are under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabInputs:
    """The folder that ``mprm lab make`` wrote."""

    folder: Path
    n_rollouts: int
    hashes: dict[str, str]
    """XXH3-128 of each file, and what tells each backbone's weights from others."""

    def file(self, name: str) -> Path:
        """One of `FILES`."""
        return self.folder / f"{name}.jsonl"

    @property
    def images(self) -> Path:
        """Folder that image paths are relative to."""
        return self.folder / "images"

    @property
    def judged(self) -> Path:
        """The candidates with their verdicts, once `judge_once` has written them."""
        return self.folder / "judged.jsonl"

    def policy(self, backbone: str) -> Path:
        """Weights that training begins with."""
        return self.folder / "policies" / backbone


def find_inputs(folder: Path, backbones: tuple[str, ...]) -> LabInputs:
    """The lab's files; stops where some are missing, and names all of them."""
    wanted = [folder / f"{name}.jsonl" for name in FILES]
    wanted += [folder / "policies" / name / "config.json" for name in backbones]
    if missing := [str(path) for path in wanted if not path.is_file()]:
        raise InputNotFoundError(f"{', '.join(missing)}: not there; mprm lab make {folder} makes them")
    with (folder / "corpus.jsonl").open("rb") as lines:
        n_rollouts = sum(1 for line in lines if line.strip())
    if not n_rollouts:
        raise DataError(f"{folder / 'corpus.jsonl'}: no rollouts; remove it, and mprm lab make {folder} makes it")
    hashes = {name: hash_file(str(folder / f"{name}.jsonl")) for name in FILES}
    hashes |= {name: fingerprint_of(folder / "policies" / name) for name in backbones}
    return LabInputs(folder=folder, n_rollouts=n_rollouts, hashes=hashes)


def draw_pictures(inputs: LabInputs, say: Callable[[str], None]) -> None:
    """Draw the pictures that are not there, be it all of them."""
    if n_drawn := draw_missing([inputs.file(name) for name in FILES], inputs.images):
        say(f"{n_drawn:,} pictures were not in {inputs.images} and have been drawn")


def judge_once(inputs: LabInputs, say: Callable[[str], None]) -> None:
    """Check every candidate's answer, and keep the verdicts as labels for all cells.

    A candidate that the checker cannot decide on counts as not correct, and is told of.
    """
    note = inputs.judged.with_suffix(".of")  # the candidates that were judged
    if inputs.judged.is_file() and note.is_file() and note.read_text() == inputs.hashes["candidates"]:
        return
    sets = read_candidates(str(inputs.file("candidates")))
    say(f"checking the answers of {sum(len(entry.candidates) for entry in sets):,} candidates")
    verdicts = judge_candidates(sets)
    note.unlink(missing_ok=True)
    n_failed = sum(one.verdict == "failed" for row in verdicts for one in row)
    if n_failed:
        say(f"{n_failed:,} answers could not be checked and count as not correct")
    with atomic_write(str(inputs.judged)) as temporary, temporary.open("wb") as lines:
        for entry, row in zip(sets, verdicts, strict=True):
            question = entry.question
            record = {
                "id": question.id,
                "source": question.source,
                "question": question.question,
                "answer": question.answer,
                "image_path": list(question.images),
                "solutions_splits": [list(candidate.steps) for candidate in entry.candidates],
                "labels": [int(one.verdict == "correct") for one in row],
            }
            lines.write(msgspec.json.encode(record) + b"\n")
    note.write_text(inputs.hashes["candidates"])

"""What lies in a lab's folder, and its pictures, which are drawn where they are missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

import mprm
from mprm.data import atomic_write, hash_file, read_candidates
from mprm.errors import ConfigError, DataError, InputNotFoundError, MprmError
from mprm.models import fingerprint_of
from mprm_lab.world import write_images
from mprm_lab.world.problems import parsed_name

RECORDS = ("corpus", "validation", "benchmark", "candidates")
"""Files of the lab, ``NAME.jsonl``."""
SCORES = "scores/full.jsonl"
"""Step scores on the benchmark of a reward model that was trained from the small policy on all rollouts."""
CANDIDATE_SCORES = "scores/full-candidates.jsonl"
"""The same model's on the candidates."""
WORK = ".reproduce"
"""Folder of runs in progress."""

Log = Callable[[str], None]


class _Record(msgspec.Struct):
    """A rollout, a labeled solution or a question with candidates."""

    image: str | list[str] | None = None
    images: list[str] | None = None


def image_names(lines: Iterable[bytes], path: str) -> Iterator[str]:
    """The pictures that the records of a file name."""
    decoder = msgspec.json.Decoder(_Record)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
            names = [record.image] if isinstance(record.image, str) else record.image or record.images or []
            for name in names:
                parsed_name(name, ".png")
        except (msgspec.DecodeError, UnicodeDecodeError, DataError) as error:
            raise DataError(f"{path}:{number}: not a record of a lab: {error}") from error
        yield from names


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write to, which replaces ``path`` when the block ends, and only then."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)
    except OSError as error:
        raise MprmError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_folders(*folders: Path) -> None:
    """Stop where something else has the name of a folder that is written to."""
    for folder in folders:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise ConfigError(f"{folder} is in the way: a folder belongs there; move it elsewhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFolder:
    """A lab that ``mprm-lab make`` or ``mprm-lab open`` wrote."""

    path: Path
    n_rollouts: int
    hashes: dict[str, str]
    """XXH3-128 of each file of records, and a fingerprint of each backbone's weights."""

    @classmethod
    def read(cls, path: Path, backbones: Iterable[str]) -> LabFolder:
        """The lab; stops where files are missing, and names all of them."""
        backbones = tuple(backbones)
        wanted = [path / f"{name}.jsonl" for name in RECORDS]
        wanted += [path / "policies" / name / "config.json" for name in backbones]
        if missing := [str(file) for file in wanted if not file.is_file()]:
            raise InputNotFoundError(f"{', '.join(missing)}: not there; mprm-lab make {path} makes them")
        with (path / "corpus.jsonl").open("rb") as lines:
            n_rollouts = sum(1 for line in lines if line.strip())
        if not n_rollouts:
            raise DataError(f"{path / 'corpus.jsonl'}: no rollouts; remove it, and mprm-lab make {path} makes it")
        hashes = {name: hash_file(str(path / f"{name}.jsonl")) for name in RECORDS}
        hashes |= {name: fingerprint_of(path / "policies" / name) for name in backbones}
        return cls(path=path, n_rollouts=n_rollouts, hashes=hashes)

    def file(self, name: str) -> Path:
        """One of `RECORDS`."""
        return self.path / f"{name}.jsonl"

    def policy(self, backbone: str) -> Path:
        """The weights that training starts from."""
        return self.path / "policies" / backbone

    @property
    def images(self) -> Path:
        """Folder that image paths are relative to."""
        return self.path / "images"

    @property
    def graded(self) -> Path:
        """The candidates with their labels, once `grade_candidates` has written them."""
        return self.path / "graded.jsonl"

    def draw_missing(self, log: Log) -> None:
        """Draw the pictures that are not there, be it all of them."""
        missing: dict[str, None] = {}
        for path in map(self.file, RECORDS):
            with path.open("rb") as lines:
                missing |= {
                    name: None for name in image_names(lines, str(path)) if not (self.images / name).is_file()
                }
        if missing:
            write_images(missing, self.images)
            log(f"{len(missing):,} pictures were not in {self.images} and have been drawn")

    def grade_candidates(self, log: Log) -> None:
        """Check every candidate's answer once, and keep the grades as labels for all runs.

        A candidate that the checker cannot decide on counts as not correct; their number is logged.
        """
        source = self.graded.with_suffix(".of")  # hash of the candidates that were graded
        if self.graded.is_file() and source.is_file() and source.read_text() == self.hashes["candidates"]:
            return
        sets = read_candidates(str(self.file("candidates")))
        answers = [(candidate.text, entry.question) for entry in sets for candidate in entry.candidates]
        log(f"checking the answers of {len(answers):,} candidates")
        with mprm.AnswerChecker() as checker:
            grades = [checked.grade for checked in checker.check_many(answers)]
        source.unlink(missing_ok=True)
        if n_failed := grades.count("failed"):
            log(f"{n_failed:,} answers could not be checked and count as not correct")
        labels = iter(int(grade == "correct") for grade in grades)
        with atomic_write(str(self.graded)) as temporary, temporary.open("wb") as lines:
            for entry in sets:
                question = entry.question
                record = {
                    "id": question.id,
                    "source": question.source,
                    "question": question.question,
                    "answer": question.answer,
                    "image_path": list(question.images),
                    "solutions_splits": [list(candidate.steps) for candidate in entry.candidates],
                    "labels": list(islice(labels, len(entry.candidates))),
                }
                lines.write(msgspec.json.encode(record) + b"\n")
        source.write_text(self.hashes["candidates"])

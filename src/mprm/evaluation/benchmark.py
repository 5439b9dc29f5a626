"""A benchmark: its files, the solutions in them, and whether their images are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.evaluation.benchmarks.benchmark_format import BenchmarkFormat, Place
from mprm.evaluation.benchmarks.formats import benchmark_format
from mprm.evaluation.benchmarks.labelled_rollouts import solutions_of_rollouts
from mprm.evaluation.benchmarks.read_records import read_records, stop_at
from mprm.evaluation.notes import Notes
from mprm.evaluation.solution import Solution
from mprm.rollouts.chain import Chain
from mprm.rollouts.corpus import Paths
from mprm.rollouts.files import CorpusFile, corpus_files
from mprm.rollouts.images import broken_image
from mprm.rollouts.judge import leaves_root
from mprm.rollouts.manifest import hash_file

MISSING_SHOWN = 20
"""Missing images that a message lists."""
OCCURS_TWICE = "source, question, images, steps and labels are those of an earlier record; both count"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFile:
    """One file of a benchmark, as a manifest tells of it."""

    path: str
    format: str
    n_bytes: int
    xxh3_128: str | None
    n_solutions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Solutions with judged steps."""

    solutions: tuple[Solution, ...]
    files: tuple[BenchmarkFile, ...] = ()
    notes: tuple[str, ...] = ()
    """What is odd about some records, how many, and where the first is."""

    @property
    def chains(self) -> list[Chain]:
        """What is to be scored; solutions that are alike are scored once."""
        return list(dict.fromkeys(solution.chain for solution in self.solutions))


def read_benchmark(
    paths: Paths, *, format: str | None = None, tau: float = 0.0, text_only: bool = False
) -> Benchmark:
    """Read the solutions of every file; stops at the first bad record.

    Parameters
    ----------
    paths
        Files, globs, folders or URLs: JSON lines, JSON arrays or Parquet.
    format
        Name of a benchmark or of a rollout format, where the first record must not decide.
    tau
        A step of a rollout is correct when its score is strictly above it.
    text_only
        Accept records without an image.
    """
    notes = Notes()
    solutions: list[Solution] = []
    files: list[BenchmarkFile] = []
    for file in corpus_files(paths):
        name, found = _read_file(file, format, tau, text_only, notes)
        before = len(solutions)
        solutions += found
        digest = None if file.is_remote else hash_file(file.path)
        files.append(
            BenchmarkFile(
                path=file.path,
                format=name,
                n_bytes=file.n_bytes,
                xxh3_128=digest,
                n_solutions=len(solutions) - before,
            )
        )
    if not solutions:
        named = ", ".join(file.path for file in files)
        raise DataError(f"{named}: no solution to evaluate; expected at least one record")
    _note_doubles(solutions, notes)
    return Benchmark(solutions=tuple(solutions), files=tuple(files), notes=notes.lines())


def _note_doubles(solutions: Iterable[Solution], notes: Notes) -> None:
    """Note each solution that was there before, in whichever file."""
    seen = set()
    for solution in solutions:
        content = (solution.source, solution.chain, solution.labels)
        if content in seen:
            notes(solution.place, OCCURS_TWICE)
        seen.add(content)


def _read_file(
    file: CorpusFile, format_name: str | None, tau: float, text_only: bool, notes: Notes
) -> tuple[str, Iterator[Solution]]:
    first = None if format_name is not None else next(read_records(file), None)
    fmt = benchmark_format(format_name, first, file.path)
    if isinstance(fmt, BenchmarkFormat):
        found = _read_benchmark_file(file, fmt, text_only, notes)
        return fmt.name, _once(found) if fmt.has_unique_ids else found
    return fmt.name, solutions_of_rollouts(file.path, fmt.name, tau=tau, text_only=text_only, note=notes)


def _read_benchmark_file(file: CorpusFile, fmt: BenchmarkFormat, text_only: bool, notes: Notes) -> Iterator[Solution]:
    for line, record in read_records(file):
        where = f"{file.path}:{line}"
        place = Place(file.path, line, file.source, text_only, lambda text, where=where: notes(where, text))  # type: ignore[misc]
        yield from fmt.parse(record, place, stop_at(where))


def _once(solutions: Iterable[Solution]) -> Iterator[Solution]:
    """The solutions of a file; stops at an id that was there before."""
    places: dict[str, str] = {}
    for solution in solutions:
        if solution.id in places:
            raise DataError(
                f"{solution.place}: the id {solution.id!r} is that of {places[solution.id]} too, and each record"
                " counts; take one of them out of the file, or give it an id of its own"
            )
        places[solution.id] = solution.place
        yield solution


def _image_places(benchmark: Benchmark) -> dict[str, str]:
    """Every image, and the first record that names it."""
    places: dict[str, str] = {}
    for solution in benchmark.solutions:
        for image in solution.images:
            places.setdefault(image, solution.place)
    return places


def refuse_missing_images(benchmark: Benchmark, image_root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image is not below the image root; names the missing ones."""
    wanted = _image_places(benchmark)
    if not wanted:
        return
    if image_root is None:
        raise ConfigError(
            f"{len(wanted):,} images are named, such as {next(iter(wanted))};"
            " say which folder holds them with --image-root DIR"
        )
    root = Path(image_root).expanduser()
    if not root.is_dir():
        raise ConfigError(f"the image root {root} is not a folder")
    outside = next((image for image in wanted if leaves_root(image)), None)
    if outside is not None:
        raise DataError(f"{wanted[outside]}: image path {outside!r} leaves the image root; expected a path below it")
    missing = [f"{image} ({place})" for image, place in wanted.items() if not (root / image).is_file()]
    if missing:
        more = f"\n… and {len(missing) - MISSING_SHOWN:,} more" if len(missing) > MISSING_SHOWN else ""
        raise InputNotFoundError(
            f"{len(missing):,} of {len(wanted):,} images are not under {root}; put them there or name another"
            " --image-root:\n" + "\n".join(sorted(missing)[:MISSING_SHOWN]) + more
        )


def refuse_broken_images(benchmark: Benchmark, image_root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image cannot be decoded to its end; names all of them.

    See `refuse_missing_images` for those that are not there. A model reads the images, so this needs Pillow;
    without images it does not.
    """
    places = _image_places(benchmark)
    root = None if image_root is None else Path(image_root).expanduser()
    with ThreadPoolExecutor() as pool:
        reasons = pool.map(lambda image: broken_image(image, root), places)
        found = zip(places.values(), reasons, strict=True)
        broken = [f"{place}: {reason}" for place, reason in found if reason is not None]
    if broken:
        raise DataError(
            f"{len(broken):,} of {len(places):,} images cannot be used; mend them, or take out their records:\n"
            + "\n".join(broken)
        )

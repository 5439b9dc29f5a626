"""A benchmark: its files, the solutions in them, and whether their images are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.evaluation.benchmarks.benchmark_format import BenchmarkFormat, Place
from mprm.evaluation.benchmarks.formats import benchmark_format
from mprm.evaluation.benchmarks.labelled_rollouts import solutions_of_rollouts
from mprm.evaluation.benchmarks.read_records import read_records, stop_at
from mprm.evaluation.solution import Solution
from mprm.rollouts.chain import Chain
from mprm.rollouts.corpus import Paths
from mprm.rollouts.files import CorpusFile, corpus_files
from mprm.rollouts.judge import leaves_root
from mprm.rollouts.manifest import hash_file

MISSING_SHOWN = 20
"""Missing images that a message lists."""


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


class _Notes:
    """Counts what is odd, and keeps the first place of each."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def __call__(self, place: str, text: str) -> None:
        n, first = self._found.get(text, (0, place))
        self._found[text] = (n + 1, first)

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{n:,} records: {text} (the first {first})" for text, (n, first) in self._found.items())


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
    notes = _Notes()
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
    return Benchmark(solutions=tuple(solutions), files=tuple(files), notes=notes.lines())


def _read_file(
    file: CorpusFile, format_name: str | None, tau: float, text_only: bool, notes: _Notes
) -> tuple[str, Iterator[Solution]]:
    first = None if format_name is not None else next(read_records(file), None)
    fmt = benchmark_format(format_name, first, file.path)
    if isinstance(fmt, BenchmarkFormat):
        return fmt.name, _read_benchmark_file(file, fmt, text_only, notes)
    return fmt.name, solutions_of_rollouts(file.path, fmt.name, tau=tau, text_only=text_only, note=notes)


def _read_benchmark_file(
    file: CorpusFile, fmt: BenchmarkFormat, text_only: bool, notes: _Notes
) -> Iterator[Solution]:
    for line, record in read_records(file):
        where = f"{file.path}:{line}"
        place = Place(file.path, line, file.source, text_only, lambda text, where=where: notes(where, text))  # type: ignore[misc]
        yield from fmt.parse(record, place, stop_at(where))


def refuse_missing_images(benchmark: Benchmark, image_root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image is not below the image root; names the missing ones."""
    wanted = {image: solution.place for solution in reversed(benchmark.solutions) for image in solution.images}
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

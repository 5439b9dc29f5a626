"""What is odd about records that can be used all the same.

Labelled rollouts of any format that mprm reads, as a benchmark.

The records of a benchmark's file: JSON lines, one JSON array, or Parquet rows, packed or not.

A benchmark: its files, the solutions in them, and whether their images are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

from mprm.data.benchmark_formats import BenchmarkFormat, Place, benchmark_format
from mprm.data.corpus import CountedLines, Paths, hash_file, is_blank, open_corpus, record_of, rollouts_of
from mprm.data.format import Record
from mprm.data.images import broken_image
from mprm.data.records import CorpusFile, chunks_of, corpus_files, lines_of
from mprm.data.types import CORRECT, INCORRECT, Chain, Rollout, Solution, first_error_of, problem_key
from mprm.data.validate import CHECK_ONLY, ERRORS, WARNINGS, Report, leaves_root
from mprm.errors import ConfigError, DataError, InputNotFoundError


class Notes:
    """Counts what is odd, and keeps the first place of each."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def __call__(self, place: str, text: str) -> None:
        """Note something odd at a place."""
        n, first = self._found.get(text, (0, place))
        self._found[text] = (n + 1, first)

    def lines(self) -> tuple[str, ...]:
        """What was odd, how often, and where first."""
        return tuple(f"{n:,} records: {text} (the first {first})" for text, (n, first) in self._found.items())


def solutions_of_rollouts(
    path: str, format_name: str, *, tau: float, text_only: bool, note: Callable[[str, str], None]
) -> Iterator[Solution]:
    """The file's rollouts as solutions: a step is correct when its score is strictly above ``tau``.

    Parameters
    ----------
    note
        Takes a place and what is odd there, such as steps that were never sampled.
    """
    corpus = open_corpus([path], format=format_name, text_only=text_only)
    first_line, last_line, n_on_line = 1, 0, 0
    for chunk in corpus.chunks:
        lines = CountedLines(lines_of(chunk))
        report_at = _reports(path, first_line, note)
        for number, rollout in rollouts_of(lines, chunk, corpus.judgement, report_at):
            line = first_line + number
            n_on_line = n_on_line + 1 if line == last_line else 1
            last_line = line
            yield _solution(rollout, Place(path, line, chunk.source), n_on_line, tau)
        first_line += lines.n_lines


def _solution(rollout: Rollout, place: Place, n_on_line: int, tau: float) -> Solution:
    labels = tuple(CORRECT if score > tau else INCORRECT for score in rollout.scores)
    return Solution(
        id=place.id if n_on_line == 1 else f"{place.id}.{n_on_line}",  # a record may hold several rollouts
        source=rollout.source or place.source,
        problem=problem_key(rollout.question, rollout.images),
        question=rollout.question,
        images=rollout.images,
        steps=tuple(step.text for step in rollout.steps),
        labels=labels,
        first_error=first_error_of(labels),
        place=str(place),
    )


def _reports(path: str, first_line: int, note: Callable[[str, str], None]) -> Callable[[int], Report]:
    """Reports for each line of a chunk: errors stop, warnings are noted."""

    def report_at(number: int) -> Report:
        place = f"{path}:{first_line + number}"

        def report(kind: str, text: str) -> None:
            if kind in ERRORS and kind not in CHECK_ONLY:
                raise DataError(f'{place}: {text}. Mend the record; "mprm check {path}" lists all bad ones.')
            if kind in WARNINGS:
                note(place, WARNINGS[kind])

        return report

    return report_at


BLANK = re.compile(r"[ \t\r\n]*")
"""What JSON allows between its parts."""
SHOWN = 40
"""Characters that a message shows of what should not be there."""


def read_records(file: CorpusFile) -> Iterator[tuple[int, Record]]:
    """(line that it begins at, record) of each record; stops at the first that is no JSON object."""
    lines = chain.from_iterable(lines_of(chunk) for chunk in chunks_of(file))
    is_first = True
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            continue
        if is_first and line.lstrip().startswith(b"["):
            yield from _array_records(line + b"".join(lines), file.path, number)
            return
        is_first = False
        yield number, _record(line, f"{file.path}:{number}")


def stop_at(place: str) -> Report:
    """A report that raises, with the place, at whatever is wrong."""

    def report(_kind: str, text: str) -> None:
        raise DataError(f"{place}: {text}. Mend the record, or take it out of the file.")

    return report


def _record(line: bytes, place: str) -> Record:
    record = record_of(line, stop_at(place))
    assert record is not None  # anything else was reported, and so raised
    return record


def _array_records(data: bytes, path: str, line: int) -> Iterator[tuple[int, Record]]:
    """The objects of one JSON array that begins at ``line``, each with the line that it begins at itself."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    decoder, counted = json.JSONDecoder(), 0
    at = _past_blank(text, text.index("[") + 1)
    is_closed = text.startswith("]", at)
    while not is_closed:
        line, counted = line + text.count("\n", counted, at), at
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{line}: not JSON: {error}. Expected an array of objects.") from error
        yield line, _record(text[at:end].encode(), f"{path}:{line}")
        at = _past_blank(text, end)
        is_closed = text.startswith("]", at)
        if not is_closed and not text.startswith(",", at):
            _check_rest(text, at, path, line + text.count("\n", counted, at), "a comma or ] after the record")
        at = at if is_closed else _past_blank(text, at + 1)
    end = _past_blank(text, at + 1)
    if end < len(text):
        _check_rest(text, end, path, line + text.count("\n", counted, end), "nothing after the array")


def _past_blank(text: str, start: int) -> int:
    return BLANK.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too


def _check_rest(text: str, at: int, path: str, line: int, expected: str) -> NoReturn:
    found = repr(text[at : at + SHOWN]) if at < len(text) else "the end of the file"
    raise DataError(f"{path}:{line}: not JSON: found {found}; expected {expected}. Mend the file.")


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


def check_images_exist(benchmark: Benchmark, image_root: str | Path | None) -> None:
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


def check_images_readable(benchmark: Benchmark, image_root: str | Path | None) -> None:
    """Stop, before hours of scoring, when an image cannot be decoded to its end; names all of them.

    See `check_images_exist` for those that are not there. A model reads the images, so this needs Pillow;
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

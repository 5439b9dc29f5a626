"""Step benchmarks: solutions whose steps someone labelled; their formats, and reading them.

To add a format: write its parse function and a `BenchmarkFormat` in `BENCHMARK_FORMATS`. Rollouts of any format that
mprm reads are a benchmark too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from mprm.data.corpus import open_corpus
from mprm.data.format import (
    Data,
    Format,
    by_name,
    check_no_bad,
    field,
    format_named,
    format_of,
    has,
    image_field,
    optional_text,
    read_items,
    text_of,
)
from mprm.data.output import hash_file
from mprm.data.records import DataFile, Paths, find_files, read_records
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.types import CORRECT, IGNORED, INCORRECT, WARNINGS, BadRecord, Chain, Issues, Solution, problem_key
from mprm.errors import DataError, counted, shown

Notes = dict[str, list[str]]
"""What is odd about some records, and where they are."""
OCCURS_TWICE = "source, question, images, steps and labels are those of an earlier record; both count"
REMEDY = 'Fix or remove these records; for rollouts "mprm check FILE" lists every issue.'


@dataclass(frozen=True, slots=True)
class BenchmarkFormat(Format[Solution]):
    """One way in which people store solutions with labelled steps.

    A solution's source and id may be left empty: the file's name, and FILE:LINE, are filled in.
    """

    needs_image: bool = False
    has_unique_ids: bool = True
    """Whether an id that occurs twice in a file is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Solutions with labelled steps."""

    solutions: tuple[Solution, ...]
    files: tuple[dict[str, Any], ...] = ()
    """What a manifest says of each file."""
    notes: tuple[str, ...] = ()
    """What is odd about some records, how many, and where the first is."""

    @property
    def chains(self) -> list[Chain]:
        """What is to be scored, equal solutions once."""
        return list(dict.fromkeys(solution.chain for solution in self.solutions))

    @property
    def image_locations(self) -> dict[str, str]:
        """Every image, and the first record that names it."""
        locations: dict[str, str] = {}
        for solution in self.solutions:
            for image in solution.images:
                locations.setdefault(image, solution.location)
        return locations


def read_benchmark(
    paths: Paths, *, format: str | None = None, tau: float = 0.0, text_only: bool = False
) -> Benchmark:
    """The solutions of every file.

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
    notes: Notes = {}
    solutions: list[Solution] = []
    files: list[dict[str, Any]] = []
    bad: list[str] = []
    every: Mapping[str, Format[Any]] = {**BENCHMARK_FORMATS, **ROLLOUT_FORMATS}
    for file in find_files(paths):
        fmt = format_named(format, every, "benchmark") if format is not None else _format_of_file(file, every)
        n_before = len(solutions)
        if isinstance(fmt, BenchmarkFormat):
            solutions += _read_file(file, fmt, text_only, notes, bad)
        else:
            solutions += _solutions_of_rollouts(file, fmt.name, tau, text_only, notes, bad)
        digest = None if file.is_remote else hash_file(file.path)
        entry = {"path": file.name, "format": fmt.name, "n_bytes": file.n_bytes, "xxh3_128": digest}
        files.append({**entry, "n_solutions": len(solutions) - n_before})
    check_no_bad(bad, REMEDY)
    if not solutions:
        names = ", ".join(file["path"] for file in files)
        raise DataError(f"{names}: no solution to evaluate; expected at least one record")
    first: dict[Any, Solution] = {}
    for solution in solutions:
        if first.setdefault((solution.source, solution.chain, solution.labels), solution) is not solution:
            notes.setdefault(OCCURS_TWICE, []).append(solution.location)
    lines = [f"{counted(len(where), 'record')}: {text} (the first {where[0]})" for text, where in notes.items()]
    return Benchmark(solutions=tuple(solutions), files=tuple(files), notes=tuple(lines))


def _format_of_file(file: DataFile, formats: Mapping[str, Format[Any]]) -> Format[Any]:
    first = next(read_records(file), None)
    if first is None:
        raise DataError(f"{file.path}: the file holds no record; expected solutions with labelled steps")
    try:
        if isinstance(first.data, BadRecord):
            raise first.data
        return format_of(first.data, formats, "benchmark")
    except BadRecord as reason:
        raise DataError(f"{first.location}: {reason}. {REMEDY}") from None


def _read_file(
    file: DataFile, fmt: BenchmarkFormat, text_only: bool, notes: Notes, bad: list[str]
) -> Iterator[Solution]:
    locations: dict[str, str] = {}
    for record, items, warnings in read_items(file, {fmt.name: fmt}, "benchmark", fmt.name, bad):
        for _, text in warnings:
            notes.setdefault(text, []).append(record.location)
        for number, item in enumerate(items, start=1):
            own_id = item.id or _default_id(file, record.number, number)
            source, benchmark = item.source or file.source, item.benchmark or fmt.name
            solution = replace(item, id=own_id, source=source, benchmark=benchmark, location=record.location)
            if fmt.needs_image and not solution.images and not text_only:
                bad.append(f"{record.location}: the record names no image; expected a path, or --text-only")
            elif fmt.has_unique_ids and solution.id in locations:
                other = f"the id {solution.id!r} is that of {locations[solution.id]} too"
                bad.append(f"{record.location}: {other}; take one of them out, or give it an id of its own")
            else:
                locations[solution.id] = record.location
                yield solution


def _solutions_of_rollouts(
    file: DataFile, format_name: str, tau: float, text_only: bool, notes: Notes, bad: list[str]
) -> Iterator[Solution]:
    """The file's rollouts as solutions: a step is correct when its score is strictly above ``tau``."""

    def note(where: str, issues: Issues) -> None:
        for kind, _ in issues:
            if kind in WARNINGS:
                notes.setdefault(WARNINGS[kind], []).append(where.replace(file.path, file.name))

    last_line, n_on_line = 0, 0
    corpus = open_corpus([file.path], format=format_name, text_only=text_only)
    rollouts = corpus.located(lambda dropped: bad.append(f"{dropped.file}:{dropped.line}: {dropped.reason}"), note)
    for located in rollouts:
        n_on_line = n_on_line + 1 if located.line == last_line else 1
        last_line = located.line
        rollout = located.rollout
        yield _solution(
            rollout.question,
            rollout.chain.steps,
            rollout.images,
            labels=tuple(CORRECT if score > tau else INCORRECT for score in rollout.scores),
            id=_default_id(file, located.line, n_on_line),
            source=located.source,
            location=f"{file.name}:{located.line}",
        )


def _default_id(file: DataFile, record: int, number: int) -> str:
    """A name for the solution: its file and record, and its number where the record holds several."""
    return f"{file.source}:{record}" if number == 1 else f"{file.source}:{record}.{number}"


def _steps(data: Data, key: str) -> tuple[str, ...]:
    """The texts under ``key``, at least one."""
    texts = field(data, key, list)
    if not texts:
        raise BadRecord(f'"{key}" is empty; expected at least one step')
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadRecord(f'step {index} of "{key}" is {shown(text)}; expected text')
    return tuple(texts)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_numbers(data: Data, key: str) -> tuple[int, ...]:
    values = field(data, key, list)
    if not all(map(_is_whole, values)):
        raise BadRecord(f'"{key}" holds {shown(values)}; expected whole numbers')
    return tuple(values)


def _labels(data: Data, key: str, n_steps: int, meaning: Mapping[int, int], expected: str) -> tuple[int, ...]:
    """The label of each step: what the numbers under ``key`` mean."""
    numbers = _whole_numbers(data, key)
    if len(numbers) != n_steps:
        raise BadRecord(f"there are {n_steps} steps and {len(numbers)} labels; expected as many")
    for index, number in enumerate(numbers):
        if number not in meaning:
            raise BadRecord(f"step {index} has label {shown(number)}; expected {expected}")
    return tuple(meaning[number] for number in numbers)


def _solution(question: str, steps: tuple[str, ...], images: tuple[str, ...] = (), **fields: Any) -> Solution:
    """A solution of the problem that question and images are; the reader fills in an empty id or source."""
    own = {"problem": problem_key(question, images), **fields}
    return Solution(question=question, steps=steps, images=images, **own)


def _response(data: Data) -> dict[str, Any]:
    response = data.get("response")
    return response if isinstance(response, dict) else {}


def parse_visualprocessbench(data: Data, _issues: Issues) -> tuple[Solution, ...]:
    """VisualProcessBench: 1 correct, 0 neutral, -1 incorrect; the source is the record's data source."""
    question, response = text_of(data, "question"), _response(data)
    steps = _steps(response, "steps")
    labels = _labels(
        response, "process_correctness", len(steps), {1: CORRECT, 0: IGNORED, -1: INCORRECT}, "1, 0 or -1"
    )
    images, own_id = image_field(data), optional_text(data, "id") or ""
    source = optional_text(data, "data_source") or ""
    return (_solution(question, steps, images, labels=labels, id=own_id, source=source),)


def parse_processbench(data: Data, _issues: Issues) -> tuple[Solution, ...]:
    """ProcessBench: the index of the first error; the source is the file, as it has one file a data set."""
    question, steps = text_of(data, "problem"), _steps(data, "steps")
    n, label = len(steps), data.get("label")
    if not _is_whole(label) or not -1 <= label < n:
        raise BadRecord(f'"label" is {shown(label)}; expected a step from 0 to {n - 1}, or -1 for none')
    n_correct = n if label == -1 else label
    # nobody labelled what comes after the first error
    labels = (CORRECT,) * n_correct + (INCORRECT,) + (IGNORED,) * n
    return (_solution(question, steps, labels=labels[:n], id=optional_text(data, "id") or ""),)


PAST_THE_END = "error steps beyond the last step count for nothing, as in PRMBench's own evaluation"
NONE_LEFT = "every error step lies beyond the last step; the modified solution, whose errors are unknown, is left out"


def parse_prmbench(data: Data, issues: Issues) -> tuple[Solution, ...]:
    """PRMBench: the original solution, all correct, and the modified one; the source of both is the classification.

    The problem is the question before it was modified.
    """
    name = optional_text(data, "idx")
    source = optional_text(data, "classification") or ""
    original = optional_text(data, "question") or field(data, "original_question", str)
    errors = _whole_numbers(data, "error_steps")
    if any(number < 1 for number in errors):
        raise BadRecord(f'"error_steps" holds {list(errors)}; expected step numbers, the first step is 1')
    solutions = []
    for kind in ("original", "modified"):
        question = text_of(data, f"{kind}_question")
        steps = _steps(data, f"{kind}_process")
        wrong = set(errors) if kind == "modified" else set()
        if wrong and min(wrong) > len(steps):
            issues.add("error_past_the_end", NONE_LEFT)
            continue
        if wrong and max(wrong) > len(steps):
            issues.add("error_past_the_end", PAST_THE_END)
        labels = tuple(INCORRECT if number in wrong else CORRECT for number in range(1, len(steps) + 1))
        own_id, benchmark = f"{name}/{source}/{kind}" if name else "", f"prmbench/{kind}"
        fields = {"labels": labels, "id": own_id, "source": source, "benchmark": benchmark}
        solutions.append(_solution(question, steps, (), problem=problem_key(original), **fields))
    return tuple(solutions)


def parse_vlrmbench(data: Data, _issues: Issues) -> tuple[Solution, ...]:
    """VLRMBench's files of errors put into a solution, such as ``location_error.jsonl``; the source is the category.

    Its steps stand in one text, each behind ``STEP1:``, ``STEP2:`` and so on; ``task_gt`` is 1 for the steps with an
    error. ``step_list``, the solution before errors were put in, is not labelled.
    """
    question = text_of(data, "question")
    text = field(data, "reasoning_error", str)
    steps = tuple(step.strip() for step in re.split(r"(?=STEP\d+:)", text) if step.strip())
    if not steps:
        raise BadRecord('"reasoning_error" is empty; expected steps behind STEP1:, STEP2: and so on')
    labels = _labels(data, "task_gt", len(steps), {0: CORRECT, 1: INCORRECT}, "1 for an error, else 0")
    images, own_id = image_field(data), optional_text(data, "id") or ""
    source = optional_text(data, "category") or ""
    return (_solution(question, steps, images, labels=labels, id=own_id, source=source),)


BENCHMARK_FORMATS: dict[str, BenchmarkFormat] = by_name(
    BenchmarkFormat(
        "visualprocessbench",
        has("response", when=lambda data: "process_correctness" in _response(data)),
        parse_visualprocessbench,
        needs_image=True,
    ),
    BenchmarkFormat("processbench", has("problem", "steps", "label"), parse_processbench),
    BenchmarkFormat(
        "prmbench",
        has("original_process", "modified_process", "error_steps"),
        parse_prmbench,
        has_unique_ids=False,  # as published, five ids have two records each, with other errors put in
    ),
    BenchmarkFormat("vlrmbench", has("reasoning_error", "task_gt"), parse_vlrmbench, needs_image=True),
)

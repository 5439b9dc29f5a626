"""Labelled rollouts of any format that mprm reads, as a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mprm.errors import DataError
from mprm.evaluation.benchmarks.benchmark_format import Place
from mprm.evaluation.solution import CORRECT, INCORRECT, Solution, first_error_of, problem_key
from mprm.rollouts.chunks import lines_of
from mprm.rollouts.corpus import CountedLines, open_corpus, rollouts_of
from mprm.rollouts.problem import CHECK_ONLY, ERRORS, WARNINGS, Report
from mprm.rollouts.rollout import Rollout


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

"""PRMBench: correct solutions of text problems, and the same with errors of nine kinds put in."""

from __future__ import annotations

from collections.abc import Iterator

from mprm.evaluation.benchmarks.benchmark_format import (
    BenchmarkFormat,
    Place,
    question_text,
    texts_field,
    whole_numbers,
)
from mprm.evaluation.solution import CORRECT, INCORRECT, Solution, first_error_of, problem_key
from mprm.rollouts.fields import optional_text, text_field
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report

PAST_THE_END = "error steps beyond the last step count for nothing, as in PRMBench's own evaluation"
NONE_LEFT = "every error step lies beyond the last step; the modified solution, whose errors are unknown, is left out"


def parse(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The original solution, all correct, and the modified one; the source of both is the classification.

    The problem is the question before it was modified.
    """
    return tuple(_solutions(record, place, report))


def _solutions(record: Record, place: Place, report: Report) -> Iterator[Solution]:
    name = optional_text(record, "idx", report) or place.id
    source = optional_text(record, "classification", report) or place.source
    asked = optional_text(record, "question", report) or text_field(record, "original_question", report) or ""
    errors = whole_numbers(record, "error_steps", report)
    if any(number < 1 for number in errors):
        report("wrong_type", f'"error_steps" holds {list(errors)}; expected step numbers, the first step is 1')
    for kind in ("original", "modified"):
        question = question_text(text_field(record, f"{kind}_question", report), f"{kind}_question", report)
        steps = texts_field(record, f"{kind}_process", report)
        wrong = set(errors) if kind == "modified" else set()
        if wrong and min(wrong) > len(steps):
            place.note(NONE_LEFT)
            continue
        if wrong and max(wrong) > len(steps):
            place.note(PAST_THE_END)
        labels = tuple(INCORRECT if number in wrong else CORRECT for number in range(1, len(steps) + 1))
        yield Solution(
            id=f"{name}/{source}/{kind}",
            source=source,
            problem=problem_key(asked),
            question=question,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        )


PRMBENCH = BenchmarkFormat(
    name="prmbench",
    title="PRMBench",
    recognise=lambda record: {"original_process", "modified_process", "error_steps"} <= record.keys(),
    parse=parse,
    has_unique_ids=False,  # as published, five ids have two records each, with other errors put in
)

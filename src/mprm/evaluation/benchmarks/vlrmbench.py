"""VLRMBench's files of errors put into a multimodal solution, such as ``location_error.jsonl``."""

from __future__ import annotations

import re

from mprm.evaluation.benchmarks.benchmark_format import (
    BenchmarkFormat,
    Place,
    needed_images,
    question_text,
    same_length,
    whole_numbers,
)
from mprm.evaluation.solution import CORRECT, INCORRECT, Solution, first_error_of, problem_key
from mprm.rollouts.fields import optional_text, shown, text_field
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report

STEP = re.compile(r"(?=STEP\d+:)")


def parse(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The solution with errors in it; the source is the category.

    Its steps stand in one text, each behind ``STEP1:``, ``STEP2:`` and so on; ``task_gt`` is 1 for
    the steps with an error. ``step_list``, the solution before errors were put in, is not judged.
    """
    question = question_text(text_field(record, "question", report), "question", report)
    images = needed_images(record, place, report)
    text = text_field(record, "reasoning_error", report) or ""
    steps = tuple(step.strip() for step in STEP.split(text) if step.strip())
    if not steps:
        report("no_steps", '"reasoning_error" is empty; expected steps behind STEP1:, STEP2: and so on')
    marks = whole_numbers(record, "task_gt", report)
    same_length(steps, marks, report)
    for number, mark in enumerate(marks):
        if mark not in (0, 1):
            report("wrong_type", f"step {number} has task_gt {shown(mark)}; expected 1 for an error, else 0")
    labels = tuple(INCORRECT if mark else CORRECT for mark in marks)
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=optional_text(record, "category", report) or place.source,
            problem=problem_key(question, images),
            question=question,
            images=images,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        ),
    )


VLRMBENCH = BenchmarkFormat(
    name="vlrmbench",
    title="VLRMBench, files of errors",
    recognise=lambda record: {"reasoning_error", "task_gt"} <= record.keys(),
    parse=parse,
)

"""VisualProcessBench: solutions of multimodal problems, every step judged by people."""

from __future__ import annotations

from typing import Any

from mprm.evaluation.benchmarks.benchmark_format import (
    BenchmarkFormat,
    Place,
    needed_images,
    question_text,
    same_length,
    texts_field,
    whole_numbers,
)
from mprm.evaluation.solution import Solution, first_error_of, problem_key
from mprm.rollouts.fields import optional_text, shown, text_field
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report


def recognise(record: Record) -> bool:
    """Whether the record has a response with a judgement of each step."""
    return "process_correctness" in _response(record)


def parse(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The record's one solution: 1 correct, 0 neutral, -1 incorrect; the source is its data source."""
    question = question_text(text_field(record, "question", report), "question", report)
    images = needed_images(record, place, report)
    steps = texts_field(_response(record), "steps", report)
    labels = whole_numbers(_response(record), "process_correctness", report)
    same_length(steps, labels, report)
    for number, label in enumerate(labels):
        if label not in (-1, 0, 1):
            report("wrong_type", f"step {number} has label {shown(label)}; expected 1, 0 or -1")
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=optional_text(record, "data_source", report) or place.source,
            problem=problem_key(question, images),
            question=question,
            images=images,
            steps=steps,
            labels=labels,
            first_error=first_error_of(labels),
            place=str(place),
        ),
    )


def _response(record: Record) -> dict[str, Any]:
    response = record.get("response")
    return response if isinstance(response, dict) else {}


VISUALPROCESSBENCH = BenchmarkFormat(
    name="visualprocessbench", title="VisualProcessBench", recognise=recognise, parse=parse
)

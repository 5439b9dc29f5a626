"""ProcessBench: solutions of text problems, with the place of the first error."""

from __future__ import annotations

from mprm.evaluation.benchmarks.benchmark_format import BenchmarkFormat, Place, is_whole, question_text, texts_field
from mprm.evaluation.solution import CORRECT, IGNORED, INCORRECT, Solution, problem_key
from mprm.rollouts.fields import optional_text, shown, text_field
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report


def parse(record: Record, place: Place, report: Report) -> tuple[Solution, ...]:
    """The record's one solution; the source is the file, as ProcessBench has one file a data set."""
    question = question_text(text_field(record, "problem", report), "problem", report)
    steps = texts_field(record, "steps", report)
    label = record.get("label")
    if not is_whole(label) or not -1 <= label < len(steps):  # type: ignore[operator]
        report("wrong_type", f'"label" is {shown(label)}; expected a step from 0 to {len(steps) - 1}, or -1 for none')
    first_error = None if label == -1 else label
    return (
        Solution(
            id=optional_text(record, "id", report) or place.id,
            source=place.source,
            problem=problem_key(question),
            question=question,
            steps=steps,
            labels=labels_up_to(first_error, len(steps)),
            first_error=first_error,
            place=str(place),
        ),
    )


def labels_up_to(first_error: int | None, n_steps: int) -> tuple[int, ...]:
    """Labels that the place of the first error gives: nobody judged what comes after it.

    Examples
    --------
    >>> labels_up_to(1, 4), labels_up_to(None, 2)
    ((1, -1, 0, 0), (1, 1))
    """
    if first_error is None:
        return (CORRECT,) * n_steps
    return (CORRECT,) * first_error + (INCORRECT,) + (IGNORED,) * (n_steps - first_error - 1)


PROCESSBENCH = BenchmarkFormat(
    name="processbench",
    title="ProcessBench",
    recognise=lambda record: {"problem", "steps", "label"} <= record.keys(),
    parse=parse,
)

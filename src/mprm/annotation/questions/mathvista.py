"""MathVista: free answers with unit and precision, and choices whose gold answer is the text of the right one."""

from __future__ import annotations

from mprm.annotation.questions.format import (
    QuestionFormat,
    Record,
    gold_letter,
    images_of,
    options_of,
    question_text,
    text_of,
)
from mprm.annotation.questions.question import Question


def parse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question, with what the data set's own hint says about unit and digits."""
    text, answer = text_of(record, "question"), text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "question_type") == "multi_choice":
        options = options_of(record, "choices")
        answer = gold_letter(answer, options, text_first=True)
    else:
        if unit := text_of(record, "unit", default=""):
            text += f" (Unit: {unit})"
        precision = record.get("precision")
        if text_of(record, "answer_type", default="") == "float" and isinstance(precision, int | float):
            text += f"\nGive the answer with {precision:.0f} digit(s) after the point."
    return Question(
        id=text_of(record, "pid", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=MATHVISTA.name,
        options=options,
    )


MATHVISTA = QuestionFormat(
    name="mathvista",
    title="MathVista",
    recognise=lambda record: {"pid", "question", "choices", "question_type"} <= record.keys(),
    parse=parse,
)

"""MathVision (MATH-V): competition questions with one picture each; options may be in the picture only."""

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
    """The question; no options mean an open answer."""
    options = options_of(record, "options")
    answer = text_of(record, "answer")
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text_of(record, "question"), options),
        answer=gold_letter(answer, options) if options else answer,
        images=images_of(record, "image"),
        source=MATHVISION.name,
        options=options,
    )


MATHVISION = QuestionFormat(
    name="mathvision",
    title="MathVision",
    recognise=lambda record: {"id", "question", "options", "answer", "image", "level", "subject"} <= record.keys(),
    parse=parse,
)

"""DynaMath: one JSON object with a question under each number; options stand in the question's text."""

from __future__ import annotations

from mprm.annotation.questions.format import (
    BadRecord,
    QuestionFormat,
    Record,
    gold_letter,
    images_of,
    question_text,
    text_of,
)
from mprm.annotation.questions.options import options_in
from mprm.annotation.questions.question import Question


def parse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question, whose id is its number in the file."""
    text, answer = text_of(record, "question"), text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "answer_type") == "multiple choice":
        options = options_in(text)
        if not options:
            raise BadRecord(
                'the question is "multiple choice" but lists no options; expected (A) … (B) … or A. … B. …'
            )
        answer = gold_letter(answer, options)
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=DYNAMATH.name,
        options=options,
    )


DYNAMATH = QuestionFormat(
    name="dynamath",
    title="DynaMath",
    recognise=lambda record: (
        {"question", "answer", "image", "answer_type", "subject", "level"} <= record.keys() and "pid" not in record
    ),
    parse=parse,
)

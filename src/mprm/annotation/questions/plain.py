"""Plain questions: the format that everyone can make."""

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


def parse(record: Record, key: str | None, file: str) -> Question:
    """The question; images may be absent, for questions of text alone."""
    options = options_of(record, "options")
    answer = text_of(record, "answer")
    if options:
        # a number in JSON may be the place of an option; the text "2" is always text
        given = record["answer"]
        answer = gold_letter(given if isinstance(given, int) else answer, options)
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text_of(record, "question"), options),
        answer=answer,
        images=images_of(record, "image", needed=False),
        source=text_of(record, "source", default=file),
        options=options,
    )


PLAIN = QuestionFormat(
    name="plain",
    title="Plain questions",
    recognise=lambda record: {"question", "answer"} <= record.keys(),
    parse=parse,
)

"""OlympiadBench: open questions with up to nine pictures; theorems to prove have no answer and cannot be read."""

from __future__ import annotations

from mprm.annotation.questions.format import (
    BadRecord,
    QuestionFormat,
    Record,
    images_of,
    question_text,
    text_of,
    texts_of,
)
from mprm.annotation.questions.question import Question

IMAGES = tuple(f"image_{number}" for number in range(1, 10))


def parse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question behind its context; the unit of the answer, if any, is said in the text."""
    answers = [answer for answer in texts_of(record, "final_answer") if answer.strip()]
    if not answers:
        raise BadRecord('"final_answer" is empty, as for a theorem to prove; leave such records out')
    context = text_of(record, "context", default="")
    unit = text_of(record, "unit", default="")
    text = "\n\n".join(part for part in (context, text_of(record, "question")) if part)
    if unit:
        text += f"\n\nGive the answer in {unit}."
    is_text = text_of(record, "modality", default="") == "Text-only"
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text),
        answer=", ".join(answers),
        images=images_of(record, *IMAGES, "images", needed=not is_text),
        source=OLYMPIADBENCH.name,
    )


OLYMPIADBENCH = QuestionFormat(
    name="olympiadbench",
    title="OlympiadBench",
    recognise=lambda record: {"id", "question", "final_answer", "answer_type"} <= record.keys(),
    parse=parse,
)

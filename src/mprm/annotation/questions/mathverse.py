"""MathVerse: each problem in versions that tell more in the text or more in the picture."""

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
from mprm.annotation.questions.options import LETTERS, options_in
from mprm.annotation.questions.question import Question

VISION_ONLY = "Answer the question that the image shows."


def parse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question; that of a vision-only version stands in the picture, its options too."""
    is_vision_only = text_of(record, "problem_version") == "Vision Only"
    text = text_of(record, "question", default=VISION_ONLY if is_vision_only else None)
    answer = text_of(record, "answer")
    options: tuple[str, ...] = ()
    if text_of(record, "question_type") == "multi-choice":
        options = options_in(text) or options_in(text_of(record, "question_for_eval", default=""))
        if not options:
            raise BadRecord('the question is "multi-choice" but neither it nor "question_for_eval" lists options')
        answer = gold_letter(answer, options)
        if is_vision_only:
            options = tuple(LETTERS[: len(options)])  # what they say stays in the picture
    return Question(
        id=text_of(record, "sample_index", default=key),
        question=question_text(text, options),
        answer=answer,
        images=images_of(record, "image"),
        source=MATHVERSE.name,
        options=options,
    )


MATHVERSE = QuestionFormat(
    name="mathverse",
    title="MathVerse",
    recognise=lambda record: {"sample_index", "problem_version", "question_type", "answer"} <= record.keys(),
    parse=parse,
)

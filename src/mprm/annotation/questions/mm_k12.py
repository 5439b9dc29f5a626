"""MM-K12, of MM-PRM and MM-Eureka: fill-in questions, and some whose options stand in the text."""

from __future__ import annotations

from mprm.annotation.questions.format import QuestionFormat, Record, images_of, question_text, text_of
from mprm.annotation.questions.options import letter_of, options_in
from mprm.annotation.questions.question import Question


def parse(record: Record, key: str | None, file: str) -> Question:  # noqa: ARG001 - one signature for all formats
    """The question; a multiple choice where the text lists options and the answer is the letter of one."""
    text = text_of(record, "question")
    answer = text_of(record, "answer", "correct_answer")
    options = options_in(text)
    letter = letter_of(answer, options) if options else None
    return Question(
        id=text_of(record, "id", default=key),
        question=question_text(text, options if letter else ()),
        answer=letter or answer,
        images=images_of(record, "image", "image_path"),
        source=MM_K12.name,
        options=options if letter else (),
    )


def _recognise(record: Record) -> bool:
    is_seed = {"id", "question", "correct_answer", "image_path"} <= record.keys()
    is_hub = {"id", "question", "answer", "subject", "image"} <= record.keys() and "options" not in record
    return is_seed or is_hub


MM_K12 = QuestionFormat(name="mm-k12", title="MM-K12", recognise=_recognise, parse=parse)

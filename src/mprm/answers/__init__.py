"""Final answers: extracted from responses, compared, graded."""

from mprm.answers.compare import ParsedAnswer, read_answer, same_answer
from mprm.answers.extract import final_answer, last_box
from mprm.answers.options import letter_of, options_in, with_options

__all__ = [
    "ParsedAnswer",
    "final_answer",
    "last_box",
    "letter_of",
    "options_in",
    "read_answer",
    "same_answer",
    "with_options",
]

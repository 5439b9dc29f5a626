"""Final answers: extracted from responses, compared, graded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mprm._lazy import lazy_exports

if TYPE_CHECKING:
    from mprm.answers.compare import ParsedAnswer as ParsedAnswer
    from mprm.answers.compare import read_answer as read_answer
    from mprm.answers.compare import same_answer as same_answer
    from mprm.answers.extract import final_answer as final_answer
    from mprm.answers.extract import last_box as last_box
    from mprm.answers.grade import GradedAnswer as GradedAnswer
    from mprm.answers.options import letter_of as letter_of
    from mprm.answers.options import options_in as options_in
    from mprm.answers.options import with_options as with_options

__getattr__ = lazy_exports(
    __name__,
    {
        "mprm.answers.compare": ["ParsedAnswer", "read_answer", "same_answer"],
        "mprm.answers.extract": ["final_answer", "last_box"],
        "mprm.answers.grade": ["GradedAnswer"],
        "mprm.answers.options": ["letter_of", "options_in", "with_options"],
    },
)

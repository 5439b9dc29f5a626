"""All question formats, and choosing one."""

from __future__ import annotations

from mprm.annotation.questions.dynamath import DYNAMATH
from mprm.annotation.questions.format import BadRecord, QuestionFormat, Record
from mprm.annotation.questions.mathverse import MATHVERSE
from mprm.annotation.questions.mathvision import MATHVISION
from mprm.annotation.questions.mathvista import MATHVISTA
from mprm.annotation.questions.mm_k12 import MM_K12
from mprm.annotation.questions.olympiadbench import OLYMPIADBENCH
from mprm.annotation.questions.plain import PLAIN
from mprm.errors import ConfigError

QUESTION_FORMATS: dict[str, QuestionFormat] = {
    fmt.name: fmt for fmt in (MATHVERSE, MATHVISTA, OLYMPIADBENCH, DYNAMATH, MATHVISION, MM_K12, PLAIN)
}
"""By name; the plain format last, as its fields are in most others too."""


def question_format(name: str) -> QuestionFormat:
    """The format of that name."""
    if name not in QUESTION_FORMATS:
        raise ConfigError(f"unknown question format {name!r}; expected one of {', '.join(QUESTION_FORMATS)}")
    return QUESTION_FORMATS[name]


def recognised_format(record: Record) -> QuestionFormat:
    """The format of a file whose first record this is."""
    found = next((fmt for fmt in QUESTION_FORMATS.values() if fmt.recognise(record)), None)
    if found is None:
        keys = ", ".join(sorted(map(str, record))[:12]) or "none"
        raise BadRecord(
            f"the record has the fields {keys}, which fit no known question format;"
            f" name one of {', '.join(QUESTION_FORMATS)}, or rename the fields to those of plain"
        )
    return found

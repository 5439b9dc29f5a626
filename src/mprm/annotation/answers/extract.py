"""Finding the final answer in a response."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)
_STATED = re.compile(
    r"(?:\b(?:answer|option|choice)[*_]*[ \t]*(?:is|are|would be|must be|should be|[:=])"
    r"|\bfinal answer[*_]*[ \t]*\n|^####)"
    r"[*_:\s]*(?P<rest>[^\n]+)",
    re.IGNORECASE | re.MULTILINE,
)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?=\s|$)|[*_]{2,}\s*$")
_LETTER = re.compile(
    r"\W*(?:(?i:option|choice|answer)\W+)?(?:\(([A-Z])\)|([A-Z])(?=\s*(?:$|[).:,;*}$]|because\b|since\b|as\b)))"
)
_LAST_LINE = re.compile(r"[\s*$({]*([A-Z])[\s*$)}.]*|.*\(([A-Z])\)[\s*$.]*", re.DOTALL)
_SPACE = " \t\r\n"
"""White space around an answer; a form feed is the rest of a \\f."""
_SHORT = 60
"""A response of one line and at most this length is itself the answer."""


def last_box(response: str) -> str | None:
    r"""What stands in the last ``\boxed{…}`` that is closed; braces are matched, ``\{`` and ``\}`` are no braces.

    Examples
    --------
    >>> last_box(r"First \boxed{1}, no: \boxed{\frac{1}{2}}, so \boxed{3")
    '\\frac{1}{2}'
    """
    opened: list[int | None] = []
    found = None
    for mark in _BOX.finditer(response):
        if mark[0] == "}":
            start = opened.pop() if opened else None
            found = response[start : mark.start()] if start is not None else found
        elif mark[0] == "{":
            opened.append(None)
        elif mark[0].endswith("{") and len(mark[0]) > 2:
            opened.append(mark.end())
    return found


def stated_answer(response: str) -> str | None:
    """What follows the last ``answer is``, ``Answer:``, ``####`` or stands in the last ``<answer>`` tag."""
    if tagged := _TAGGED.findall(response):
        return str(tagged[-1]).strip() or None
    for found in reversed(list(_STATED.finditer(response))):
        rest = _SENTENCE_END.split(found["rest"].strip(), maxsplit=1)[0].strip(" *_:")
        if rest:
            return rest
    return None


def final_answer(response: str) -> str | None:
    """The final answer: the last box, else what is stated, else a response of one short line itself."""
    found = last_box(response)
    if found is None or not found.strip():
        found = stated_answer(response)
    whole = response.strip(_SPACE)
    # a box that is not closed is an answer that was cut off
    if found is None and len(whole) <= _SHORT and "\n" not in whole and r"\boxed" not in whole:
        found = whole
    return found.strip(_SPACE) or None if found is not None else None


def leading_letter(answer: str) -> str | None:
    """The capital letter that an answer such as ``(B) 5 cm``, ``B.`` or ``option B`` begins with."""
    found = _LETTER.match(answer)
    return (found[1] or found[2]) if found else None


def trailing_letter(response: str) -> str | None:
    """The capital letter that the last line is, or ends with in brackets."""
    lines = response.strip().splitlines()
    found = _LAST_LINE.fullmatch(lines[-1]) if lines else None
    return (found[1] or found[2]) if found else None

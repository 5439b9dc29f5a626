"""LaTeX without decoration, in one way of writing.

Finding the final answer in a response.
"""

from __future__ import annotations

import re

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "°": r"^\circ",
        "²": "^2", "³": "^3", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "±": r"\pm ",
        "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
        "∪": r"\cup ", "∩": r"\cap ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "",
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    }
)  # fmt: skip
"""Signs that people type where LaTeX has a command; full-width forms."""

_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*([0-9]+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\?\$|\\textdollar|[€£]|\\\(|\\\)|(?<!\\)\\[\[\]]|\*\*|\\displaystyle", " "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?", ""),
        (r"\{,\}|,\\!", ","),
        (r"(?<!\\)\\[,;:!> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\frac\s*([0-9])\s*([0-9])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{(?:[^{}]|\{[^{}]*\})*\})\s*(\\[A-Za-z]+|[0-9A-Za-z])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(sqrt|pi|arcsin|arccos|arctan|sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\s*\{\s*([0-9A-Za-z])\s*\}", r"^\1"),
        (r"\s+", " "),
    )
)
_WRAPPER = re.compile(r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mbox|bm)\s*\{")
_BRACKETED_LETTER = re.compile(r"\(\s*([A-Za-z])\s*\)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def closing_brace(text: str, start: int) -> int | None:
    r"""Where the group that opens just before ``start`` is closed; ``\{`` and ``\}`` open and close nothing."""
    depth = 1
    for found in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


def _unwrapped(text: str) -> str:
    """The text without commands that hold all of it."""
    while True:
        found = _WRAPPER.match(text)
        start = found.end() if found else 1 if text.startswith("{") else 0
        if not start or closing_brace(text, start) != len(text) - 1:
            return text
        text = text[start:-1].strip()


def cleaned(text: str) -> str:
    r"""The text without dollar signs, boxes, spacing and final punctuation, fractions and roots with their braces.

    Examples
    --------
    >>> cleaned(r" $\boxed{\dfrac12\,\pi}$. ")
    '\\frac{1}{2} \\pi'
    """
    # \f of an unescaped \frac is a form feed in JSON
    text = text.replace("\x0crac", r"\frac").translate(_SIGNS).strip(" \t\r\n*`")
    if len(text) > 5000:
        return " ".join(text.split())
    for _ in range(2):  # a box within dollars, dollars within a box
        text = text.strip().rstrip(".,;:").rstrip()
        text = _unwrapped(text)
        for pattern, new in _STEPS:
            text = pattern.sub(new, text)
    text = _unwrapped(text.strip().rstrip(".,;:").strip())
    letter = _BRACKETED_LETTER.fullmatch(text)
    return letter[1] if letter else text


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

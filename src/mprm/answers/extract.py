r"""The final answer of a response, and LaTeX without decoration, written in one way."""

from __future__ import annotations

import re
from functools import lru_cache

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

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
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
_WRAPPER = re.compile(r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mbox|bm)\s*\{|\{")
_BRACKETED_LETTER = re.compile(r"\(\s*([A-Za-z])\s*\)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LONGEST = 5000
"""Characters of the longest text that is read as LaTeX."""


def _closing_brace(text: str, start: int) -> int | None:
    r"""The index of the brace that closes the group opened before ``start``; ``\{`` and ``\}`` are no braces."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _unwrapped(text: str) -> str:
    """The text without commands and braces that hold all of it."""
    while (wrapper := _WRAPPER.match(text)) and _closing_brace(text, wrapper.end()) == len(text) - 1:
        text = text[wrapper.end() : -1].strip()
    return text


def cleaned(text: str) -> str:
    r"""The text without dollar signs, boxes, spacing and final punctuation, fractions and roots with their braces.

    >>> cleaned(r" $\boxed{\dfrac12\,\pi}$. ")
    '\\frac{1}{2} \\pi'
    """
    # \f of an unescaped \frac is a form feed in JSON
    text = text.replace("\x0crac", r"\frac").translate(_SIGNS).strip(" \t\r\n*`")
    if len(text) > _LONGEST:
        return " ".join(text.split())
    for _ in range(2):  # a box within dollars, dollars within a box
        text = _unwrapped(text.strip().rstrip(".,;:").rstrip())
        for pattern, new in _REWRITES:
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
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.IGNORECASE | re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[^\s.])\.(?=\s|$)|(?<![*_])[*_]{2,}\s*$")
_LEADING_LETTER = re.compile(
    r"\W*(?:(?i:option|choice|answer)\W+)?(?:\(([A-Z])\)|([A-Z])(?=\s*(?:$|[).:,;*}$]|because\b|since\b|as\b)))"
)
_TRAILING_LETTER = re.compile(r"[\s*$({]*([A-Z])[\s*$)}.]*|.*\(([A-Z])\)[\s*$.]*", re.DOTALL)
_SPACE = " \t\r\n"
"""White space around an answer; a form feed is the rest of a \\f."""
_SHORT = 60
"""A response of one line and at most this length is itself the answer."""
_LAST_HASHES = re.compile(r"^####[ \t]*(\S[^\n]*)\Z", re.MULTILINE)
_SENTENCES = re.compile(r"[a-z0-9)}$%]{2}[.!?]\s+[A-Z]")
"""The end of a sentence and the start of the next; ``Mr. Smith`` is none."""


def last_box(response: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` that is closed; braces are matched, ``\{`` and ``\}`` are no braces.

    >>> last_box(r"First \boxed{1}, no: \boxed{\frac{1}{2}}, so \boxed{3")
    '\\frac{1}{2}'
    """
    starts: list[int | None] = []
    content = None
    for token in _BOX.finditer(response):
        if token[0] == "}":
            start = starts.pop() if starts else None
            content = response[start : token.start()] if start is not None else content
        elif token[0] == "{":
            starts.append(None)
        elif token[0].endswith("{") and len(token[0]) > 2:
            starts.append(token.end())
    return content


def _last_tagged(response: str) -> str | None:
    """The content of the last ``<answer>`` tag that is closed."""
    contents = _TAGGED.findall(response)
    return contents[-1] if contents else None


def stated_answer(response: str) -> str | None:
    """The text after the last ``answer is``, ``Answer:`` or ``####``, or in the last ``<answer>`` tag."""
    if (tagged := _last_tagged(response)) is not None:
        return tagged.strip() or None
    for statement in reversed(list(_STATED.finditer(response))):
        rest = _SENTENCE_END.split(statement["rest"].strip(), maxsplit=1)[0].strip(" *_:")
        if rest:
            return rest
    return None


def final_answer(response: str) -> str | None:
    """The final answer: the last box, else what is stated, else a response of one short line itself."""
    answer = last_box(response) or ""
    if not answer.strip():
        answer = stated_answer(response) or ""
    whole = response.strip(_SPACE)
    # a box that is not closed is an answer that was cut off
    if not answer and len(whole) <= _SHORT and "\n" not in whole and r"\boxed" not in whole:
        answer = whole
    return answer.strip(_SPACE) or None


@lru_cache(maxsize=1 << 14)
def stated_gold(text: str) -> str | None:
    r"""The answer in a longer gold answer, such as a rationale.

    It is a last line ``#### 18``, else the last ``\boxed{18}``, else the last ``<answer>`` tag, else what follows
    "The answer is" in the last line.
    """
    gold = text.strip(_SPACE)
    hashes = _LAST_HASHES.search(gold)
    last_line = gold[gold.rfind("\n") + 1 :]
    answer = hashes[1] if hashes else last_box(gold) or _last_tagged(gold) or stated_answer(last_line) or ""
    return answer.strip(_SPACE) or None


def gold_answer(text: str) -> str | None:
    r"""The gold answer alone: as it is stated, else all of it; None where it is several lines or sentences.

    >>> gold_answer("9 * 2 = 18 dollars.\n#### 18"), gold_answer(r"So $x = \boxed{18}$."), gold_answer("18 dollars")
    ('18', '18', '18 dollars')
    >>> gold_answer("She sells 9 eggs.\nThat makes 18 dollars.")
    """
    gold = text.strip(_SPACE)
    has_lines = "\n" in gold and r"\begin{" not in gold
    return stated_gold(text) or (None if has_lines or _SENTENCES.search(gold) else gold)


def leading_letter(answer: str) -> str | None:
    """The capital letter at the start of an answer such as ``(B) 5 cm``, ``B.`` or ``option B``."""
    letter = _LEADING_LETTER.match(answer)
    return (letter[1] or letter[2]) if letter else None


def trailing_letter(response: str) -> str | None:
    """The capital letter that the last line is, or ends with in brackets."""
    lines = response.strip().splitlines()
    letter = _TRAILING_LETTER.fullmatch(lines[-1]) if lines else None
    return (letter[1] or letter[2]) if letter else None

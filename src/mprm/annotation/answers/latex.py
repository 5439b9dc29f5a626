"""LaTeX without decoration, in one way of writing."""

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

"""Whether two expressions are equal, by math-verify; runs in a worker process, as it may never come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mprm.annotation.answers.numbers import is_rounded, number_in, rounding_error, without_noise


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt to compare came to."""

    equal: int | None = None
    """Place of the first expression that the answer is equal to."""
    failed: bool = False
    """Whether nothing could be decided."""
    reason: str | None = None
    """Why it failed, or why the answer is equal to none."""
    crashed: bool = False
    """Whether the worker died for a cause that may lie outside the comparison: another attempt may succeed."""


@lru_cache(maxsize=4096)
def parsed(latex: str) -> Any:
    """The expression that the whole of the LaTeX is, as math-verify reads it; None when it is none."""
    from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse

    # units are cut off before: math-verify takes 3 \text{h} 5 \text{min} for 3
    normalization = LatexNormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    # without the extraction of bare numbers, which would read any text with a 3 in it as 3;
    # without time-outs, which need the main thread's signals and do not interrupt C code
    config = LatexExtractionConfig(normalization_config=normalization)
    found = parse(f"${latex}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def first_equal(answer: str, candidates: Sequence[str]) -> Outcome:
    """Which of the expressions the answer is equal to; the first of them is the gold answer.

    A gold answer that cannot be read leaves the comparison undecided, unless the answer is equal to another one.
    """
    expression = parsed(answer)
    for place, candidate in enumerate(candidates if expression is not None else ()):
        found = parsed(candidate)
        if found is not None and (_verified(expression, found) or _rounds_to(expression, candidate)):
            return Outcome(equal=place)
    if parsed(candidates[0]) is None:
        return Outcome(failed=True, reason=f"math-verify cannot read the gold answer {candidates[0]!r}")
    return Outcome(reason=None if expression is not None else "math-verify cannot read the answer")


def _verified(answer: Any, gold: Any) -> bool:
    from math_verify import verify

    return bool(verify([gold], [answer], timeout_seconds=None, raise_on_error=True))


def _rounds_to(answer: Any, candidate: str) -> bool:
    r"""Whether an exact answer, such as ``\frac{2\pi}{3}``, is what a rounded gold number stands for."""
    gold = number_in(candidate)
    if gold is None or not is_rounded(gold := without_noise(gold)):
        return False
    if not getattr(answer, "is_number", False) or not answer.is_real:
        return False
    value = Fraction(str(answer.evalf(30)))
    return abs(value - gold.value) <= rounding_error(gold)

"""Whether a response reaches the gold answer: without algebra where that can be told, else by math-verify.

Run as ``python -m``, this module is a worker process of `mprm.annotation.checker.AnswerChecker`: it reads
comparisons from its input and writes graded answers to its output, JSON, one a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from mprm.answers.compare import number_in, read_answer, same_answer
from mprm.answers.extract import final_answer, gold_answer
from mprm.answers.options import LETTERS, choice_in, chosen_letter, letter_of, undecided_letters

Grade = Literal["correct", "incorrect", "failed"]
"""``failed``: the checker itself could not decide (time-out, crash); never counted as incorrect in silence."""
READY = b"ready\n"
MAX_MEMORY = 4 << 30
"""Bytes that a worker may take: towers of powers would take all there are."""
EXTRA_S = 1.0
"""How much longer than its parent a worker waits before it ends itself."""


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """The grade of a response."""

    grade: Grade
    answer: str | None
    """The final answer of the response, normalised so that equal answers vote together; None if there is none."""
    reason: str | None = None
    """Why the checker failed, or why there is no answer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A response whose grade takes algebra."""

    latex: str
    candidates: tuple[str, ...]
    """The expressions to compare it with: the gold answer, then any other options."""
    key: str
    """The final answer, as it votes when it is equal to no candidate."""
    names: tuple[str, ...]
    """The final answer, as it votes when it is equal to the candidate of the same index."""


def grade(response: str, gold: str, options: Sequence[str] = ()) -> GradedAnswer | Comparison:
    """The grade of a response as far as it can be told without algebra, else the comparison that tells it."""
    gold_letter = letter_of(gold, options) if options else None
    text = final_answer(response) if gold_letter is None else choice_in(response, len(options))
    letter = chosen_letter(text, options) if gold_letter is not None and text is not None else None
    if letter is not None:
        return GradedAnswer("correct" if letter == gold_letter else "incorrect", letter)
    answer = read_answer(text) if text is not None else None
    if answer is None or not answer.latex:
        return GradedAnswer("incorrect", None, "no answer found")
    if gold_letter is not None:
        undecided = undecided_letters(answer, options)
        if gold_letter not in undecided:
            return GradedAnswer("incorrect", answer.key)
        candidates = {letter: options[LETTERS.index(letter)] for letter in (gold_letter, *undecided)}
    else:
        gold = gold_answer(gold) or gold
        if (is_same := same_answer(answer, read_answer(gold))) is not None:
            return GradedAnswer("correct" if is_same else "incorrect", answer.key)
        # the key stays the response's own: the gold answer must not decide what votes together
        candidates = {answer.key: gold}
    latex = tuple(read_answer(candidate).latex for candidate in candidates.values())
    return Comparison(answer.latex, latex, answer.key, tuple(candidates))


def grade_by_algebra(comparison: Comparison) -> GradedAnswer:
    """The grade by math-verify; may never come back.

    A gold answer that cannot be parsed leaves the comparison failed, unless the answer is equal to another option.
    """
    try:
        return _compared(comparison)
    except MemoryError:
        return GradedAnswer("failed", comparison.key, "math-verify ran out of memory")
    except Exception as error:  # sympy and the parser raise whatever they like
        return GradedAnswer("failed", comparison.key, f"math-verify failed with {type(error).__name__}")


def _compared(comparison: Comparison) -> GradedAnswer:
    from math_verify import verify

    answer = _parsed(comparison.latex)
    for index, candidate in enumerate(comparison.candidates if answer is not None else ()):
        expression = _parsed(candidate)
        if expression is not None and (
            verify([expression], [answer], timeout_seconds=None, raise_on_error=True) or _rounds_to(answer, candidate)
        ):
            return GradedAnswer("correct" if index == 0 else "incorrect", comparison.names[index])
    gold = comparison.candidates[0]
    if _parsed(gold) is None:
        return GradedAnswer("failed", comparison.key, f"math-verify cannot read the gold answer {gold!r}")
    reason = "math-verify cannot read the answer" if answer is None else None
    return GradedAnswer("incorrect", comparison.key, reason)


@lru_cache(maxsize=4096)
def _parsed(latex: str) -> Any:
    """The expression that the whole of the LaTeX is, as math-verify parses it; None when it is none."""
    from math_verify import LatexExtractionConfig, LatexNormalizationConfig, parse

    # units are cut off before: math-verify takes 3 \text{h} 5 \text{min} for 3
    normalization = LatexNormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    # without the extraction of bare numbers, which would read any text with a 3 in it as 3;
    # without time-outs, which need the main thread's signals and do not interrupt C code
    config = LatexExtractionConfig(normalization_config=normalization)
    expressions = parse(f"${latex}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return expressions[0] if expressions else None


def _rounds_to(answer: Any, candidate: str) -> bool:
    r"""Whether an exact answer, such as ``\frac{2\pi}{3}``, is what a rounded gold number stands for."""
    number = number_in(candidate)
    if number is None or not (gold := number.without_noise()).tolerance:
        return False
    if not getattr(answer, "is_number", False) or not answer.is_real:
        return False
    return abs(Fraction(str(answer.evalf(30))) - gold.value) <= gold.tolerance


def main() -> None:
    """Answer until the input ends, as it does with the parent."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C and ends its workers
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no graded answer
    logging.disable(logging.CRITICAL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    _compared(Comparison("1", ("1+0",), "", ("",)))  # loads everything, before the clock of a comparison runs
    out.write(READY)
    for line in sys.stdin.buffer:
        timeout_s, *fields = json.loads(line)
        # the default action of the alarm ends the process even in C code: a worker whose parent was killed
        # dies soon after it. PR_SET_PDEATHSIG would fire when the parent's thread ends, not the parent
        signal.setitimer(signal.ITIMER_REAL, timeout_s + EXTRA_S)
        graded = grade_by_algebra(Comparison(*fields))
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps(asdict(graded)).encode() + b"\n")


if __name__ == "__main__":
    main()

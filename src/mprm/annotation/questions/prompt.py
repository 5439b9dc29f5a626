"""The text that a policy is asked."""

from __future__ import annotations

from mprm.annotation.questions.options import with_options
from mprm.annotation.questions.question import Question

STEPS = "Solve the problem step by step, with a blank line between one step and the next."
OPEN = r"Put the final answer in \boxed{}."
CHOICE = r"Put the letter of the right option in \boxed{}."


def prompt_of(question: Question) -> str:
    """The question, its options where the text lacks them, and how to answer.

    Examples
    --------
    >>> prompt_of(Question(id="1", question="Which is even?", answer="B", options=("3", "4"))).splitlines()[:3]
    ['Which is even?', 'A. 3', 'B. 4']
    """
    text = with_options(question.question, question.options)
    return f"{text.rstrip()}\n\n{STEPS} {CHOICE if question.options else OPEN}"

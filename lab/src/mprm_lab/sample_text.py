"""From a problem of the sample corpus to the steps of one rollout that solves it, or fails to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mprm_lab.draws import Draws

Facts = Mapping[str, object]
"""What the sentences of a script are filled with; ``answer`` is the final answer."""

WORDS_LOW, WORDS_HIGH = 7, 30
"""A step gets asides until it has some number of words between these."""

INSTRUCTIONS = {
    "letter": "Think it through in numbered or separate steps, with a blank line between them. End with a"
    " line "
    'of the form "Final answer: X", where X is the letter of your choice.',
    "value": "Think it through in numbered or separate steps, with a blank line between them. End with a"
    " line "
    'of the form "Final answer: X", where X is a word, a number or an expression.',
}

STYLES = ("", "", "Step {number}: ", "**Step {number}.** ", "{number}. ")
SLIPS = ("Here I take it that {}.", "As I read the picture, {}.", "It seems that {}.")
LATE_SLIPS = ("On second thought, {}.", "But looking at the picture again, {}.", "No, {}.")
BACK = (
    "Wait, this does not fit what the picture shows: {}.",
    "Looking again, I see that the last part cannot be right, because {}.",
    "That contradicts what I found at first, so I go back over it. In fact, {}.",
)
ASIDES = (
    "Nothing else in the picture bears on this part of the question.",
    "I note this down, because the next part of the work depends on it.",
    "This agrees with what can be seen directly, so it is safe to go on.",
    "The rest of the picture can be left aside for the moment.",
    "No further information is needed here, as everything else follows from what is given.",
    "Let me keep this result at hand, since it will be used again below.",
    "So far every reading has come from the picture itself and not from a guess.",
    "It is worth being careful at this point, because a small mistake here would change the answer.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Sentences with places for facts, from which the steps of a rollout are made."""

    openings: tuple[str, ...]
    """A rollout begins with one of them."""
    work: tuple[tuple[str, ...], ...]
    """Then come these in order, each in one of its wordings."""
    checks: tuple[str, ...]
    """Long rollouts end with some of them."""
    asides: tuple[str, ...]
    """Short steps are filled up with some of them."""
    slip: str
    """A clause that tells the error, where the other sentences of the first wrong step show none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question about a picture, with what is true of it and what a careless reader might hold true."""

    question: str
    script: Script
    right: Facts
    wrong: tuple[Facts, ...]
    wants: str = "value"
    """What the answer is, a key of `INSTRUCTIONS`."""
    n_images: int = 1

    @property
    def answer(self) -> str:
        """The right answer."""
        return str(self.right["answer"])

    @property
    def prompt(self) -> str:
        """The question as the policy saw it: images before, instruction after."""
        return "<image>\n" * self.n_images + f"{self.question}\n{INSTRUCTIONS[self.wants]}"


def write_steps(
    draws: Draws, problem: Problem, n_steps: int, *, slip_at: int | None = None, back_at: int | None = None
) -> list[str]:
    """The steps of one rollout; from ``slip_at`` to before ``back_at`` they tell what is wrong."""
    script, right, wrong = problem.script, problem.right, draws.pick(problem.wrong)
    asides = draws.shuffled(script.asides + ASIDES)
    style = draws.pick(STYLES)
    steps = []
    for number, sentences in enumerate(_spread(draws, script, n_steps - 1, asides)):
        is_wrong = slip_at is not None and slip_at <= number and (back_at is None or number < back_at)
        if number == back_at:
            sentences = [draws.pick(BACK).format(script.slip), *sentences]
        n_words = draws.between(WORDS_LOW, WORDS_HIGH)
        template = " ".join(sentences)
        while asides and len(template.split()) < n_words:
            template += " " + asides.pop()
        if number == slip_at and template.format_map(wrong) == template.format_map(right):
            template += " " + draws.pick(SLIPS).format(script.slip)
        steps.append(style.format(number=number + 1) + template.format_map(wrong if is_wrong else right))
    ends_wrong = slip_at is not None and back_at is None
    template = "Final answer: {answer}"
    if slip_at == n_steps - 1:
        template = f"{draws.pick(LATE_SLIPS).format(script.slip)} {template}"
    return [*steps, template.format_map(wrong if ends_wrong else right)]


def _spread(draws: Draws, script: Script, n_steps: int, asides: list[str]) -> list[list[str]]:
    """The script's sentences, spread in order over this many steps."""
    sentences = [draws.pick(script.openings), *(draws.pick(wordings) for wordings in script.work)]
    checks = draws.shuffled(script.checks)
    while len(sentences) < n_steps and checks:
        sentences.append(checks.pop())
    while len(sentences) < n_steps:
        sentences.insert(draws.between(1, len(sentences)), asides.pop())
    n = len(sentences)
    return [sentences[number * n // n_steps : (number + 1) * n // n_steps] for number in range(n_steps)]


def lettered(options: list[str]) -> tuple[str, dict[str, str]]:
    """The options as lines ``A. ...``, and the letter of each."""
    letters = {option: "ABCDEFGH"[number] for number, option in enumerate(options)}
    return "\n".join(f"{letter}. {option}" for option, letter in letters.items()), letters

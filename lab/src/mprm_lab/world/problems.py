"""Problems: fifteen sources of them, and each problem by its source and seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mprm.data import Question, prompt_of
from mprm.errors import DataError
from mprm_lab.world import questions
from mprm_lab.world.grammar import FILLERS, FORMS, NEUTRAL, NUMBERS, OPTIONS
from mprm_lab.world.questions import Draft, Items, near_numbers
from mprm_lab.world.rng import Rng, rng_of
from mprm_lab.world.scene import PLURALS, SHAPES, Facts, Scene

N_PER_SPLIT = 100_000_000
SPLITS: dict[str, range] = {
    name: range(number * N_PER_SPLIT, (number + 1) * N_PER_SPLIT)
    for number, name in enumerate(("train", "corpus", "benchmark", "best-of-n", "validation", "checking"))
}
"""Seeds of the problems that policies learn to solve, that the corpus is made of, that steps are judged on, that
candidates are sampled for, that thresholds and training settings are chosen on, and whose rollouts policies learn to
check: no problem serves two uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Problems of one kind."""

    name: str
    answers: str
    """``open``, a number; ``choice``, one of four options; or ``yes/no``."""
    ask: Callable[[Rng], Draft]

    @property
    def domain(self) -> str:
        """``grid``, ``bars`` or ``shapes``."""
        return self.name.partition("-")[0]


SOURCES: dict[str, Source] = {
    name: Source(name=name, answers=answers, ask=ask)
    for name, answers, ask in (
        ("grid-sum", "open", questions.ask_sum),
        ("grid-path", "open", questions.ask_path),
        ("grid-alternate", "choice", questions.ask_alternate),
        ("grid-max", "open", questions.ask_maximum),
        ("grid-above", "open", questions.ask_grid_above),
        ("grid-compare", "yes/no", questions.ask_grid_compare),
        ("bars-total", "choice", questions.ask_total),
        ("bars-range", "open", questions.ask_range),
        ("bars-above", "open", questions.ask_bars_above),
        ("bars-compare", "yes/no", questions.ask_bars_compare),
        ("bars-second", "choice", questions.ask_second),
        ("shapes-count", "open", questions.ask_count),
        ("shapes-lines", "choice", questions.ask_two_lines),
        ("shapes-compare", "yes/no", questions.ask_shapes_compare),
        ("shapes-points", "choice", questions.ask_points),
    )
}
"""All sources by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question about a picture, with all that is true of it."""

    source: str
    seed: int
    scene: Scene
    question: str
    """With the options, where there are any."""
    options: tuple[str, ...]
    """The texts of options A to D; empty for open answers."""
    answer: str
    """A number, Yes or No, or the letter of an option."""
    orders: tuple[Items, ...]
    """The items in the question's order: one sequence, two for comparisons."""
    facts: Facts = field(repr=False, hash=False)
    """What sentences about the problem can claim, and what is true: see `mprm_lab.world.grammar`."""

    @property
    def id(self) -> str:
        """The source and the seed, from which the problem can be made again, such as ``grid-sum/17``."""
        return f"{self.source}/{self.seed}"

    @property
    def image(self) -> str:
        """Path of its picture under an image root."""
        return f"{self.id}.png"

    def as_question(self) -> Question:
        """The problem as policies are asked it."""
        return Question(
            id=self.id,
            question=self.question,
            answer=self.answer,
            images=(self.image,),
            source=self.source,
            options=self.options,
        )


def problem(source: str, seed: int) -> Problem:
    """The problem of a source with this seed; always the same."""
    rng = rng_of(source, seed, "problem")
    draft = SOURCES[source].ask(rng)
    options = _options(rng, draft) if SOURCES[source].answers == "choice" else ()
    answer = OPTIONS[options.index(draft.result)] if options else draft.result
    facts = draft.scene.facts() | draft.facts | {"result": draft.result, f"answer {answer}": "right"}
    for items in draft.orders:
        facts[f"start {items[0]}"] = "yes"
        facts |= {f"next {item}": follower for item, follower in pairwise(items)}
    question = draft.question
    if options:
        lettered = list(zip(OPTIONS, options, strict=True))
        question += " Options: " + " ".join(f"({letter}) {option}" for letter, option in lettered)
        facts |= {f"option {letter}": option for letter, option in lettered}
        facts[f"answer {draft.result}"] = "right"  # the text of the right option answers the question too
    return Problem(
        source=source,
        seed=seed,
        scene=draft.scene,
        question=question,
        options=options,
        answer=answer,
        orders=draft.orders,
        facts=facts,
    )


def _options(rng: Rng, draft: Draft) -> tuple[str, ...]:
    distractors = draft.distractors or near_numbers(rng, int(draft.result), len(OPTIONS) - 1)
    return tuple(rng.shuffled((draft.result, *distractors)))


_NAME = re.compile(r"([a-z-]+)/(0|[1-9][0-9]*)(\.png)?")


def parsed_name(name: str, ending: str = "") -> tuple[str, int]:
    """Source and seed of the problem with this id, or with the picture of this name.

    Examples
    --------
    >>> parsed_name("bars-range/3.png")
    ('bars-range', 3)
    """
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in SOURCES or not name.endswith(ending):
        expected = f"SOURCE/SEED{ending}" if ending else "SOURCE/SEED or SOURCE/SEED.png"
        sources = ", ".join(SOURCES)
        raise DataError(
            f"{name!r} names no problem of the lab; expected {expected} with one of the sources {sources}"
        )
    return match[1], int(match[2])


def problem_named(name: str) -> Problem:
    """The problem with this id, or with the picture of this name."""
    return problem(*parsed_name(name))


def problems_of(split: str, n: int, *, first: int = 0, sources: Sequence[str] = tuple(SOURCES)) -> list[Problem]:
    """``n`` problems of a split from number ``first`` on, the sources in turn; always the same."""
    numbers = (divmod(number, len(sources)) for number in range(first, first + n))
    return [problem(sources[index], SPLITS[split][turn]) for turn, index in numbers]


GROUNDING_PROMPT = "What is at each place?"
"""The question of the grounding task, with which policies learn to look things up."""
_WORD = re.compile(r"\n\n|\\boxed|[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]")
_SLOT = re.compile(r"<\w+>")


def words_of(text: str) -> list[str]:
    r"""The words, numbers and signs of a text; blank lines count, other white space does not.

    Examples
    --------
    >>> words_of(r"So the answer is \boxed{19}.")
    ['So', 'the', 'answer', 'is', '\\boxed', '{', '19', '}', '.']
    """
    return _WORD.findall(text)


def vocabulary() -> tuple[str, ...]:
    """All words of questions, of prompts, of solutions, and of the numbers up to 99, in alphabetical order."""
    texts = [
        *_sentences(),
        *(prompt_of(problem(source, 0).as_question()) for source in SOURCES),
        *(GROUNDING_PROMPT, "\n\n", "Options: (A)", "and"),
        *questions.MOVES,
        *(end for ends in questions.ENDS for end in ends),
        *(*SHAPES, *PLURALS.values(), "shapes", *NUMBERS),
        *(name for names in FILLERS.values() for name in names),
    ]
    words = {word for text in texts for word in words_of(_SLOT.sub(" ", text))}
    # what fills a slot can begin a sentence
    return tuple(sorted(words | {"Cell", "Bar", "Each"}))


def world_version() -> str:
    """A hash of every question and sentence: a policy that learned others does not know these."""
    return hashlib.sha256("\n".join(_sentences()).encode()).hexdigest()[:16]


def _sentences() -> list[str]:
    return [*questions.TEMPLATES, *(form.text for forms in FORMS.values() for form in forms), *NEUTRAL]

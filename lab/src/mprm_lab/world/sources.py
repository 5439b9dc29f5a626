"""The sources of problems, and a problem by its source and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mprm.errors import ConfigError
from mprm_lab.draws import Draws
from mprm_lab.world import bar_questions, grid_questions, shape_questions, tellings
from mprm_lab.world.asked import Asked, near_numbers
from mprm_lab.world.names import OPTIONS
from mprm_lab.world.problem import Problem
from mprm_lab.world.randomness import draws_for
from mprm_lab.world.tellings import Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Problems of one kind."""

    name: str
    domain: Literal["grid", "bars", "shapes"]
    answers: Literal["open", "choice", "yes/no"]
    """A number, one of four options, or Yes or No."""
    about: str
    ask: Callable[[Draws], Asked]
    """Draws what is shown and asked."""
    tell: Telling
    """Draws the order of a solution."""


def _sources(
    domain: Literal["grid", "bars", "shapes"],
    *rows: tuple[str, Literal["open", "choice", "yes/no"], str, Callable[[Draws], Asked], Telling],
) -> dict[str, Source]:
    found = {}
    for kind, answers, about, ask, tell in rows:
        name = f"{domain}-{kind}"
        found[name] = Source(name=name, domain=domain, answers=answers, about=about, ask=ask, tell=tell)
    return found


SOURCES: dict[str, Source] = {
    **_sources(
        "grid",
        ("sum", "open", "sum of a row, column or diagonal", grid_questions.ask_sum, tellings.tell_total),
        ("path", "open", "sum of a walk of 7 to 9 cells", grid_questions.ask_path, tellings.tell_path),
        ("alternate", "choice", "digits added and subtracted", grid_questions.ask_alternate, tellings.tell_alternate),
        ("max", "open", "place of a line's largest digit", grid_questions.ask_maximum, tellings.tell_maximum),
        ("above", "open", "digits more than another", grid_questions.ask_above, tellings.tell_above),
        ("compare", "yes/no", "sums of two lines", grid_questions.ask_compare, tellings.tell_line_comparison),
    ),
    **_sources(
        "bars",
        ("total", "choice", "total of 3 to 6 bars", bar_questions.ask_total, tellings.tell_total),
        ("range", "open", "tallest less shortest", bar_questions.ask_range, tellings.tell_range),
        ("above", "open", "bars higher than a level", bar_questions.ask_above, tellings.tell_above),
        ("compare", "yes/no", "two bars against two", bar_questions.ask_compare, tellings.tell_bar_comparison),
        ("second", "choice", "the second tallest bar", bar_questions.ask_second, tellings.tell_second),
    ),
    **_sources(
        "shapes",
        ("count", "open", "shapes of a kind in a line", shape_questions.ask_count, tellings.tell_count),
        ("lines", "choice", "shapes of a kind in two lines", shape_questions.ask_lines, tellings.tell_count),
        (
            "compare",
            "yes/no",
            "shapes in one line and another",
            shape_questions.ask_compare,
            tellings.tell_shape_comparison,
        ),
        ("points", "choice", "points for the shapes of a line", shape_questions.ask_points, tellings.tell_points),
    ),
}
"""All sources by name."""


def problem(source: str, seed: int) -> Problem:
    """The problem of a source with this seed; always the same.

    Examples
    --------
    >>> problem("grid-sum", 17).id
    'grid-sum/17'
    """
    if source not in SOURCES:
        raise ConfigError(f"there is no source {source!r} in the lab; choose one of {', '.join(SOURCES)}")
    draws = draws_for(source, seed, "problem")
    asked = SOURCES[source].ask(draws)
    options = _options(draws, asked) if SOURCES[source].answers == "choice" else ()
    answer = OPTIONS[options.index(asked.result)] if options else asked.result
    facts = asked.facts | {"result": asked.result, f"answer {answer}": "right"}
    for run in asked.runs:
        facts[f"start {run.items[0]}"] = "yes"
        facts |= {f"next {item}": follower for item, follower in pairwise(run.items)}
    question = asked.question
    if options:
        lettered = list(zip(OPTIONS, options, strict=True))
        question += " Options: " + " ".join(f"({letter}) {option}" for letter, option in lettered)
        facts |= {f"option {letter}": option for letter, option in lettered}
        facts[f"answer {asked.result}"] = "right"  # the text of the right option answers the question too
    return Problem(
        source=source,
        seed=seed,
        scene=asked.scene,
        question=question,
        options=options,
        answer=answer,
        runs=asked.runs,
        facts=facts,
    )


def _options(draws: Draws, asked: Asked) -> tuple[str, ...]:
    wrong = asked.wrong or near_numbers(draws, int(asked.result), len(OPTIONS) - 1)
    return tuple(draws.shuffled((asked.result, *wrong)))

"""What a kind of question settles about a problem: scene, sentence, order, facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mprm_lab.draws import Draws
from mprm_lab.world.names import LARGEST, MORE
from mprm_lab.world.problem import Run
from mprm_lab.world.scene import Scene

TURNS = {"+": "add", "-": "subtract"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question before it has options."""

    scene: Scene
    question: str
    result: str
    """What is asked for: a number, a bar, Yes or No."""
    runs: tuple[Run, ...]
    facts: dict[str, str]
    wrong: tuple[str, ...] = ()
    """Results that a careless reader might get; needed where there are options and the result is no number."""


def totals(
    items: Sequence[str], values: Sequence[int], *, begin: int = 0, signs: Sequence[str] = ()
) -> dict[str, str]:
    """Facts on the total before each item and after it, and whether the item is added or subtracted.

    Examples
    --------
    >>> totals(["bar K"], [2], begin=5, signs="-")
    {'before bar K': '5', 'sign bar K': '-', 'turn bar K': 'subtract', 'total bar K': '3'}
    """
    facts = {}
    total = begin
    for item, value, sign in zip(items, values, signs or "+" * len(items), strict=True):
        facts[f"before {item}"] = str(total)
        facts[f"sign {item}"], facts[f"turn {item}"] = sign, TURNS[sign]
        total += value if sign == "+" else -value
        facts[f"total {item}"] = str(total)
    return facts


def above(items: Sequence[str], values: Sequence[int], level: int) -> tuple[dict[str, str], str]:
    """Facts on how many values are more than a level, up to each item; and how many are in all."""
    counts = [str(count) for count in accumulate(int(value > level) for value in values)]
    facts = {f"count {item}": count for item, count in zip(items, counts, strict=True)}
    return facts | {"level": str(level)}, counts[-1]


def compared(first: int, second: int) -> dict[str, str]:
    """Facts on the two sides of a comparison."""
    return {"first": str(first), "second": str(second), "relation": MORE[first > second]}


def yes_no(is_so: bool) -> str:
    """The answer to a question about what is so."""
    return "Yes" if is_so else "No"


def near_numbers(draws: Draws, result: int, n: int) -> tuple[str, ...]:
    """Other numbers near the result, as a slip in seeing or reckoning makes them."""
    steps = [*draws.shuffled((-2, -1, 1, 2)), *draws.shuffled((-3, 3, -10, 10)), 4, 5]
    if draws.chance(0.3):
        steps.insert(0, draws.pick((-10, 10)))
    others = [result + step for step in steps if 0 <= result + step <= LARGEST]
    return tuple(map(str, others[:n]))

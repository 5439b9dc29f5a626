"""Solves questions from their words and the pixels of their pictures; shares no code with the world's own solver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tests.lab.world.picture_reader import read_bars, read_grid, read_shapes

CELL = r"row \d column \d"
STEPS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}


@dataclass
class Seen:
    """A picture and a question, read."""

    picture: Any
    domain: str
    question: str
    options: dict[str, str]
    result: str = ""
    """What is asked for, before it is looked up among the options."""
    order: list[str] = field(default_factory=list)
    """Cells or bars in the question's order."""
    signs: list[int] = field(default_factory=list)
    begin: int = 0
    level: int = -1
    thing: str = ""
    sides: list[list[str]] = field(default_factory=list)
    """Items of the two sides of a comparison."""
    each: dict[str, int] = field(default_factory=dict)
    """Points for shapes, in the question's order."""

    @property
    def answer(self) -> str:
        return next((letter for letter, text in self.options.items() if text == self.result), self.result)

    def value(self, item: str) -> int:
        if self.domain == "bars":
            return int(self.picture[item.removeprefix("bar ")])
        row, column = map(int, re.findall(r"\d", item))
        return int(self.picture[row - 1][column - 1])

    def look(self, item: str) -> str:
        """What is in a cell of a scene, in words."""
        row, column = map(int, re.findall(r"\d", item))
        cell = self.picture[row - 1][column - 1]
        return f"a {cell[1]} {cell[0]}" if cell else "nothing"

    def fits(self, item: str) -> bool:
        """Whether a cell holds the thing that is asked for."""
        *colour, kind = self.thing.split()
        _, *look = self.look(item).split()
        return bool(look) and kind in ("shapes", f"{look[1]}s", f"{look[1]}es") and colour in ([], [look[0]])


def by_row_and_column(text: str) -> str:
    """The text with cells by their rows and columns, both from 1, instead of their numbers."""
    return re.sub(
        r"(?i)\bcell (\d+)",
        lambda match: f"row {(int(match[1]) + 3) // 4} column {(int(match[1]) + 3) % 4 + 1}",
        text,
    )


def see(domain: str, picture: Any, text: str) -> Seen:
    question, _, tail = by_row_and_column(text).partition(" Options: ")
    options = dict(re.findall(r"\(([A-D])\) ([^(]+?)(?= \(|$)", tail))
    reader = {"grid": read_grid, "bars": read_bars, "shapes": read_shapes}[domain]
    seen = Seen(reader(picture), domain, question, options)
    {"grid": _grid, "bars": _bars, "shapes": _shapes}[domain](seen)
    return seen


def _between(first: str, last: str) -> list[str]:
    """Lines or cells from one to another, both included."""
    ends = [[int(digit) for digit in re.findall(r"\d", name)] for name in (first, last)]
    n = max(abs(a - b) for a, b in zip(*ends, strict=True)) + 1
    names = []
    for step in range(n):
        numbers = iter([a + (b - a) * step // (n - 1) for a, b in zip(*ends, strict=True)])
        names.append("".join(str(next(numbers)) if sign.isdigit() else sign for sign in first))
    return names


def _straight(question: str) -> list[str]:
    match = re.search(rf"diagonal from ({CELL}) to ({CELL})", question)
    if match:
        return _between(match[1], match[2])
    line, start = re.search(r"((?:row|column) \d) from (left|right|top|bottom)", question).groups()  # type: ignore[union-attr]
    ends = (1, 4) if start in ("left", "top") else (4, 1)
    names = [f"{line} column {end}" if line.startswith("row") else f"row {end} {line}" for end in ends]
    return _between(*names)


def _walked(start: str, moves: list[str]) -> list[str]:
    row, column = map(int, re.findall(r"\d", start))
    cells = [start]
    for move in moves:
        row, column = row + STEPS[move][0], column + STEPS[move][1]
        cells.append(f"row {row} column {column}")
    return cells


def _grid(seen: Seen) -> None:
    question = seen.question
    if "digits on the way" in question or question.startswith("Go from"):
        seen.order = _walked(re.findall(CELL, question)[0], re.findall("right|left|down|up", question))
    elif question.startswith("Is "):
        seen.sides = _two_lines(question)
        first, second = (sum(map(seen.value, side)) for side in seen.sides)
        seen.result = "Yes" if first > second else "No"
        return
    else:
        seen.order = _straight(question)
    values = [seen.value(item) for item in seen.order]
    if "largest" in question:
        cell = seen.order[values.index(max(values))]
        assert values.count(max(values)) == 1
        seen.result = cell[-1] if "which column" in question.lower() else cell[4]
        return
    if "many digits" in question:
        seen.level = int(re.search(r"more than (\d)", question)[1])  # type: ignore[index]
        seen.result = str(sum(value > seen.level for value in values))
        return
    seen.signs = [1] * len(values)
    if "subtract" in question:
        seen.begin = int(re.search(r"(?:Begin with|We have) (\d+)", question)[1])  # type: ignore[index]
        seen.signs = [1, -1, 1, -1]
    seen.result = str(seen.begin + sum(sign * value for sign, value in zip(seen.signs, values, strict=True)))


def _two_lines(question: str) -> list[list[str]]:
    lines = re.findall(r"(?:row|column) \d", question)
    return [_straight(f"{line} from {'left' if line[0] == 'r' else 'top'}") for line in lines]


def _bars(seen: Seen) -> None:
    question = seen.question
    named = re.findall(r"bar [A-Z]", question)
    heights = {f"bar {letter}": height for letter, height in seen.picture.items()}
    ranked = sorted(heights.values())
    if question.startswith("Is "):
        seen.sides = [named[:2], named[2:]]
        first, second = (sum(heights[bar] for bar in side) for side in seen.sides)
        seen.result = "Yes" if first > second else "No"
        return
    seen.order = named
    if "how many" in question.lower():
        seen.level = int(re.search(r"more than (\d)", question)[1])  # type: ignore[index]
        seen.result = str(sum(heights[bar] > seen.level for bar in named))
    elif "shortest" in question:
        seen.result = str(ranked[-1] - ranked[0])
    elif "tallest" in question:
        assert ranked.count(ranked[-2]) == 1
        seen.result = next(bar for bar in heights if heights[bar] == ranked[-2])
    else:
        seen.signs = [1] * len(named)
        seen.result = str(sum(heights[bar] for bar in named))


def _shapes(seen: Seen) -> None:
    question = seen.question
    if "worth" in question or "points" in question:
        prices = re.findall(r"[Ee]ach (\w+) (?:is worth|scores) (\d)", question)
        seen.each = {"nothing": 0} | {shape: int(points) for shape, points in prices}
        seen.order = _straight(question)
        seen.result = str(sum(seen.each[seen.look(item).split()[-1]] for item in seen.order))
    elif question.startswith(("Are there more", "Does")):
        seen.thing = re.search(r"more (.+?) (?:in|than) ", question)[1]  # type: ignore[index]
        seen.sides = _two_lines(question)
        first, second = (sum(map(seen.fits, side)) for side in seen.sides)
        seen.result = "Yes" if first > second else "No"
    else:
        seen.thing = re.search(r"how many (.+?) (?:are|do) ", question, re.IGNORECASE)[1]  # type: ignore[index]
        seen.order = [*chain(*_two_lines(question))] if " and " in question else _straight(question)
        seen.result = str(sum(map(seen.fits, seen.order)))

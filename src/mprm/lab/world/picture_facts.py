"""What is true of a picture, whatever the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from mprm.lab.world.names import COLUMNS, DIGIT_THINGS, LINES, MORE, PLURALS, ROWS, SHAPE_THINGS, cell_name
from mprm.lab.world.scene import Bars, Grid, Shapes

Item = TypeVar("Item")


def lines_of(grid: Grid) -> dict[str, tuple[int, ...]]:
    """The digits of each row from the left, and of each column from the top."""
    return dict(zip(LINES, (*grid.digits, *zip(*grid.digits, strict=True)), strict=True))


def grid_facts(grid: Grid) -> dict[str, str]:
    """Every digit, the sums of rows and columns, and how often each digit is in them."""
    things = [(row, column, (DIGIT_THINGS[digit],)) for row, column, digit in _cells(grid.digits)]
    facts = _NO_DIGITS | _numbers(things)
    facts |= {f"value {cell_name(row, column)}": str(digit) for row, column, digit in _cells(grid.digits)}
    for line, digits in lines_of(grid).items():
        facts[f"sum {line}"] = str(sum(digits))
        for place, digit in enumerate(digits, 1):
            facts[f"digit {place} {line}"] = str(digit)
    return facts


def heights_of(bars: Bars) -> dict[str, int]:
    """The height of each bar, from left to right."""
    return {f"bar {letter}": height for letter, height in zip(bars.letters, bars.heights, strict=True)}


def bar_facts(bars: Bars) -> dict[str, str]:
    """Every height, how it stands to every level, and the tallest and shortest bars where no others are as high."""
    heights = heights_of(bars)
    facts = {"high": str(max(bars.heights)), "low": str(min(bars.heights))}
    for item, height in heights.items():
        facts[f"value {item}"] = str(height)
        for level in range(10):
            facts[f"relation {item} {level}"] = MORE[height > level]
    ranked = sorted(heights, key=heights.__getitem__)
    for name, place in (("shortest", 0), ("tallest", -1), ("next tallest", -2)):
        if bars.heights.count(heights[ranked[place]]) == 1:
            facts[name] = ranked[place]
    if "tallest" not in facts:  # then no bar comes after the tallest
        facts.pop("next tallest", None)
    return facts


def shape_facts(scene: Shapes) -> dict[str, str]:
    """How many of each thing there are in each row and column, and in all."""
    things = []
    for row, column, shape in _cells(scene.cells):
        if shape is not None:
            kind = PLURALS[shape.shape]
            things.append((row, column, (kind, f"{shape.colour} shapes", f"{shape.colour} {kind}")))
    return _NO_SHAPES | _numbers(things)


def _cells(rows: Sequence[Sequence[Item]]) -> Iterator[tuple[int, int, Item]]:
    for row, items in enumerate(rows):
        for column, item in enumerate(items):
            yield row, column, item


def _none(things: Iterable[str]) -> dict[str, str]:
    """The facts on the numbers of things in an empty picture."""
    return {f"number {thing}{place}": "0" for thing in things for place in ("", *(f" {line}" for line in LINES))}


_NO_DIGITS, _NO_SHAPES = _none(DIGIT_THINGS), _none(SHAPE_THINGS)


def _numbers(things: Iterable[tuple[int, int, tuple[str, ...]]]) -> dict[str, str]:
    """The facts on the numbers of things, from the names that fit each cell."""
    counts = Counter[str]()
    for row, column, names in things:
        for name in names:
            counts.update((f"number {name}", f"number {name} {ROWS[row]}", f"number {name} {COLUMNS[column]}"))
    return {fact: str(n) for fact, n in counts.items()}

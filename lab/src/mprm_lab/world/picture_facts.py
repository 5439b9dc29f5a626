"""What is true of a picture, whatever the question."""

from __future__ import annotations

from mprm_lab.world.names import CELLS, MORE, NOTHING
from mprm_lab.world.scene import Bars, Grid, Shapes


def grid_facts(grid: Grid) -> dict[str, str]:
    """Every digit, and how it stands to every other."""
    digits = [digit for row in grid.digits for digit in row]
    return _measures(dict(zip(CELLS, digits, strict=True)))


def heights_of(bars: Bars) -> dict[str, int]:
    """The height of each bar, from left to right."""
    return {f"bar {letter}": height for letter, height in zip(bars.letters, bars.heights, strict=True)}


def bar_facts(bars: Bars) -> dict[str, str]:
    """Every height, how it stands to every level, and the tallest and shortest bars where no others are as high."""
    heights = heights_of(bars)
    high, low = max(bars.heights), min(bars.heights)
    facts = _measures(heights) | {"high": str(high), "low": str(low), "difference": str(high - low)}
    ranked = sorted(heights, key=heights.__getitem__)
    for name, place in (("shortest", 0), ("tallest", -1), ("next tallest", -2)):
        if bars.heights.count(heights[ranked[place]]) == 1:
            facts[name] = ranked[place]
    if "tallest" not in facts:  # then no bar comes after the tallest
        facts.pop("next tallest", None)
    return facts


def shape_facts(scene: Shapes) -> dict[str, str]:
    """What every cell holds."""
    cells = [shape for row in scene.cells for shape in row]
    looks = [f"a {shape.colour} {shape.shape}" if shape else NOTHING for shape in cells]
    return {f"value {item}": look for item, look in zip(CELLS, looks, strict=True)}


def _measures(values: dict[str, int]) -> dict[str, str]:
    """What each item measures, and whether it is more than each number from 0 to 9."""
    facts = {f"value {item}": str(value) for item, value in values.items()}
    for item, value in values.items():
        facts |= {f"relation {item} {level}": MORE[value > level] for level in range(10)}
    return facts

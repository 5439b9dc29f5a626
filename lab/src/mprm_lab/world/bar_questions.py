"""Questions about a bar chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from mprm_lab.draws import Draws
from mprm_lab.world.asked import Asked, above, compared, totals, yes_no
from mprm_lab.world.glyphs import LETTERS
from mprm_lab.world.names import listed
from mprm_lab.world.picture_facts import bar_facts, heights_of
from mprm_lab.world.problem import Run
from mprm_lab.world.scene import Bars
from mprm_lab.world.sentence import filled

HIGHEST = 9

TOTAL = ("What is the total of <bars>?", "Add <bars>. What is the sum?")
RANGE = (
    "Of <bars>, what is the difference of the tallest and the shortest?",
    "There are <bars>. How much more is the tallest than the shortest?",
)
ABOVE = (
    "Of <bars>, how many are more than <level>?",
    "There are <bars>. How many are more than <level>?",
)
COMPARE = (
    "Is the total of <item> and <item2> more than the total of <item3> and <item4>?",
    "Is <item> + <item2> more than <item3> + <item4>?",
)
SECOND = (
    "Of <bars>, which is the next tallest after the tallest?",
    "There are <bars>. Which one is second when the tallest is first?",
)


def ask_total(draws: Draws) -> Asked:
    """The total of three to six bars."""
    bars = _bars(draws, draws.between(3, 8))
    heights = heights_of(bars)
    n_items = draws.between(3, min(6, len(heights)))
    items = tuple(draws.shuffled(list(heights))[:n_items])
    values = [heights[item] for item in items]
    return Asked(
        scene=bars,
        question=filled(draws.pick(TOTAL), {"bars": listed(items)}),
        result=str(sum(values)),
        runs=(Run("", items),),
        facts=bar_facts(bars) | totals(items, values),
    )


def ask_range(draws: Draws) -> Asked:
    """The tallest bar less the shortest; each of them is there once."""

    def is_plain(heights: Sequence[int]) -> bool:
        return heights.count(max(heights)) == heights.count(min(heights)) == 1

    bars = _bars(draws, draws.between(3, 8), is_plain)
    heights = heights_of(bars)
    return Asked(
        scene=bars,
        question=filled(draws.pick(RANGE), {"bars": listed(heights)}),
        result=str(max(bars.heights) - min(bars.heights)),
        runs=(Run("", tuple(heights)),),
        facts=bar_facts(bars) | _largest(heights),
    )


def ask_above(draws: Draws) -> Asked:
    """How many bars are higher than a level."""
    bars = _bars(draws, draws.between(3, 7))
    heights = heights_of(bars)
    level = draws.between(2, 7)
    facts, result = above(list(heights), list(heights.values()), level)
    return Asked(
        scene=bars,
        question=filled(draws.pick(ABOVE), {"bars": listed(heights), "level": str(level)}),
        result=result,
        runs=(Run("", tuple(heights)),),
        facts=bar_facts(bars) | facts,
    )


def ask_compare(draws: Draws) -> Asked:
    """Whether two bars together are more than two others."""
    is_more = draws.chance(0.5)
    bars = _bars(draws, draws.between(4, 8))
    items = draws.shuffled(list(heights_of(bars)))[:4]
    while True:
        heights = heights_of(bars)
        one, two, three, four = (heights[item] for item in items)
        if (one + two > three + four) == is_more:
            break
        bars = Bars(bars.letters, _draw_heights(draws, len(bars.letters)))
    runs = (Run("", tuple(items[:2])), Run("", tuple(items[2:])))
    facts = bar_facts(bars) | compared(one + two, three + four)
    facts |= totals(items[:2], (one, two)) | totals(items[2:], (three, four))
    return Asked(
        scene=bars,
        question=filled(draws.pick(COMPARE), dict(zip(("item", "item2", "item3", "item4"), items, strict=True))),
        result=yes_no(is_more),
        runs=runs,
        facts=facts,
    )


def ask_second(draws: Draws) -> Asked:
    """Which bar is the second tallest; no other is as high as one of the first two."""

    def is_plain(heights: Sequence[int]) -> bool:
        third, second, first = sorted(heights)[-3:]
        return third < second < first

    bars = _bars(draws, draws.between(4, 8), is_plain)
    heights = heights_of(bars)
    *others, third, second, first = sorted(heights, key=heights.__getitem__)
    return Asked(
        scene=bars,
        question=filled(draws.pick(SECOND), {"bars": listed(heights)}),
        result=second,
        runs=(Run("", tuple(heights)),),
        facts=bar_facts(bars) | _largest(heights),
        wrong=(first, third, draws.pick(others)),
    )


def _bars(draws: Draws, n_bars: int, is_fit: Callable[[Sequence[int]], bool] = lambda _: True) -> Bars:
    letters = "".join(draws.shuffled(LETTERS)[:n_bars])
    while not is_fit(heights := _draw_heights(draws, n_bars)):
        pass
    return Bars(letters, heights)


def _draw_heights(draws: Draws, n_bars: int) -> tuple[int, ...]:
    return tuple(draws.between(0, HIGHEST) for _ in range(n_bars))


def _largest(heights: dict[str, int]) -> dict[str, str]:
    """Facts on the largest height from the left up to each bar."""
    so_far = accumulate(heights.values(), max)
    return {f"largest {item}": str(height) for item, height in zip(heights, so_far, strict=True)}

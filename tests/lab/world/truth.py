"""Whether a sentence is true, told from the pixels and the question; shares no code with the world's own judge."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.lab.world.solver import Seen, by_row_and_column

ITEM = r"((?:row|column) \d column \d|bar [A-Z])"
LOOK = r"(nothing|a (?:red|green|blue|yellow|purple) (?:circle|square|triangle|cross))"
N = r"(\d+)"


def is_true(seen: Seen, sentence: str) -> bool:
    """Whether all that a sentence says is so; a sentence that says nothing known is not."""
    text = by_row_and_column(sentence[0].lower() + sentence[1:])
    if any(bar not in seen.picture for bar in re.findall("bar ([A-Z])", text)):
        return False
    said = [all(check(seen, text)) for applies, check in CHECKS if re.search(applies, text)]
    return bool(said) and all(said)


def _orders(seen: Seen) -> list[list[str]]:
    return seen.sides or [seen.order]


def _upto(seen: Seen, item: str) -> list[str]:
    """The items up to one, within the side of the comparison that it is on."""
    return next((order[: order.index(item) + 1] for order in _orders(seen) if item in order), [])


def _worth(seen: Seen, item: str) -> int:
    return seen.each[seen.look(item).split()[-1]] if seen.each else seen.value(item)


def _running(seen: Seen, item: str) -> int | None:
    """The total up to an item."""
    upto = _upto(seen, item)
    signs = seen.signs[: len(upto)] or [1] * len(upto)
    return seen.begin + sum(s * _worth(seen, i) for s, i in zip(signs, upto, strict=True)) if upto else None


def _follow(seen: Seen, names: list[str]) -> bool:
    """Whether the items follow each other in the question's order."""
    return len(names) == 1 or any(names == order[index : index + 2] for order in _orders(seen) for index in range(9))


def _sums_up(seen: Seen) -> bool:
    return not re.search("(?i)largest|tallest|many", seen.question) and not seen.thing


def _readings(text: str) -> list[tuple[str, str]]:
    pairs = re.findall(rf"{ITEM} (?:is|shows|with|adds|we add|we see) {N}", text)
    pairs += re.findall(rf"{ITEM}, (?:add|subtract) {N}", text)
    return pairs + [(item, number) for number, item in re.findall(rf"height is {N} at {ITEM}", text)]


def _items(seen: Seen, text: str) -> list[bool]:
    return [seen.domain != "shapes" and seen.value(item) == int(number) for item, number in _readings(text)]


def _looks(seen: Seen, text: str) -> list[bool]:
    claims = re.findall(rf"{ITEM} (?:has|we see) {LOOK}", text)
    return [seen.domain == "shapes" and seen.look(item) == look for item, look in claims]


def _last_item(text: str) -> str:
    return str(re.findall(ITEM, text)[-1])


def _stated(text: str, after: str) -> list[int]:
    return [int(number) for number in re.findall(rf"(?:{after}) {N}", text)]


def _total(seen: Seen, text: str) -> list[bool]:
    items = re.findall(ITEM, text)
    if not items or not _sums_up(seen):
        return [not items]
    ok = [_stated(text, "total is|get|=|makes|gives") == [_running(seen, item) for item in items]]
    ok += [_follow(seen, items)]
    shown = re.search(rf"{N} ([+-]) {N} =", text)
    if shown:
        sign = 1 if shown[2] == "+" else -1
        ok.append(int(shown[1]) + sign * int(shown[3]) == _running(seen, items[-1]))
        ok.append(int(shown[3]) == _worth(seen, items[-1]))
    turn = re.search(r"(add|subtract)", text)
    signs = dict(zip(seen.order, seen.signs, strict=False))
    if turn or shown:
        is_minus = turn[1] == "subtract" if turn else shown is not None and shown[2] == "-"
        ok += [(signs.get(item, 1) == -1) == is_minus for item in items]
    return ok


def _points(seen: Seen, text: str) -> list[bool]:
    item = _last_item(text)
    return [bool(seen.each) and _upto(seen, item) != [] and _stated(text, "for|worth") == [_worth(seen, item)]]


def _start(seen: Seen, text: str) -> list[bool]:
    return [_last_item(text) in [order[0] for order in _orders(seen) if order]]


def _largest(seen: Seen, text: str) -> list[bool]:
    upto = [seen.value(item) for item in _upto(seen, _last_item(text))]
    asks_for_largest = "largest" in seen.question or "tallest" in seen.question
    return [
        asks_for_largest,
        _follow(seen, re.findall(ITEM, text)),
        _stated(text, "so far is") == [max(upto, default=-1)],
    ]


def _count(seen: Seen, text: str) -> list[bool]:
    items = re.findall(ITEM, text)
    if seen.level < 0 and not seen.thing:
        return [False]

    def counted(item: str) -> bool:
        return seen.fits(item) if seen.thing else seen.value(item) > seen.level

    fits = re.findall("(does not count|counts),", text)
    if any((word == "counts") != counted(item) for word, item in zip(fits, items, strict=False)):
        return [False]
    numbers = [sum(map(counted, _upto(seen, item))) if _upto(seen, item) else None for item in items]
    return [_stated(text, "the count is|the count|it") == numbers, _follow(seen, items)]


def _above(seen: Seen, text: str) -> list[bool]:
    relation, level = re.search(r"which is (not more|more) than (\d+)", text).groups()  # type: ignore[union-attr]
    return [int(level) == seen.level, (seen.value(_last_item(text)) > int(level)) == (relation == "more")]


def _ranked(seen: Seen, text: str) -> list[bool]:
    if seen.domain != "bars":
        return [False]
    ranked = sorted(seen.picture.values())
    ends = {"tallest": ranked[-1], "next": ranked[-2], "shortest": ranked[0]}
    pairs = _readings(text)
    names = ["shortest" if "shortest" in text or "smallest" in text else "tallest"]
    if "next tallest" in text or text.startswith("after"):
        names = ["next"]
    if len(pairs) == 2:
        names = ["tallest", "shortest" if "shortest" in text else "next"]
    return [ends[name] == int(number) for name, (_, number) in zip(names, pairs, strict=True)]


def _difference(seen: Seen, text: str) -> list[bool]:
    if seen.domain != "bars":
        return [False]
    ranked = sorted(seen.picture.values())
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return ["-" in text, numbers == [ranked[-1], ranked[0], ranked[-1] - ranked[0]]]


def _compared(seen: Seen, text: str) -> list[bool]:
    first, second = (sum(map(seen.fits if seen.thing else seen.value, side)) for side in seen.sides)
    ok = [[int(n) for n in re.findall(r"\d+", text)][:2] == [first, second]]
    relation = re.search(r"is (not more|more) than", text)
    return [*ok, relation is None or (relation[1] == "more") == (first > second)]


def _answer(seen: Seen, text: str) -> list[bool]:
    return [re.search(r"boxed\{([\w ]+)\}", text)[1] in (seen.answer, seen.result)]  # type: ignore[index]


def _result(seen: Seen, text: str) -> list[bool]:
    return [re.search(rf"(?:gives|get) (bar [A-Z]|{N})", text)[1] == seen.result]  # type: ignore[index]


def _option(seen: Seen, text: str) -> list[bool]:
    said = re.findall(r"option ([A-D]) says (bar [A-Z]|\d+)", text)
    return [seen.options.get(letter) == saying for letter, saying in said]


def _largest_digit(seen: Seen, text: str) -> list[bool]:
    values = [seen.value(item) for item in seen.order]
    kind = "column" if "column has" in seen.question or "which column" in seen.question else "row"
    line = re.search(r" in ((?:row|column) \d),", text)
    return [
        _stated(text, "largest digit|largest digit is") == [max(values)],
        re.search(rf"at {ITEM}", text)[1] == seen.order[values.index(max(values))],  # type: ignore[index]
        line is None or line[1] == f"{kind} {seen.result}",
    ]


def _begin(seen: Seen, text: str) -> list[bool]:
    return [[seen.begin] == [int(n) for n in re.findall(r"\d+", text)]]


Check = Callable[[Seen, str], list[bool]]
CHECKS: list[tuple[str, Check]] = [
    (rf"{ITEM} (?:is|shows|with|adds|we add|we see) \d|{ITEM}, (?:add|subtract) \d|height is", _items),
    (rf"{ITEM} (?:has|we see) {LOOK}", _looks),
    (rf"{ITEM}.*(?:total is|get|=|makes|gives) \d+\.", _total),
    (r"worth|for \d", _points),
    (r"^we start|^the first one", _start),
    (r"so far", _largest),
    (r"the count", _count),
    (r"which is (?:not )?more than", _above),
    (r"^the (?:next )?(?:tallest|shortest)|height is|^after it", _ranked),
    (r"^the difference", _difference),
    (r"^we see that|^we compare", _compared),
    (r"boxed", _answer),
    (r"^this gives|^we get", _result),
    (r"option", _option),
    (r"largest digit", _largest_digit),
    (r"^we begin|^at first", _begin),
]
"""What to look at in sentences that contain something."""

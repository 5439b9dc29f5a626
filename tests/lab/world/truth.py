"""Whether a sentence is true, told from the pixels and the question; shares no code with the world's own judge."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.lab.world.solver import Seen, by_row_and_column

ITEM = r"((?:row|column) \d column \d|bar [A-Z])"
LINE = r"((?:row|column) \d)"
THING = r"(cells with \d|(?:(?:red|green|blue|yellow|purple) )?(?:shapes|circles|squares|triangles|crosses))"
N = r"(\d+)"


def is_true(seen: Seen, sentence: str) -> bool:
    """Whether all that a sentence says is so; a sentence that says nothing known is not."""
    text = by_row_and_column(sentence[0].lower() + sentence[1:])
    if any(bar not in seen.picture for bar in re.findall("bar ([A-Z])", text)):
        return False
    said = [all(check(seen, text)) for applies, check in CHECKS if re.search(applies, text)]
    return bool(said) and all(said)


def _running(seen: Seen, item: str) -> int | None:
    """The total up to an item, within the side of the comparison that it is on."""
    for order in seen.sides if seen.sides and isinstance(seen.sides[0], list) else [seen.order]:
        if item in order:
            signs = seen.signs or [1] * len(order)
            upto = order.index(item) + 1
            return seen.begin + sum(s * seen.value(i) for s, i in zip(signs[:upto], order[:upto], strict=True))
    return None


def _follow(seen: Seen, names: list[str]) -> bool:
    """Whether the items or lines follow each other in the question's order."""
    orders = seen.sides if seen.sides and isinstance(seen.sides[0], list) else [seen.order]
    return len(names) == 1 or any(names == order[place : place + 2] for order in orders for place in range(9))


def _sums_up(seen: Seen) -> bool:
    return "largest" not in seen.question and "tallest" not in seen.question and seen.level < 0


def _readings(text: str) -> list[tuple[str, str]]:
    pairs = re.findall(rf"{ITEM} (?:is|shows|with) {N}", text)
    return pairs + [(item, number) for number, item in re.findall(rf"{N} (?:from|at) {ITEM}", text)]


def _items(seen: Seen, text: str) -> list[bool]:
    return [seen.value(item) == int(number) for item, number in _readings(text)]


def _last_item(text: str) -> str:
    return str(re.findall(ITEM, text)[-1])


def _total(seen: Seen, text: str) -> list[bool]:
    if not re.search(ITEM, text):
        return []
    item = _last_item(text)
    stated = re.search(rf"(?:total is|get|=) {N}\.", text)
    ok = [
        _sums_up(seen),
        _follow(seen, re.findall(ITEM, text)),
        stated is not None and _running(seen, item) == int(stated[1]),
    ]
    shown = re.search(rf"{N} ([+-]) {N} =", text)
    if shown:
        sign = 1 if shown[2] == "+" else -1
        ok.append(int(shown[1]) + sign * int(shown[3]) == _running(seen, item) and int(shown[3]) == seen.value(item))
    turn = re.search(r"we (add|subtract)", text)
    if turn or shown:
        signs = dict(zip(seen.order, seen.signs, strict=False))
        is_minus = turn[1] == "subtract" if turn else shown is not None and shown[2] == "-"
        ok.append((signs.get(item, 1) == -1) == is_minus)
    if re.search(r"^now we|we (add|subtract) it", text):
        ok.append("subtract" in seen.question)
    return ok


def _start(seen: Seen, text: str) -> list[bool]:
    sides = seen.sides if seen.sides and isinstance(seen.sides[0], list) else [seen.order]
    return [_last_item(text) in [side[0] for side in sides]]


def _upto(seen: Seen, text: str) -> list[int]:
    item = _last_item(text)
    return [seen.value(other) for other in seen.order[: seen.order.index(item) + 1]] if item in seen.order else []


def _largest(seen: Seen, text: str) -> list[bool]:
    stated = int(re.search(rf"so far is {N}\.", text)[1])  # type: ignore[index]
    follow = _follow(seen, re.findall(ITEM, text))
    return [not _sums_up(seen) and seen.level < 0, follow, max(_upto(seen, text), default=-1) == stated]


def _count(seen: Seen, text: str) -> list[bool]:
    stated = int(re.search(rf"the count is {N}\.", text)[1])  # type: ignore[index]
    follow = _follow(seen, re.findall(ITEM, text))
    return [seen.level >= 0, follow, sum(value > seen.level for value in _upto(seen, text)) == stated]


def _above(seen: Seen, text: str) -> list[bool]:
    relation, level = re.search(r"which is (not more|more) than (\d+)", text).groups()  # type: ignore[union-attr]
    return [int(level) < 10, (seen.value(_last_item(text)) > int(level)) == (relation == "more")]


def _number(seen: Seen, text: str) -> list[bool]:
    thing = re.search(THING, text)[0]  # type: ignore[index]
    counted = [(line, n) for n, line in re.findall(rf"(\d+) in {LINE}", text) if re.search(r"is \d+ in", text)]
    counted = counted or re.findall(rf"{LINE} (?:is|adds|we count) {N}", text)
    lines = [line for line, _ in counted]
    things = seen.sides or [seen.thing]
    upto = seen.order[: seen.order.index(lines[-1]) + 1] if lines[-1] in seen.order else []
    total = sum(seen.number(thing, line) for line in upto) if upto and thing in things else -1
    stated = re.search(rf"(?:total is|makes|=) {N}\.", text)
    ok = [seen.number(thing, line) == int(number) for line, number in counted]
    ok += [_follow(seen, lines), " - " not in text]
    shown = re.search(rf"{N} \+ {N} =", text)
    if shown:
        ok += [int(shown[1]) + int(shown[2]) == total, shown[2] == counted[0][1]]
    return [*ok, stated is not None and int(stated[1]) == total]


def _in_all(seen: Seen, text: str) -> list[bool]:
    thing, number = re.search(THING, text)[0], re.search(rf"(?:is|count) {N}", text)[1]  # type: ignore[index]
    return [seen.number(thing) == int(number)]


def _points(seen: Seen, text: str) -> list[bool]:
    thing = re.search(THING, text)[0]  # type: ignore[index]
    kinds = {f"{shape}es" if shape == "cross" else f"{shape}s": points for shape, points in seen.each.items()}
    if thing not in kinds:
        return [False]
    worth = 0
    for kind, points in kinds.items():
        worth += seen.number(kind) * points
        if kind == thing:
            break
    number = seen.number(thing)
    expected = [number, number, kinds[thing], number * kinds[thing], worth]
    if " at " in text:
        expected = [number, kinds[thing], worth]
    return [[int(n) for n in re.findall(r"\d+", text)] == expected]


def _line_sum(seen: Seen, text: str) -> list[bool]:
    line = re.search(LINE, text)[0]  # type: ignore[index]
    numbers = [int(n) for n in re.findall(r"\d+", text)][1:]
    return ["-" not in text, numbers == [*seen.line(line), sum(seen.line(line))]]


def _ranked(seen: Seen, text: str) -> list[bool]:
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
    ranked = sorted(seen.picture.values())
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return ["-" in text, numbers == [ranked[-1], ranked[0], ranked[-1] - ranked[0]]]


def _compared(seen: Seen, text: str) -> list[bool]:
    first, second = (
        sum(seen.value(item) for item in side) if isinstance(side, list) else seen.number(side) for side in seen.sides
    )
    ok = [[int(n) for n in re.findall(r"\d+", text)][:2] == [first, second]]
    relation = re.search(r"is (not more|more) than", text)
    return [*ok, relation is None or (relation[1] == "more") == (first > second)]


def _answer(seen: Seen, text: str) -> list[bool]:
    return [re.search(r"boxed\{(\w+)\}", text)[1] in (seen.answer, seen.result)]  # type: ignore[index]


def _result(seen: Seen, text: str) -> list[bool]:
    return [re.search(rf"(?:gives|get|says) (bar [A-Z]|{N})", text)[1] == seen.result]  # type: ignore[index]


def _option(seen: Seen, text: str) -> list[bool]:
    return [seen.options.get(re.search(r"option ([A-D])", text)[1]) == seen.result]  # type: ignore[index]


def _largest_digit(seen: Seen, text: str) -> list[bool]:
    numbers = re.findall(r"\d+", text)
    place = re.search(r"place (\d+)", text)
    return [int(numbers[0]) == max(map(seen.value, seen.order)), place is None or place[1] == seen.result]


def _begin(seen: Seen, text: str) -> list[bool]:
    return [[seen.begin] == [int(n) for n in re.findall(r"\d+", text)]]


Check = Callable[[Seen, str], list[bool]]
CHECKS: list[tuple[str, Check]] = [
    (rf"{ITEM} (?:is|shows|with) \d|\d (?:from|at) {ITEM}", _items),
    (rf"{ITEM}.*(?:total is|get|=) \d+\.", _total),
    (r"^we start|^the first one", _start),
    (r"so far", _largest),
    (r"the count is", _count),
    (r"which is (?:not )?more than", _above),
    (rf"^the number of {THING} (?:in|is \d+ in) |^in {LINE} we count|^{LINE} adds", _number),
    (rf"^the number of {THING} is \d+\.|^in all", _in_all),
    (r"times|\d for \w.* at \d", _points),
    (r"^the sum of|its sum is", _line_sum),
    (r"^the (?:next )?(?:tallest|shortest)|height is|^after it", _ranked),
    (r"^the difference", _difference),
    (r"^we see that|^we compare", _compared),
    (r"boxed", _answer),
    (r"^this gives|^we get|^option [A-D] says", _result),
    (r"option", _option),
    (r"largest digit", _largest_digit),
    (r"^we begin|^at first", _begin),
]
"""What to look at in sentences that contain something."""

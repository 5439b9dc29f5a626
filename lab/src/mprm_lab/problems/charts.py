"""chartqa: a small calculation with values that a chart shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mprm_lab.draws import Draws
from mprm_lab.sample_text import Facts, Problem, Script

SCRIPT = Script(
    openings=(
        'The {chart} is titled "{title}" and gives one value in {unit} for each {category}, from {first} to {last}.',
        'This is a {chart} about "{title}". Every {category} has its own value, which is written next to it'
        " in {unit}.",
    ),
    work=(
        (
            "First look for {one}. The label next to its mark reads {v1}, so the value for {one} is {v1} {unit}.",
            "Going along the axis to {one}, the value that is printed there is {v1} {unit}.",
        ),
        (
            "Next comes {two}, whose label says {v2}; the {chart} therefore gives {v2} {unit} for {two}.",
            "In the same way the value for {two} can be read off, and it is {v2} {unit}.",
        ),
        (
            "The question asks for {aim}, so the calculation is {sum} = {found}.",
            "To get {aim}, work out {sum}, which comes to {found}.",
        ),
    ),
    checks=(
        "A rough look confirms this: the marks for {one} and {two} stand about where {v1} and {v2} should"
        " be on the axis.",
        "Doing the calculation the other way round also leads to {found}, so no digit was lost.",
        "The remaining entries, such as {spare} with {vs} {unit}, are not part of the question.",
        "The answer is to be given in the unit of the axis, {unit}, so nothing has to be converted.",
    ),
    asides=(
        "The axis starts at zero.",
        "All values are printed, so none has to be estimated from the axis.",
        "The entry for {spare} stands at {vs} and plays no part in this.",
        "The source line below the {chart} can be ignored.",
        "The colours only tell the entries apart.",
    ),
    slip="the label for {one} reads {v1} {unit}, and this makes {aim} {found}",
)

COUNTRIES = (
    "Austria",
    "Brazil",
    "Chile",
    "Denmark",
    "Egypt",
    "Finland",
    "Ghana",
    "India",
    "Japan",
    "Kenya",
    "Norway",
    "Peru",
)
YEARS = ("2008", "2009", "2010", "2011", "2012", "2013", "2014", "2015", "2016", "2017", "2018")
TOPICS = (
    ("Share of households with internet access", "percent", "country", COUNTRIES),
    ("Share of electricity from renewable sources", "percent", "country", COUNTRIES),
    ("Adults who read a newspaper every day", "percent", "country", COUNTRIES),
    ("Forest area as a share of land area", "percent", "country", COUNTRIES),
    ("Annual revenue of a bicycle maker", "million dollars", "year", YEARS),
    ("Visitors of the city museum", "thousand people", "year", YEARS),
    ("Average price of a concert ticket", "dollars", "year", YEARS),
    (
        "Sports that pupils say they like",
        "percent",
        "sport",
        ("Football", "Tennis", "Swimming", "Cycling", "Running", "Judo", "Rowing"),
    ),
    (
        "Time spent on media each day",
        "minutes",
        "medium",
        ("Radio", "Television", "Books", "Music", "Games", "Podcasts"),
    ),
)


@dataclass(frozen=True, slots=True)
class Calculation:
    """What is done with the two values."""

    ask: str
    aim: str
    work_out: Callable[[int, int], tuple[str, int]]
    """From both values in tenths: the calculation, and its result in tenths."""


def _tenths(value: int) -> str:
    return f"{value // 10}.{value % 10}" if value % 10 else str(value // 10)


CALCULATIONS = (
    Calculation(
        "What is the difference between the values for {} and {}?",
        "the difference of the two values",
        lambda a, b: (f"{_tenths(max(a, b))} - {_tenths(min(a, b))}", abs(a - b)),
    ),
    Calculation(
        "What is the sum of the values for {} and {}?",
        "the sum of the two values",
        lambda a, b: (f"{_tenths(a)} + {_tenths(b)}", a + b),
    ),
    Calculation(
        "What is the average of the values for {} and {}?",
        "the average of the two values",
        lambda a, b: (f"({_tenths(a)} + {_tenths(b)}) ÷ 2", (a + b) // 2),
    ),
)


def draw_problem(draws: Draws) -> Problem:
    """A chart with some entries, and a question about two of them."""
    title, unit, category, names = draws.pick(TOPICS)
    chart = draws.pick(("bar chart", "line chart", "column chart"))
    shown = sorted(draws.shuffled(names)[: draws.between(4, 6)], key=names.index)
    values = {name: 2 * draws.between(41, 440) for name in shown}
    one, two, spare = draws.shuffled(shown)[:3]
    calculation = draws.pick(CALCULATIONS)

    def facts(shift: int) -> Facts:
        """All of it when the first value is misread by this many tenths."""
        read = values[one] + shift
        total, found = calculation.work_out(read, values[two])
        frame = {
            "chart": chart,
            "title": title,
            "unit": unit,
            "category": category,
            "first": shown[0],
            "last": shown[-1],
        }
        entries = {"one": one, "two": two, "spare": spare, "aim": calculation.aim}
        labels = {"v1": _tenths(read), "v2": _tenths(values[two]), "vs": _tenths(values[spare])}
        return {**frame, **entries, **labels, "sum": total, "found": _tenths(found), "answer": _tenths(found)}

    right = facts(0)
    misread = (facts(shift) for shift in (-20, -10, 10, 20, 90))
    return Problem(
        question=calculation.ask.format(one, two),
        script=SCRIPT,
        right=right,
        # the difference can stay the same when the smaller value becomes the larger one
        wrong=tuple(facts for facts in misread if facts["answer"] != right["answer"]),
    )

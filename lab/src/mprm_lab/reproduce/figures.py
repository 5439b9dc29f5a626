"""The figures of the results page, from the results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mprm.data.charts import Chart, Point, Series, line_figure, need_altair, save_figure
from mprm.data.output import atomic_write
from mprm_lab.reproduce.paper_numbers import BACKBONES

OVERALL = "overall F1"


def charts_of(results: dict[str, Any]) -> list[Chart]:
    """Every figure that the finished cells can show."""
    found = []
    for backbone, summary in results["summary"].items():
        arms, title = summary["arms"], f"{BACKBONES.get(backbone, backbone)}'s architecture in the lab"
        for name, x, series in (
            ("scaling", "share of the rollouts (%)", _scaling(arms)),
            ("random", "share of the rollouts (%)", _random(arms)),
            ("curves", "updates", _curves(arms)),
        ):
            if series:
                chart = Chart(name=f"lab_{name}_{backbone}", title=title, x=x, y=OVERALL, series=series)
                found.append(chart)
        series = _best_of_n(arms)
        if series:
            found.append(
                Chart(
                    name=f"lab_best_of_n_{backbone}",
                    title=title,
                    x="candidates a problem (N)",
                    y="accuracy",
                    series=series,
                    is_log=True,
                )
            )
    return found


def write_figures(results: dict[str, Any], folder: Path) -> list[str]:
    """Write every figure as SVG; returns the files' names."""
    need_altair()
    names = []
    for chart in charts_of(results):
        names.append(f"{chart.name}.svg")
        with atomic_write(str(folder / names[-1])) as temporary:
            save_figure(line_figure(chart), temporary, "svg")
    return names


def _point(x: float, found: dict[str, Any]) -> Point:
    return Point(x=x, y=found["mean"], low=found["low"], high=found["high"])


def _by_share(arms: dict[str, Any], strategy: str, ending: str = "") -> tuple[Point, ...]:
    """The strategy's arms by the share that they keep."""
    shares = {}
    for arm, found in arms.items():
        middle = arm.removeprefix(f"{strategy}-").removesuffix(ending)
        if arm == f"{strategy}-{middle}{ending}" and middle.replace(".", "", 1).isdigit():
            shares[float(middle)] = found["overall"]
    return tuple(_point(share, shares[share]) for share in sorted(shares))


def _with_all(points: tuple[Point, ...], arms: dict[str, Any]) -> tuple[Point, ...]:
    """The points, and all data at their end."""
    return (*points, _point(100, arms["full"]["overall"])) if points and "full" in arms else points


def _level(arms: dict[str, Any]) -> tuple[Series, ...]:
    """All data as a level line."""
    if "full" not in arms:
        return ()
    ends = tuple(_point(share, arms["full"]["overall"]) for share in (0, 100))
    return (Series(name="all rollouts", points=ends),)


def _scaling(arms: dict[str, Any]) -> tuple[Series, ...]:
    found = [
        Series(name=name, points=points)
        for name, strategy in (("BIS", "bis"), ("random", "random"))
        if (points := _by_share(arms, strategy))
    ]
    return (*found, *_level(arms)) if found else ()


def _random(arms: dict[str, Any]) -> tuple[Series, ...]:
    matched = _by_share(arms, "random", "-matched")
    single = _by_share(arms, "random")
    if not (matched and single):
        return ()
    return (
        Series(name="random, one pass", points=_with_all(single, arms)),
        Series(name="random, as many updates as all", points=_with_all(matched, arms)),
    )


def _curves(arms: dict[str, Any]) -> tuple[Series, ...]:
    return tuple(
        Series(name=arm, points=tuple(_point(point["update"], point["overall"]) for point in found["curve"]))
        for arm, found in arms.items()
        if "curve" in found
    )


def _best_of_n(arms: dict[str, Any]) -> tuple[Series, ...]:
    found = []
    for arm, values in arms.items():
        if "best_of_n" in values:
            row = values["best_of_n"]["prm"]
            found.append(Series(name=arm, points=tuple(_point(int(n), one) for n, one in row.items())))
            rivals = values["best_of_n"]
    if not found:
        return ()
    # the same for every reward model: they have no part in them
    others = {"majority_vote": "majority vote", "oracle": "oracle"}
    return (
        *found,
        *(
            Series(name=words, points=tuple(_point(int(n), one) for n, one in rivals[name].items()))
            for name, words in others.items()
            if name in rivals
        ),
    )

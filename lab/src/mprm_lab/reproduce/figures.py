"""The figures of the results page, from the results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mprm.data import Chart, Point, Series, atomic_write, line_figure, need_altair, save_figure
from mprm_lab.reproduce.findings import BACKBONES

Summary = dict[str, Any]
"""Conditions of one backbone, as `mprm_lab.reproduce.results.summary_of` makes them."""


def charts_of(results: dict[str, Any]) -> list[Chart]:
    """Every figure that the finished runs can show."""
    charts = []
    for backbone, of_backbone in results["summary"].items():
        summary, title = of_backbone["conditions"], f"{BACKBONES.get(backbone, backbone)}'s architecture in the lab"
        for name, x, y, series in (
            ("scaling", "share of the rollouts (%)", "overall F1", _scaling(summary)),
            ("random", "share of the rollouts (%)", "overall F1", _random(summary)),
            ("curves", "optimizer steps", "overall F1", _curves(summary)),
            ("best_of_n", "candidates a problem (N)", "accuracy", _best_of_n(summary)),
        ):
            if series:
                is_log = name == "best_of_n"
                chart = Chart(name=f"lab_{name}_{backbone}", title=title, x=x, y=y, series=series, is_log=is_log)
                charts.append(chart)
    return charts


def write_figures(results: dict[str, Any], folder: Path) -> list[str]:
    """Names of the files: every figure as SVG."""
    need_altair()
    names = []
    for chart in charts_of(results):
        names.append(f"{chart.name}.svg")
        with atomic_write(str(folder / names[-1])) as temporary:
            save_figure(line_figure(chart), temporary, "svg")
    return names


def _point(x: float, mean: dict[str, Any]) -> Point:
    return Point(x=x, y=mean["mean"], low=mean["low"], high=mean["high"])


def _by_share(summary: Summary, strategy: str, ending: str = "") -> tuple[Point, ...]:
    """The strategy's conditions by the share that they keep."""
    shares = {}
    for condition, row in summary.items():
        middle = condition.removeprefix(f"{strategy}-").removesuffix(ending)
        if condition == f"{strategy}-{middle}{ending}" and middle.replace(".", "", 1).isdigit():
            shares[float(middle)] = row["overall"]
    return tuple(_point(share, shares[share]) for share in sorted(shares))


def _scaling(summary: Summary) -> tuple[Series, ...]:
    """BIS and random by share, all data as a level line."""
    curves = {name: _by_share(summary, strategy) for name, strategy in (("BIS", "bis"), ("random", "random"))}
    series = [Series(name=name, points=points) for name, points in curves.items() if points]
    if series and "full" in summary:
        ends = tuple(_point(share, summary["full"]["overall"]) for share in (0, 100))
        series.append(Series(name="all rollouts", points=ends))
    return tuple(series)


def _random(summary: Summary) -> tuple[Series, ...]:
    """Random by share, each with all data at its end."""
    single, matched = _by_share(summary, "random"), _by_share(summary, "random", "-matched")
    if not (matched and single):
        return ()
    end = (_point(100, summary["full"]["overall"]),) if "full" in summary else ()
    return (
        Series(name="random, one pass", points=single + end),
        Series(name="random, as many optimizer steps as all", points=matched + end),
    )


def _curves(summary: Summary) -> tuple[Series, ...]:
    return tuple(
        Series(name=name, points=tuple(_point(point["optimizer_step"], point["overall"]) for point in row["curve"]))
        for name, row in summary.items()
        if "curve" in row
    )


def _best_of_n(summary: Summary) -> tuple[Series, ...]:
    accuracies = {condition: row["best_of_n"] for condition, row in summary.items() if "best_of_n" in row}
    rows = {condition: by_method["prm"] for condition, by_method in accuracies.items()}
    for by_method in list(accuracies.values())[-1:]:  # the same for every reward model: they have no part in them
        others = {"majority vote": "majority_vote", "oracle": "oracle"}
        rows |= {words: by_method[method] for words, method in others.items() if method in by_method}
    return tuple(
        Series(name=name, points=tuple(_point(int(n), mean) for n, mean in row.items())) for name, row in rows.items()
    )

"""Line charts with bands, drawn with Altair: best of N, learning curves, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mprm.data.output import printable
from mprm.errors import MissingDependencyError

PALETTE = ["#0072b2", "#c04e00", "#009e73", "#cc79a7", "#8a6200", "#000000", "#56b4e9", "#6b7680"]
"""After Okabe and Ito: distinct with any kind of colour vision."""
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value, and the band around it where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one axis."""

    name: str
    """File name of the figure."""
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    is_log: bool = False
    """Whether x doubles from tick to tick."""
    is_unit: bool = False
    """Whether both axes go from 0 to 1, with the diagonal."""
    is_percent: bool = True
    """Whether values are fractions and shown in percent."""


def can_draw() -> bool:
    """Whether Altair and vl-convert are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def need_altair() -> None:
    """Stop when figures cannot be drawn."""
    if not can_draw():
        raise MissingDependencyError("figures need Altair and vl-convert: install mprm with its extra [report]")


def line_figure(chart: Chart) -> Any:
    """An Altair chart of lines with their bands."""
    import altair as alt

    def shown(value: float | None) -> float | None:
        return 100 * value if value is not None and chart.is_percent else value

    names = [printable(series.name) for series in chart.series]
    rows = [
        {"line": name, "x": point.x, "y": shown(point.y), "low": shown(point.low), "high": shown(point.high)}
        for name, series in zip(names, chart.series, strict=True)
        for point in series.points
    ]
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolSize=400)

    def by_line(channel: Any, values: list[Any]) -> Any:
        scale = alt.Scale(domain=names, range=list(islice(cycle(values), len(names))))
        return channel("line:N", title=None, sort=names, scale=scale, legend=legend)

    colour, dash = by_line(alt.Color, PALETTE), by_line(alt.StrokeDash, DASHES)
    scale = alt.Scale(type="log", base=2) if chart.is_log else alt.Scale(zero=chart.is_unit, nice=False)
    ticks = sorted({point.x for series in chart.series for point in series.points})
    axis = alt.Axis(values=ticks) if chart.is_log else alt.Axis()
    x = alt.X("x:Q", title=chart.x, scale=scale, axis=axis)
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x)
    y_title = f"{chart.y} (%)" if chart.is_percent else chart.y
    y, y_low = (alt.Y(f"{name}:Q", title=y_title, scale=alt.Scale(zero=chart.is_unit)) for name in ("y", "low"))
    band = base.transform_filter("datum.low !== null").mark_area(opacity=0.14)
    line = base.mark_line(point=True, strokeWidth=2).encode(y=y, color=colour, strokeDash=dash)
    layers = [band.encode(y=y_low, y2="high:Q", color=colour), line]
    if chart.is_unit:
        ends = alt.InlineData(values=[{"x": 0, "y": 0}, {"x": 1, "y": 100}])
        layers.insert(0, alt.Chart(ends).mark_line(color="#999999", strokeDash=[2, 3]).encode(x=x, y=y))
    return alt.layer(*layers).properties(width=420, height=280, title=printable(chart.title))


def save_figure(chart: Any, path: Path, kind: str) -> None:
    """Write an Altair chart in the report's style, as ``svg``, ``png`` or ``pdf``."""
    styled = (
        chart.configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e5e5e5")
        .configure_title(fontSize=13, anchor="start")
        .configure_legend(labelFontSize=11, labelLimit=0, symbolStrokeWidth=2.5)
        .configure_view(stroke=None)
    )
    styled.save(str(path), format=kind, scale_factor=2 if kind == "png" else 1)

"""Accuracy against N, as a figure."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mprm.reranking.best_of_n import METHODS, BestOfN

COLOURS = {
    "prm": "#0072B2",
    "weighted_vote": "#009E73",
    "majority_vote": "#D55E00",
    "random": "#999999",
    "first": "#E69F00",
    "oracle": "#000000",
}
"""Okabe and Ito's palette: told apart with any kind of colour vision."""
DASHES = {"oracle": [6, 3], "random": [2, 2], "first": [8, 2, 2, 2]}
"""What no reward model is needed for is dashed, so that print in black and white tells it too."""


def can_draw() -> bool:
    """Whether Altair and vl-convert are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def best_of_n_figure(found: BestOfN, *, title: str) -> Any:
    """The chart: a line and its 95% band for each method."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "method": METHODS[name],
            "N": n,
            "accuracy": 100 * estimate.value,
            "low": 100 * estimate.low,
            "high": 100 * estimate.high,
        }
        for name, row in found.accuracy.items()
        for n, estimate in row.items()
    ]
    shown = [name for name in METHODS if name in found.accuracy]
    names = [METHODS[name] for name in shown]
    colour = alt.Color(
        "method:N",
        title=None,
        sort=names,
        scale=alt.Scale(domain=names, range=[COLOURS[name] for name in shown]),
        legend=alt.Legend(
            orient="right", symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2.5, symbolSize=500, labelLimit=0
        ),
    )
    dash = alt.StrokeDash(
        "method:N", sort=names, scale=alt.Scale(domain=names, range=[DASHES.get(name, [1, 0]) for name in shown])
    )
    ns = sorted({n for row in found.accuracy.values() for n in row})
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X(
            "N:Q", title="candidates a question (N)", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=ns)
        )
    )
    band = base.mark_area(opacity=0.12).encode(
        y=alt.Y("low:Q", title="accuracy (%)", scale=alt.Scale(zero=False)),
        y2="high:Q",
        color=colour,
    )
    line = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45)).encode(
        y=alt.Y("accuracy:Q", title="accuracy (%)"), color=colour, strokeDash=dash
    )
    return (
        (band + line)
        .properties(width=460, height=320, title=title)
        .configure_axis(labelFontSize=13, titleFontSize=14, titleFontWeight="normal", gridColor="#e5e5e5")
        .configure_legend(labelFontSize=13)
        .configure_title(fontSize=15, anchor="start")
        .configure_view(stroke=None)
    )


def write_figure(found: BestOfN, folder: Path, *, title: str) -> list[str]:
    """Write ``best_of_n.svg`` and ``best_of_n.png``; returns their names."""
    from mprm.rollouts.atomic_write import atomic_write

    chart = best_of_n_figure(found, title=title)
    names = ["best_of_n.svg", "best_of_n.png"]
    for name in names:
        with atomic_write(str(folder / name)) as temporary:
            chart.save(str(temporary), format=Path(name).suffix[1:], scale_factor=2 if name.endswith("png") else 1)
    return names

"""The report's figures as SVG, PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mprm.data.output import atomic_write, check_overwrite
from mprm.errors import MissingDependencyError, printable
from mprm.report.corpus_view import N_PARTS, TITLES, CorpusView, Histogram, ReportConfig
from mprm.report.run_views import Chart, RunsView

ALL, KEPT, COVERAGE, NEGATIVE = "#b9ddf3", "#0072b2", "#c04e00", "#d55e00"
PALETTE = ["#0072b2", "#c04e00", "#009e73", "#cc79a7", "#8a6200", "#000000", "#56b4e9", "#6b7680"]
"""After Okabe and Ito: told apart with any kind of colour vision."""
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
KINDS = ("svg", "png", "pdf")
COLUMNS = 4


def need_altair() -> None:
    """Stop when figures cannot be drawn."""
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        raise MissingDependencyError("figures need Altair and vl-convert: install mprm with its extra [report]")


def write_figures(
    corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig, folder: str, *, force: bool
) -> tuple[str, ...]:
    """Write every figure three times; returns the files."""
    figures = {
        f"{folder.rstrip('/')}/{name}.{kind}": (chart, kind)
        for name, chart in _figures(corpus, runs, config)
        for kind in KINDS
    }
    for path in figures:
        check_overwrite(path, force=force)
    for path, (chart, kind) in figures.items():
        with atomic_write(path) as temporary:
            save_figure(chart, temporary, kind)
    return tuple(figures)


def save_figure(chart: Any, path: Path, kind: str) -> None:
    """Write an Altair chart in the report's style, as ``svg``, ``png`` or ``pdf``."""
    styled = (
        chart.configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e5e5e5")
        .configure_title(fontSize=13, anchor="start")
        .configure_legend(labelFontSize=11, labelLimit=0, symbolStrokeWidth=2.5)
        .configure_view(stroke=None)
    )
    styled.save(str(path), format=kind, scale_factor=2 if kind == "png" else 1)


def _figures(corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> Iterator[tuple[str, Any]]:
    import altair as alt

    if corpus is not None:
        share = f"BIS, α = {config.alpha:g}, ρ = {config.rho:g}"
        for quantity, title in TITLES.items():
            found = [histogram for histogram in corpus.histograms if histogram.quantity == quantity]
            overall, *sources = found
            yield quantity.lower(), _histogram(overall, title, f"All rollouts and those kept by {share}", 420, 260)
            panels = [_histogram(one, "", printable(one.source or ""), 170, 80, is_small=True) for one in sources]
            yield (
                f"{quantity.lower()}_by_source",
                alt.concat(*panels, columns=COLUMNS).properties(
                    title=alt.TitleParams(f"{title}: all rollouts and those kept by {share}", offset=14)
                ),
            )
        yield "step_scores", _step_scores(corpus, config.tau)
    for chart in runs.charts if runs is not None else ():
        yield chart.name, line_figure(chart)


def _histogram(found: Histogram, x_title: str, title: str, width: int, height: int, *, is_small: bool = False) -> Any:
    """Bars of all and of kept, and the coverage on an axis of its own."""
    import altair as alt

    step = found.end / len(found.n_all)
    rows = [
        {
            "from": b * step,
            "to": (b + 1) * step,
            "middle": (b + 0.5) * step,
            "all": n,
            "kept": k,
            "share": s,
            "zero": 0,
        }
        for b, (n, k, s) in enumerate(zip(found.n_all, found.n_kept, found.coverage, strict=True))
    ]
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("from:Q", title=x_title or None, scale=alt.Scale(domain=[0, found.end], nice=False))
    counts = alt.Scale(type="symlog")
    axis = alt.Axis(format=",d", values=[10**power for power in range(7)])
    y_title = None if is_small else "rollouts: all (light), kept (dark)"
    bars = [
        base.mark_rect(fill=colour, stroke="white", strokeWidth=0.5).encode(
            x=x,
            x2="to:Q",
            y2="zero:Q",
            y=alt.Y(f"{name}:Q", title=y_title, scale=counts, axis=axis),
        )
        for name, colour in (("all", ALL), ("kept", KEPT))
    ]
    share = alt.Y(
        "share:Q",
        title=None if is_small else "coverage: kept / all",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%", labelColor=COVERAGE, titleColor=COVERAGE, tickCount=2, grid=False),
    )
    curve = (
        base.transform_filter("datum.share !== null")
        .mark_line(
            color=COVERAGE,
            strokeWidth=1.5 if is_small else 2,
            point=False if is_small else alt.OverlayMarkDef(color=COVERAGE, size=25),
        )
        .encode(x="middle:Q", y=share)
    )
    layers = alt.layer(alt.layer(*bars), curve).resolve_scale(y="independent")
    return layers.properties(width=width, height=height, title=title)


def _step_scores(corpus: CorpusView, tau: float) -> Any:
    import altair as alt

    counts = corpus.step_scores.sum(0).tolist()
    rows = [
        {"score": k / N_PARTS, "share": n / sum(counts), "label": "negative" if k / N_PARTS <= tau else "positive"}
        for k, n in enumerate(counts)
    ]
    colour = alt.Color(
        "label:N", title=None, scale=alt.Scale(domain=["positive", "negative"], range=[KEPT, NEGATIVE])
    )
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=20)
        .encode(
            x=alt.X("score:Q", title="MC score of a step (bins of a sixteenth, named by their upper end)"),
            y=alt.Y("share:Q", title="share of steps", axis=alt.Axis(format="%")),
            color=colour,
        )
        .properties(width=480, height=260, title=f"MC scores of {sum(counts):,} steps")
    )


def line_figure(chart: Chart) -> Any:
    """An Altair chart of lines with their bands."""
    import altair as alt

    rows = [
        {
            "line": printable(series.name),
            "x": point.x,
            "y": 100 * point.y,
            "low": None if point.low is None else 100 * point.low,
            "high": None if point.high is None else 100 * point.high,
        }
        for series in chart.series
        for point in series.points
    ]
    names = [printable(series.name) for series in chart.series]
    n = len(names)
    colours = alt.Scale(domain=names, range=[PALETTE[i % len(PALETTE)] for i in range(n)])
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolSize=400)
    colour = alt.Color("line:N", title=None, sort=names, scale=colours, legend=legend)
    dashes = alt.Scale(domain=names, range=[DASHES[i % len(DASHES)] for i in range(n)])
    dash = alt.StrokeDash("line:N", title=None, sort=names, scale=dashes, legend=legend)
    scale = alt.Scale(type="log", base=2) if chart.is_log else alt.Scale(zero=chart.is_unit, nice=False)
    ticks = sorted({point.x for series in chart.series for point in series.points})
    axis = alt.Axis(values=ticks) if chart.is_log else alt.Axis()
    x = alt.X("x:Q", title=chart.x, scale=scale, axis=axis)
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x)
    y_title = f"{chart.y} (%)"
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=chart.is_unit))
    band = (
        base.transform_filter("datum.low !== null")
        .mark_area(opacity=0.14)
        .encode(
            y=alt.Y("low:Q", title=f"{chart.y} (%)", scale=alt.Scale(zero=chart.is_unit)), y2="high:Q", color=colour
        )
    )
    line = base.mark_line(point=True, strokeWidth=2).encode(y=y, color=colour, strokeDash=dash)
    layers = [band, line]
    if chart.is_unit:
        ends = alt.InlineData(values=[{"x": 0, "y": 0}, {"x": 1, "y": 100}])
        layers.insert(0, alt.Chart(ends).mark_line(color="#999999", strokeDash=[2, 3]).encode(x=x, y=y))
    return alt.layer(*layers).properties(width=420, height=280, title=printable(chart.title))

"""The report's figures as SVG, PNG and PDF; needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import altair as alt

from mprm.data.charts import line_figure, save_figure
from mprm.data.output import atomic_write, check_overwrite, printable
from mprm.report.corpus import TITLES, CorpusView, Histogram
from mprm.report.report import ReportConfig

if TYPE_CHECKING:
    from mprm.report.runs import RunsView

ALL, KEPT, COVERAGE, NEGATIVE = "#b9ddf3", "#0072b2", "#c04e00", "#d55e00"
SUFFIXES = ("svg", "png", "pdf")
COLUMNS = 4


def write_figures(corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> tuple[str, ...]:
    """Write every figure as SVG, PNG and PDF; returns the files."""
    figures = {
        f"{(config.figures or '').rstrip('/')}/{name}.{suffix}": (chart, suffix)
        for name, chart in _figures(corpus, runs, config)
        for suffix in SUFFIXES
    }
    for path in figures:
        check_overwrite(path, force=config.force)
    for path, (chart, suffix) in figures.items():
        with atomic_write(path) as temporary:
            save_figure(chart, temporary, suffix)
    return tuple(figures)


def _figures(corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> Iterator[tuple[str, Any]]:
    """(stem of the file, Altair chart) of each figure."""
    if corpus is not None:
        selection = f"BIS, α = {config.alpha:g}, ρ = {config.rho:g}"
        for quantity, title in TITLES.items():
            overall, *by_source = [h for h in corpus.histograms if h.quantity == quantity]
            heading = f"All rollouts and those kept by {selection}"
            yield quantity.lower(), _histogram(overall, title, heading, 420, 260)
            panels = [_histogram(h, "", printable(h.source or ""), 170, 80, is_small=True) for h in by_source]
            headings = alt.TitleParams(f"{title}: all rollouts and those kept by {selection}", offset=14)
            yield f"{quantity.lower()}_by_source", alt.concat(*panels, columns=COLUMNS).properties(title=headings)
        yield "step_scores", _step_scores(corpus, config.tau)
    for chart in runs.charts if runs is not None else ():
        yield chart.name, line_figure(chart)


def _histogram(data: Histogram, x_title: str, title: str, width: int, height: int, *, is_small: bool = False) -> Any:
    """Bars of all and of kept rollouts, and the coverage on an axis of its own."""
    step = data.end / len(data.n_all)
    rows = [
        {
            "from": b * step,
            "to": (b + 1) * step,
            "middle": (b + 0.5) * step,
            "all": n_all,
            "kept": n_kept,
            "share": n_kept / n_all if n_all else None,
            "zero": 0,
        }
        for b, (n_all, n_kept) in enumerate(zip(data.n_all, data.n_kept, strict=True))
    ]
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("from:Q", title=x_title or None, scale=alt.Scale(domain=[0, data.end], nice=False))
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
    share_axis = alt.Y(
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
        .encode(x="middle:Q", y=share_axis)
    )
    layers = alt.layer(alt.layer(*bars), curve).resolve_scale(y="independent")
    return layers.properties(width=width, height=height, title=title)


def _step_scores(corpus: CorpusView, tau: float) -> Any:
    counts = corpus.step_scores.sum(0).tolist()
    ends = [k / (len(counts) - 1) for k in range(len(counts))]
    rows = [
        {"score": end, "share": n / sum(counts), "label": "negative" if end <= tau else "positive"}
        for end, n in zip(ends, counts, strict=True)
    ]
    colours = alt.Scale(domain=["positive", "negative"], range=[KEPT, NEGATIVE])
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=20)
        .encode(
            x=alt.X("score:Q", title="MC score of a step (bins of a sixteenth, named by their upper end)"),
            y=alt.Y("share:Q", title="share of steps", axis=alt.Axis(format="%")),
            color=alt.Color("label:N", title=None, scale=colours),
        )
        .properties(width=480, height=260, title=f"MC scores of {sum(counts):,} steps")
    )

"""The report's figures as SVG, PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mprm.data.charts import line_figure, save_figure
from mprm.data.output import atomic_write, check_overwrite
from mprm.errors import printable
from mprm.report.corpus_view import N_PARTS, TITLES, CorpusView, Histogram, ReportConfig
from mprm.report.run_views import RunsView

ALL, KEPT, COVERAGE, NEGATIVE = "#b9ddf3", "#0072b2", "#c04e00", "#d55e00"
KINDS = ("svg", "png", "pdf")
COLUMNS = 4


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

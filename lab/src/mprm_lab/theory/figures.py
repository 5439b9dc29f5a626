"""What was simulated, as figures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mprm.data.output import atomic_write
from mprm_lab.theory.annotated import World
from mprm_lab.theory.training import DATA, UPDATES, Training
from mprm_lab.theory.verify import Verification

BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#999999"
"""Of Okabe and Ito's palette: told apart with any kind of colour vision."""
KINDS = ("svg", "png")
FIGURES = tuple(f"{name}.{kind}" for name in ("scaling", "strategies", "pseudo_positives") for kind in KINDS)
"""All files that may be written."""
TENTHS = [1, 0.1, 0.01, 0.001, 0.0001]
ORDER = ("all", "bis", "mixed", "reliable", "random", "low-mc")


def can_draw() -> bool:
    """Whether Altair and vl-convert are installed."""
    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def write_figures(found: Verification, folder: Path) -> list[str]:
    """Write each figure as SVG and PNG; returns the files' names."""
    charts: dict[str, Any] = {}
    if found.training is not None:
        charts["scaling"] = scaling_figure(found.training)
    if found.worlds:
        charts["strategies"], charts["pseudo_positives"] = strategies_figure(found), pseudo_positives_figure(found)
    written = [f"{name}.{kind}" for name in charts for kind in KINDS]
    for file in written:
        name, kind = file.split(".")
        with atomic_write(str(folder / file)) as temporary:
            charts[name].save(str(temporary), format=kind, scale_factor=2 if kind == "png" else 1)
    return written


def _styled(chart: Any) -> Any:
    return (
        chart.configure_axis(labelFontSize=12, titleFontSize=13, titleFontWeight="normal", gridColor="#e5e5e5")
        .configure_legend(labelFontSize=12, labelLimit=0, symbolStrokeWidth=2.5, symbolOpacity=1)
        .configure_title(fontSize=14, anchor="start")
        .configure_view(stroke=None)
    )


def scaling_figure(training: Training) -> Any:
    """Excess risk against updates and data, on logarithmic scales."""
    import altair as alt

    curves = {
        "SGD, by updates T": (training.single_pass, BLUE),
        "largest deviation of the loss, by data N": (training.deviation, ORANGE),
        "empirical minimizer, by data N": (training.minimizer, GREEN),
    }
    rows = [
        {"curve": name, "size": size, "value": float(values.mean())}
        for name, (curve, _) in curves.items()
        for size, values in curve.items()
    ]
    log = alt.Scale(type="log", nice=False)
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45))
        .encode(
            x=alt.X(
                "size:Q", title="updates T, or training steps N", scale=log, axis=alt.Axis(values=[*DATA, *UPDATES])
            ),
            y=alt.Y(
                "value:Q", title="excess risk, or deviation", scale=log, axis=alt.Axis(values=TENTHS, format="~g")
            ),
            color=alt.Color(
                "curve:N",
                title=None,
                sort=list(curves),
                scale=alt.Scale(domain=list(curves), range=[colour for _, colour in curves.values()]),
                legend=alt.Legend(orient="bottom", direction="vertical"),
            ),
        )
        .properties(
            width=440, height=280, title="T^(−1/2) and N^(−1/2) as bounded; the minimizer itself falls as 1/N"
        )
    )
    return _styled(chart)


def strategies_figure(found: Verification) -> Any:
    """Macro-F1 and risk of each strategy's students, with 95% intervals over seeds, in each world."""
    import altair as alt

    rows = []
    worlds = [world for world in found.worlds if world.world.slope == World().slope]
    for world in worlds:
        name = f"correlation {world.world.correlation:g}"
        for strategy, values in world.as_dict()["students"].items():
            for measure in ("f1", "refitted_risk"):
                mean, half = values[measure]
                rows.append(
                    {"world": name, "subset": strategy, measure: mean, "low": mean - half, "high": mean + half}
                )
    colour = alt.Color(
        "world:N",
        title="steps of a rollout",
        scale=alt.Scale(
            domain=[f"correlation {c:g}" for c in sorted(world.world.correlation for world in worlds)],
            range=[GREEN, BLUE, ORANGE],
        ),
    )

    def panel(measure: str, title: str) -> Any:
        base = alt.Chart(alt.InlineData(values=[row for row in rows if measure in row])).encode(
            y=alt.Y("subset:N", title=None, sort=list(ORDER)), yOffset="world:N", color=colour
        )
        bars = base.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False)), x2="high:Q"
        )
        points = base.mark_point(filled=True, size=60, opacity=1).encode(x=f"{measure}:Q")
        return (bars + points).properties(width=250, height=240)

    panels = alt.hconcat(
        panel("f1", "macro-F1 less the teacher's"), panel("refitted_risk", "excess risk, intercept refitted")
    )
    return _styled(panels.properties(title="A tenth of the rollouts by each strategy, and all of them"))


def pseudo_positives_figure(found: Verification) -> Any:
    """Risk with and without pseudo-positives, against their share."""
    import altair as alt

    assert found.pseudo_positives is not None
    pseudo = found.pseudo_positives
    names = {
        "labels k > 0": (pseudo.annotated, ORANGE),
        "pseudo-positives labelled negative": (pseudo.corrected, BLUE),
    }
    rows = [
        {"labels": name, "share": 100 * float(share), "risk": float(risk)}
        for name, (risks, _) in names.items()
        for share, risk in zip(pseudo.share, risks.mean(axis=0), strict=True)
    ]
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45))
        .encode(
            x=alt.X("share:Q", title="pseudo-positives among positive steps (%)"),
            y=alt.Y("risk:Q", title="excess risk of the student"),
            color=alt.Color(
                "labels:N",
                title=None,
                scale=alt.Scale(domain=list(names), range=[colour for _, colour in names.values()]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
        .properties(width=440, height=260, title="Pseudo-positives harm, and the more of them the more")
    )
    return _styled(chart)

"""Accuracy against N, as a figure.

The metrics of a reranking as tables.

What a reranking leaves in its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from mprm.data.corpus import hash_file, write_manifest
from mprm.data.output import atomic_write
from mprm.data.records import corpus_files
from mprm.errors import printable
from mprm.evaluation.best_of_n import METHODS, RIVALS, BestOfN, Estimate
from mprm.evaluation.rerank import Reranking

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
    from mprm.data.output import atomic_write

    chart = best_of_n_figure(found, title=title)
    names = ["best_of_n.svg", "best_of_n.png"]
    for name in names:
        with atomic_write(str(folder / name)) as temporary:
            chart.save(str(temporary), format=Path(name).suffix[1:], scale_factor=2 if name.endswith("png") else 1)
    return names


Table = tuple[str, list[str], list[list[str]]]
"""Title, heads, rows."""


def tables(found: Reranking) -> list[Table]:
    """Accuracy by method and N, the lead over rivals, the other aggregates, and the sources at the largest N."""
    total, ns = found.measured.total, found.ns
    heads = [f"N = {n}" for n in ns]
    how = found.config.aggregate
    made = [
        (
            f"Accuracy, {total.n_questions:,} questions ({how} of step scores)",
            ["method", *heads],
            [[METHODS[name], *(_cell(row[n]) for n in ns)] for name, row in total.accuracy.items()],
        ),
        (
            "Lead of the highest PRM score, in points",
            ["over", *heads],
            [[METHODS[name], *(_lead(row[n]) for n in ns)] for name in RIVALS if (row := total.lead.get(name))],
        ),
        (
            "Accuracy of the highest PRM score by aggregate",
            ["aggregate", *heads],
            [[name, *(_cell(row[n]) for n in ns)] for name, row in total.by_aggregate.items()],
        ),
    ]
    if len(found.measured.sources) > 1:
        made.append(_sources(found, max(ns)))
    return made


def _sources(found: Reranking, n: int) -> Table:
    groups: dict[str, BestOfN] = {**found.measured.sources, "all questions": found.measured.total}
    methods = list(found.measured.total.accuracy)
    rows = [
        [
            printable(name),
            f"{group.n_questions:,}",
            *(f"{100 * group.accuracy[method][n].value:.1f}" for method in methods),
        ]
        for name, group in groups.items()
    ]
    return f"Accuracy at N = {n} by source", ["source", "questions", *(METHODS[method] for method in methods)], rows


def _cell(found: Estimate) -> str:
    return f"{100 * found.value:.1f} ({100 * found.low:.1f}–{100 * found.high:.1f})"


def _lead(found: Estimate) -> str:
    value, low, high = (round(100 * one, 1) + 0.0 for one in (found.value, found.low, found.high))  # no -0.0
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def notes(found: Reranking) -> list[str]:
    """What must be known to read the numbers."""
    config, n = found.config, max(found.ns)
    over = (
        "expectation over all subsets of N candidates"
        if config.subsets == "all"
        else "the first N candidates of each question"
    )
    lines = [
        f"Model: {printable(found.model)}. {len(found.chosen):,} questions, {found.n_candidates:,} candidates.",
        f"In brackets: 95% bootstrap interval over questions ({config.draws:,} draws, seed {config.seed}).",
        f"At each N: {over}.",
    ]
    if "majority_vote" not in found.measured.total.accuracy:
        lines.append("No votes: no candidate states an answer that was found.")
    if found.n_failed:
        bounds = ", ".join(
            f"{METHODS[name]} {100 * row[n].if_failed_correct:.1f}"
            for name, row in found.measured.total.accuracy.items()
        )
        lines.append(
            f"The checker could not decide on {found.n_failed:,} candidates ({found.failed_share:.2%}): they count as"
            f" not correct. If all of them were correct, at N = {n}: {bounds}."
        )
    if found.n_answerless:
        lines.append(f"{found.n_answerless:,} candidates state no answer that was found: they have no vote.")
    if found.n_cut_steps:
        lines.append(
            f"{found.n_cut_steps:,} steps have no score, cut off by truncation or nan from the model:"
            " they are left out."
        )
    if found.n_unscored:
        lines.append(
            f"{found.n_unscored:,} of {found.n_candidates:,} candidates have no scored step: they rank below all"
            " others."
        )
    return lines


def markdown(found: Reranking, *, figure: str | None) -> str:
    """The whole of ``metrics.md``."""
    parts = ["# Best of N", "", *(f"- {line}" for line in notes(found)), ""]
    if figure is not None:
        parts += [f"![Accuracy against N]({figure})", ""]
    for title, heads, rows in tables(found):
        parts += [f"## {title}", "", _markdown_table(heads, rows), ""]
    return "\n".join(parts)


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(heads), ["---"] + ["---:"] * (len(heads) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def metrics(found: Reranking) -> dict[str, Any]:
    """The content of ``metrics.json``; N as text."""
    return {
        "model": found.model,
        **asdict(found.config),
        "n": found.ns,
        "n_questions": len(found.chosen),
        "n_candidates": found.n_candidates,
        "n_failed": found.n_failed,
        "failed_share": found.failed_share,
        "n_answerless": found.n_answerless,
        "n_cut_steps": found.n_cut_steps,
        "n_unscored": found.n_unscored,
        "total": msgspec.to_builtins(found.measured.total, str_keys=True),
        "sources": msgspec.to_builtins(found.measured.sources, str_keys=True),
    }


def write(found: Reranking, folder: Path, *, candidates: Any, scores: str | Path | None) -> None:
    """Write chosen.jsonl, metrics.json with its manifest, metrics.md and, where Altair is installed, the figure."""
    encode = msgspec.json.Encoder().encode
    chosen_path = str(folder / "chosen.jsonl")
    with atomic_write(chosen_path) as temporary, temporary.open("wb") as lines:
        lines.writelines(encode(chosen) + b"\n" for chosen in found.chosen)
    title = f"Best of N: {printable(found.model)}"
    figures = write_figure(found.measured.total, folder, title=title) if can_draw() else []
    with atomic_write(str(folder / "metrics.md")) as temporary:
        text = markdown(found, figure=figures[0] if figures else None)
        temporary.write_text(text, encoding="utf-8")
    path = str(folder / "metrics.json")
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.format(encode(metrics(found)), indent=2) + b"\n")
        inputs = [_entry(file.path, file.n_bytes, is_remote=file.is_remote) for file in corpus_files(candidates)]
        if scores is not None:
            inputs.append(_entry(str(scores), Path(scores).expanduser().stat().st_size, is_remote=False))
        write_manifest(
            path,
            command="rerank",
            config={"model": found.model, **asdict(found.config), "n": found.ns},
            inputs=inputs,
            sources=found.sources,
            output={
                "path": path,
                "n_bytes": temporary.stat().st_size,
                "xxh3_128": hash_file(str(temporary)),
                "chosen_xxh3_128": hash_file(chosen_path),
                "figures": figures,
            },
        )


def _entry(path: str, n_bytes: int, *, is_remote: bool) -> dict[str, Any]:
    return {"path": path, "n_bytes": n_bytes, "xxh3_128": None if is_remote else hash_file(path)}

"""The page, one HTML file that requests nothing and where text from data is only ever text; figures with Altair."""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mprm import __version__
from mprm.data.charts import line_figure, save_figure
from mprm.data.corpus import is_frame
from mprm.data.images import image_folder, open_image
from mprm.data.output import Outputs, Table, atomic_write, printable
from mprm.data.records import is_url
from mprm.errors import DataError, MissingDependencyError
from mprm.report.corpus import HIGH_MC, LOW_MC, TITLES, CorpusView, Histogram, bins_of, packed_counts
from mprm.report.report import ReportConfig
from mprm.selection.bis import mixture, reliability
from mprm.selection.stats import STATISTICS, total

if TYPE_CHECKING:
    from mprm.report.runs import RunsView

SCRIPTS = ("keep.js", "charts.js", "math.js", "page.js")
LIMITS = {"paths": 3, "images": 2, "question": 1500, "steps": 24, "step": 700, "summands": 10}
"""Input files that the page names; of a case, images, characters of the question, steps, characters of a step, and
scores written out in a sum. The rest is counted."""
IMAGE_SIDE = 360  # pixels of an image's longer side, at most
MAX_IMAGE_BYTES = 1_800_000  # of all images together, before base64: the page stays below 5 MB
RELIABILITIES = ((0.25, "faint"), (0.75, "fair"), (1.0, "firm"))  # largest score and CSS class of a positive step
ALL, KEPT, COVERAGE, NEGATIVE = "#b9ddf3", "#0072b2", "#c04e00", "#d55e00"
SUFFIXES = ("svg", "png", "pdf")
COLUMNS = 4


class Best(str):
    """A cell that holds the best number of its column."""

    __slots__ = ()


def page_markup(paths: Any, corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> str:
    """The whole page; ``paths``: as the corpus was named."""
    corpus_data = None if corpus is None else _corpus_data(paths, corpus, config)
    return render(
        "page.html",
        corpus=corpus,
        runs=runs,
        data={"corpus": corpus_data, "charts": [] if runs is None else [asdict(chart) for chart in runs.charts]},
        style=Markup(_part("page.css")),
        code=Markup("\n".join(map(_part, SCRIPTS))),
        limits=LIMITS,
        config=config,
        version=__version__,
        **({} if corpus is None else _corpus_context(corpus, config)),
    )


def render(template: str, **context: Any) -> str:
    """The template filled in; whatever is not from a template is escaped, control characters too."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    flags: dict[str, Any] = dict.fromkeys(("autoescape", "trim_blocks", "lstrip_blocks"), True)
    environment = Environment(loader=FunctionLoader(_part), undefined=StrictUndefined, finalize=_printable, **flags)
    environment.filters |= {"at_most": at_most, "csp_hash": csp_hash}
    environment.tests["best"] = lambda cell: isinstance(cell, Best)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _part(name: str) -> str:
    return files("mprm.report").joinpath(name).read_text(encoding="utf-8")


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return "\n".join(map(printable, value.split("\n"))) if is_text else value


def at_most(text: str, n: int) -> str:
    """The first ``n`` characters, and how many more there are."""
    return text if len(text) <= n else f"{text[:n]} … ({len(text) - n:,} more characters)"


def csp_hash(code: str) -> str:
    """The hash by which a Content-Security-Policy allows one script or style."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _corpus_data(paths: Any, corpus: CorpusView, config: ReportConfig) -> dict[str, Any]:
    label_counts = packed_counts(corpus.unique)
    return {
        "command": select_command(paths, config),
        "score_name": _score_name(corpus),
        "alpha": config.alpha,
        "rho": config.rho,
        "tau": config.tau,
        "seed": str(config.seed),  # a number in JavaScript holds 53 bits of it
        "sources": [
            {"name": name, "n": entry.n_rollouts, "mean_mc": entry.mean_mc, "level": corpus.levels[name]}
            for name, entry in corpus.statistics.items()
        ],
        "step_scores": corpus.step_scores.tolist(),
        "bins": bins_of(corpus.unique, alpha=config.alpha),
        "label_counts": label_counts,
        "histograms": [asdict(histogram) for histogram in corpus.histograms] if label_counts is None else None,
    }


def _score_name(corpus: CorpusView) -> str:
    return "label" if set(corpus.levels.values()) == {"binary"} else "MC score"


def select_command(paths: Any, config: ReportConfig) -> str:
    """How ``mprm select`` names the same corpus in a shell; many files as one glob where it matches them alone."""
    words = ["INPUT"]  # a table in memory has no name
    if isinstance(paths, str | Path):
        words = [str(paths)]
    elif isinstance(paths, list | tuple) and not is_frame(paths):
        words, first = list(map(str, paths)), Path(paths[0])
        glob, is_plain = first.with_name(f"*{first.suffix}"), not set("*?[") & set(str(first.parent))
        if len(words) > LIMITS["paths"] and is_plain and set(map(Path, words)) == set(first.parent.glob(glob.name)):
            words = [str(glob)]
    options = ["--format", config.format] if config.format else []
    options += ["--text-only"] * config.text_only + ["--skip-bad"] * config.skip_bad
    return shlex.join(["mprm", "select", *words, *options])


def _corpus_context(corpus: CorpusView, config: ReportConfig) -> dict[str, Any]:
    every = total(corpus.statistics)
    tiles = {
        "rollouts": f"{every.n_rollouts:,}",
        "sources": f"{len(corpus.statistics):,}",
        "steps": f"{every.n_steps:,}",
        "error steps": f"{every.error_step_ratio:.2%}",
        f"mean {_score_name(corpus)}": f"{every.mean_mc:.4f}",
        "mixed rollouts": f"{every.mixed_share:.2%}",
        f"tied at α = {config.alpha:g}": f"{every.tied_share:.2%}",
    }
    return {
        "tiles": tiles,
        "statistics": _statistics_table(corpus),
        "score_name": _score_name(corpus),
        "mc_levels": (LOW_MC, HIGH_MC),
        "folds": {source: list(cases) for source, cases in groupby(corpus.cases, key=lambda case: case.source)},
        "thumbnail": _thumbnails(image_folder(config.image_root)),
        "bis_computation": bis_computation,
        "reliability_class": lambda score: next(name for end, name in RELIABILITIES if score <= end),
    }


def _statistics_table(corpus: CorpusView) -> Table:
    """The table of `mprm stats`, with the level of each source after its mean score."""
    statistics = corpus.statistics
    after = 2 + [column.attribute for column in STATISTICS].index("mean_mc")
    rows = [["source", *(column.head for column in STATISTICS)]]
    rows += [[name, *(column.cell(entry) for column in STATISTICS)] for name, entry in statistics.items()]
    rows += [["all", *(column.cell(total(statistics)) for column in STATISTICS)]]
    levels = ["level", *corpus.levels.values(), ""]
    heads, *cells = [[*row[:after], level, *row[after:]] for row, level in zip(rows, levels, strict=True)]
    return Table(title="Statistics by source", heads=heads, rows=cells, has_total=True)


def bis_computation(scores: Sequence[float], *, alpha: float, tau: float) -> dict[str, str]:
    """The parts of a rollout's BIS, each with its computation from the step scores."""
    positive = [f"{score:.4g}" for score in scores if score > tau]
    n_pos, n = len(positive), len(scores)
    terms = " + ".join(positive[: LIMITS["summands"]]) + (" + …" if n_pos > LIMITS["summands"] else "")
    mixed, R = mixture(scores, tau=tau), reliability(scores, tau=tau)  # noqa: N806 - the paper's symbol
    return {
        "p_pos": f"{n_pos} / {n} = {n_pos / n:.6g}",
        "p_pos (1 − p_pos)": f"{mixed:.6g}",
        "R": f"({terms}) / {n_pos} = {R:.6g}" if n_pos else "1, as no step is positive",
        "BIS": f"({mixed:.6g} + {alpha:g}) × {R:.6g} = {(mixed + alpha) * R:.6g}",
    }


def _thumbnails(root: Path | None) -> Callable[[str], dict[str, Any]]:
    """A function from an image's path to its thumbnail, decoded and encoded anew, or to why it is not shown."""
    n_bytes = 0

    @cache
    def thumbnail(path: str) -> dict[str, Any]:
        nonlocal n_bytes
        if root is None:  # no file is opened on the word of the data
            return {"reason": "images are shown with --image-root DIR"}
        if n_bytes >= MAX_IMAGE_BYTES:
            return {"reason": "left out, to keep the page small"}
        try:
            image = open_image(path, root)
        except (DataError, MissingDependencyError) as error:
            return {"reason": str(error)}
        image.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
        png, jpeg = io.BytesIO(), io.BytesIO()
        image.quantize(64).save(png, "png", optimize=True)
        image.save(jpeg, "jpeg", quality=78)
        # drawings are smaller as PNG with a palette, photographs as JPEG
        kind, data = min(("png", png.getvalue()), ("jpeg", jpeg.getvalue()), key=lambda pair: len(pair[1]))
        n_bytes += len(data)
        encoded = base64.b64encode(data).decode("ascii")
        return {"kind": kind, "data": encoded, "width": image.width, "height": image.height}

    return thumbnail


def write_figures(
    corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig, outputs: Outputs
) -> tuple[str, ...]:
    """Write every figure as SVG, PNG and PDF, together with the page where both are local; returns the files."""
    stem = str(config.figures).rstrip("/")
    charts = {f"{stem}/{name}.{kind}": chart for name, chart in _figures(corpus, runs, config) for kind in SUFFIXES}
    for path in charts:
        outputs.check(path)
    for path, chart in charts.items():
        is_apart = is_url(path) or is_url(config.page)
        with atomic_write(path) if is_apart else nullcontext(outputs.add(path)) as temporary:
            save_figure(chart, temporary, path[-3:])
    return tuple(charts)


def _figures(corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> Iterator[tuple[str, Any]]:
    import altair as alt

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
    import altair as alt

    step = (data.end - data.start) / len(data.n_all)
    rows = [
        {
            "from": data.start + b * step,
            "to": data.start + (b + 1) * step,
            "middle": data.start + (b + 0.5) * step,
            "all": n_all,
            "kept": n_kept,
            "share": n_kept / n_all if n_all else None,
            "zero": 0,
        }
        for b, (n_all, n_kept) in enumerate(zip(data.n_all, data.n_kept, strict=True))
    ]
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("from:Q", title=x_title or None, scale=alt.Scale(domain=[data.start, data.end], nice=False))
    axis = alt.Axis(format=",d", values=[10**power for power in range(7)])
    count_axis = {"title": None if is_small else "rollouts: all (light), kept (dark)", "axis": axis}
    bars = [
        base.mark_rect(fill=colour, stroke="white", strokeWidth=0.5).encode(
            x=x, x2="to:Q", y2="zero:Q", y=alt.Y(f"{name}:Q", scale=alt.Scale(type="symlog"), **count_axis)
        )
        for name, colour in (("all", ALL), ("kept", KEPT))
    ]
    share_axis = alt.Y(
        "share:Q",
        title=None if is_small else "coverage: kept / all",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%", labelColor=COVERAGE, titleColor=COVERAGE, tickCount=2, grid=False),
    )
    marks = {"strokeWidth": 1.5} if is_small else {"strokeWidth": 2, "point": {"color": COVERAGE, "size": 25}}
    lines = base.transform_filter("datum.share !== null").mark_line(color=COVERAGE, **marks)
    curve = lines.encode(x="middle:Q", y=share_axis)
    layers = alt.layer(alt.layer(*bars), curve).resolve_scale(y="independent")
    return layers.properties(width=width, height=height, title=title)


def _step_scores(corpus: CorpusView, tau: float) -> Any:
    import altair as alt

    counts, name = corpus.step_scores.sum(0).tolist(), _score_name(corpus)
    ends = [k / (len(counts) - 1) for k in range(len(counts))]
    rows = [
        {"score": end, "share": n / sum(counts), "label": "negative" if end <= tau else "positive"}
        for end, n in zip(ends, counts, strict=True)
    ]
    bars = alt.Chart(alt.InlineData(values=rows)).mark_bar(size=20)
    colours = alt.Scale(domain=["positive", "negative"], range=[KEPT, NEGATIVE])
    return bars.encode(
        x=alt.X("score:Q", title=f"{name} of a step (bins of a sixteenth, named by their upper end)"),
        y=alt.Y("share:Q", title="share of steps", axis=alt.Axis(format="%")),
        color=alt.Color("label:N", title=None, scale=colours),
    ).properties(width=480, height=260, title=f"{name}s of {sum(counts):,} steps")

"""Text from data as HTML and JSON inside HTML, so that it can only ever be text.

Pictures for the page: drawn anew and small, inside the page itself.

A case study as a card: picture, question, steps with their scores, and how its BIS comes about.

The page: one HTML file that holds all it needs and asks for nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from mprm import __version__
from mprm.data.images import image_path, open_image
from mprm.data.types import Rollout, Step
from mprm.errors import DataError, MissingDependencyError, printable
from mprm.report.corpus_view import (
    HIGH,
    KINDS,
    LOW,
    WORDS,
    Case,
    CorpusView,
    ReportConfig,
    level_of,
    packed_cells,
    why_not_live,
)
from mprm.report.run_views import Group, Row, RunsView, Table
from mprm.selection.stats import STATISTICS, Statistics, total
from mprm.selection.strategies import STRATEGIES


def text(value: Any, *, most: int | None = None) -> str:
    r"""The value as text in an element or attribute; control characters are written as escapes, lines kept.

    Parameters
    ----------
    most
        Characters shown; how many more there are is said.

    Examples
    --------
    >>> text("<b>\x00 & more", most=4)
    '&lt;b&gt;\\x00 … (7 more characters)'
    """
    words = str(value)
    if most is not None and len(words) > most:
        words = f"{words[:most]} … ({len(words) - most:,} more characters)"
    return escape("\n".join(map(printable, words.split("\n"))))


def json_text(value: Any) -> str:
    """The value as JSON that cannot end or open anything in the HTML around it."""
    found = msgspec.json.encode(value).decode()
    # the five only ever stand in strings, where an escape means the same
    for sign in "<>&\u2028\u2029":
        found = found.replace(sign, f"\\u{ord(sign):04x}")
    return found


def content_hash(code: str) -> str:
    """The hash by which a page's policy names the one script or style that it lets in."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def table_markup(table: Table) -> str:
    """The table with its caption, and the words below it."""
    heads = "".join(f'<th scope="col">{text(head)}</th>' for head in table.heads)
    bodies = []
    for group in table.groups:
        rows = []
        if group.head is not None:
            rows.append(
                f'<tr class="group"><th colspan="{len(table.heads)}" scope="rowgroup">{text(group.head)}</th></tr>'
            )
        for row in group.rows:
            cells = [
                f"<td>{f'<strong>{text(cell)}</strong>' if number in row.best else text(cell)}</td>"
                for number, cell in enumerate(row.cells[1:], 1)
            ]
            kind = ' class="total"' if row.is_total else ""
            rows.append(f'<tr{kind}><th scope="row">{text(row.cells[0])}</th>{"".join(cells)}</tr>')
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    below = paragraphs(table.below)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{text(table.caption)}"><table>'
        f"<caption>{text(table.caption)}</caption><thead><tr>{heads}</tr></thead>{''.join(bodies)}</table></div>{below}"
    )


def paragraphs(lines: Iterable[str]) -> str:
    """Each line as a small paragraph."""
    return "".join(f'<p class="note">{text(line)}</p>' for line in lines)


SIDE = 360
"""Pixels of the longer side, at most."""
MOST_BYTES = 1_800_000
"""Of all pictures together, before base64: the page stays below 5 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as a data: address, or the words that stand in its place."""

    source: str = ""
    width: int = 0
    height: int = 0
    words: str = ""


@dataclass(slots=True)
class Pictures:
    """Makes pictures of a corpus's images as long as there is room; the same image is made once."""

    root: str | Path | None
    """Folder that image paths are relative to; without it no file is opened on the word of the data."""
    n_bytes: int = 0
    _made: dict[str, Picture] = field(default_factory=dict)

    def __call__(self, image: str) -> Picture:
        """The picture of an image that a rollout names."""
        if image not in self._made:
            self._made[image] = self._make(image)
        return self._made[image]

    def _make(self, image: str) -> Picture:
        if self.root is None:
            return Picture(words="images are shown with --image-root DIR")
        if self.n_bytes >= MOST_BYTES:
            return Picture(words="left out, to keep the page small")
        try:
            image_path(image, self.root)
            opened = open_image(image, self.root)
        except MissingDependencyError as error:
            return Picture(words=str(error))
        except DataError as error:
            return Picture(words=str(error))
        opened.thumbnail((SIDE, SIDE))
        # drawings shrink best as PNG with a palette, photographs as JPEG: take what is smaller
        packed = []
        for form, picture, options in (
            ("png", opened.quantize(64), {"optimize": True}),
            ("jpeg", opened, {"quality": 78}),
        ):
            out = io.BytesIO()
            picture.save(out, form, **options)
            packed.append((len(out.getvalue()), form, out.getvalue()))
        n_bytes, form, data = min(packed)
        self.n_bytes += n_bytes
        text = base64.b64encode(data).decode("ascii")
        return Picture(source=f"data:image/{form};base64,{text}", width=opened.width, height=opened.height)


MOST_QUESTION, MOST_STEP, MOST_STEPS, MOST_SUMMANDS = 1500, 700, 24, 10
"""Characters of a question and of a step, steps of a rollout, scores written out in a sum."""
MOST_IMAGES = 2
LEVELS = ((0.25, "faint"), (0.75, "fair"), (1.0, "firm"))
"""How reliable a positive step is, by its score."""


def cards_markup(
    cases: Sequence[Case], *, alpha: float, tau: float, n_rollouts: dict[str, int], picture: Callable[[str], Picture]
) -> str:
    """The cards, those of each source folded together; the first is open."""
    folds: list[str] = []
    for source, found in groupby(cases, key=lambda case: case.source):
        cards = [_card(case, n_rollouts[source], alpha=alpha, tau=tau, picture=picture) for case in found]
        is_open = " open" if not folds else ""
        folds.append(
            f'<details class="fold"{is_open}><summary>{text(source)} <span>{len(cards)} rollouts</span></summary>'
            f'<div class="cards">{"".join(cards)}</div></details>'
        )
    return "".join(folds)


def _card(case: Case, n_rollouts: int, *, alpha: float, tau: float, picture: Callable[[str], Picture]) -> str:
    rollout = case.rollout
    assert rollout is not None
    title = text(" · ".join(KINDS[kind] for kind in case.kinds))
    verdict = "kept" if case.is_kept else "left"
    steps = "".join(_step(step, tau) for step in rollout.steps[:MOST_STEPS])
    more = len(rollout.steps) - MOST_STEPS
    rest = f'<p class="note">… and {more} more steps.</p>' if more > 0 else ""
    answer = f'<p class="answer">Answer: {text(rollout.answer, most=200)}</p>' if rollout.answer else ""
    question = text(rollout.question, most=MOST_QUESTION)
    pictures = "".join(_picture(name, picture(name)) for name in rollout.images[:MOST_IMAGES])
    if len(rollout.images) > MOST_IMAGES:
        pictures += f'<p class="note">… and {len(rollout.images) - MOST_IMAGES} more images.</p>'
    return (
        f'<article class="card"><header><h4>{title}</h4>'
        f'<span class="badge {verdict}">{"kept" if case.is_kept else "left out"}</span>'
        f"<p>{case.place:,} of {n_rollouts:,} by BIS · <code>{text(case.file)}:{case.line}</code></p></header>"
        f'<div class="asked">{pictures}<p class="question">{question}</p>{answer}</div>'
        f'<ol class="steps">{steps}</ol>{rest}{bis_markup(rollout, alpha=alpha, tau=tau)}</article>'
    )


def _picture(name: str, found: Picture) -> str:
    if found.source:
        size = f'width="{found.width}" height="{found.height}"'
        return f'<figure><img src="{found.source}" {size} alt="{text(name)}" loading="lazy"></figure>'
    return (
        f'<figure class="missing" role="img" aria-label="no picture"><code>{text(name, most=120)}</code>'
        f"<small>{text(found.words, most=200)}</small></figure>"
    )


def _step(step: Step, tau: float) -> str:
    is_positive = step.score > tau
    level = next(name for most, name in LEVELS if step.score <= most) if is_positive else "negative"
    counts = "" if not step.n_total else f" · {step.n_correct} of {step.n_total}"
    unsampled = " · never sampled" if step.never_sampled else ""
    label = "positive" if is_positive else "negative"
    return (
        f'<li class="step {level}"><div class="score"><b>{step.score:.4g}</b>'
        '<svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="6"/>'
        f'<rect class="fill" width="{100 * step.score:.1f}" height="6"/></svg>'
        f"<span>{'+' if is_positive else '−'} {label}{counts}{unsampled}</span></div>"
        f"<p>{text(step.text, most=MOST_STEP)}</p></li>"
    )


def bis_markup(rollout: Rollout, *, alpha: float, tau: float) -> str:
    """The score of a rollout, worked out before the reader's eyes."""
    positive = [score for score in rollout.scores if score > tau]
    n, n_pos = len(rollout.scores), len(positive)
    p_pos = n_pos / n
    mixture = p_pos * (1 - p_pos)
    total = 0.0
    for score in positive:  # from left to right, as it is ranked by
        total += score
    R = total / n_pos if n_pos else 1.0  # noqa: N806 - the paper's symbol
    if n_pos:
        summands = [f"{score:.4g}" for score in positive[:MOST_SUMMANDS]] + (["…"] if n_pos > MOST_SUMMANDS else [])
        why = f"({' + '.join(summands)}) / {n_pos} = {R:.6g}"
    else:
        why = "1, as no step is positive"
    lines = [
        ("p_pos", f"{n_pos} / {n} = {p_pos:.6g}"),
        ("p_pos (1 − p_pos)", f"{mixture:.6g}"),
        ("R", why),
        ("BIS", f"({mixture:.6g} + {alpha:g}) × {R:.6g} = {(mixture + alpha) * R:.6g}"),
    ]
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in lines)
    return f'<dl class="bis">{rows}</dl>'


SCRIPTS = ("keep.js", "charts.js", "page.js")
"""Parts of the one script, in order."""
MOST_PATHS = 3
"""Input files that the page names; the rest are counted."""


def page_of(corpus: CorpusView | None, runs: RunsView | None, config: ReportConfig) -> str:
    """The whole page."""
    code, style = "\n".join(map(_part, SCRIPTS)), _part("page.css")
    data: dict[str, Any] = {"corpus": None, "charts": [asdict(chart) for chart in runs.charts] if runs else []}
    body = []
    if corpus is not None:
        data["corpus"] = _corpus_data(corpus, config)
        body.append(_corpus_markup(corpus, config))
    if runs is not None:
        body.append(_runs_markup(runs))
    return Template(_part("page.html")).substitute(
        # nothing may be fetched, sent or run but this one script and style: whatever slipped through would stay text
        policy=f"default-src 'none'; img-src data:; style-src {content_hash(style)}; script-src {content_hash(code)};"
        " base-uri 'none'; form-action 'none'",
        style=style,
        code=code,
        data=json_text(data),
        links="".join(f'<a href="#{name}">{title}</a>' for name, title in _sections(corpus, runs)),
        summary=_summary(corpus, config),
        body="".join(body),
        version=text(__version__),
    )


def _part(name: str) -> str:
    return files("mprm.report").joinpath(name).read_text(encoding="utf-8")


def _sections(corpus: CorpusView | None, runs: RunsView | None) -> list[tuple[str, str]]:
    found = []
    if corpus is not None:
        found += [("select", "Select"), ("sources", "Sources"), ("statistics", "Statistics")]
        found += [("cases", "Case studies")] if corpus.cases else []
    return [*found, ("runs", "Runs")] if runs is not None else found


def _summary(corpus: CorpusView | None, config: ReportConfig) -> str:
    if corpus is None:
        return "<p>Training runs, evaluations and rerankings.</p>"
    names = [f"<code>{text(path)}</code>" for path in corpus.paths[:MOST_PATHS]]
    if len(corpus.paths) > MOST_PATHS:
        names.append(f"{len(corpus.paths) - MOST_PATHS} more files")
    every = total(corpus.statistics)
    numbers = [
        (f"{every.n_rollouts:,}", "rollouts"),
        (f"{len(corpus.statistics):,}", "sources"),
        (f"{every.n_steps:,}", "steps"),
        (f"{every.error_step_ratio:.2%}", "error steps"),
        (f"{every.mean_mc:.4f}", "mean MC score"),
        (f"{every.mixed_share:.2%}", "mixed rollouts"),
        (f"{every.tied_share:.2%}", f"tied at α = {config.alpha:g}"),
    ]
    tiles = "".join(f"<div><dt>{text(words)}</dt><dd>{text(number)}</dd></div>" for number, words in numbers)
    dropped = [f"{corpus.n_dropped:,} bad records were left out; mprm check lists them."] if corpus.n_dropped else []
    return f'<p>{", ".join(names)}</p><dl class="tiles">{tiles}</dl>{paragraphs(dropped)}'


def _corpus_data(corpus: CorpusView, config: ReportConfig) -> dict[str, Any]:
    """What the script draws and recomputes from."""
    why = why_not_live(corpus.cells)
    return {
        "alpha": config.alpha,
        "rho": config.rho,
        "tau": config.tau,
        "seed": str(config.seed),  # a number in JavaScript holds 53 bits of it
        "strategies": {name: strategy.summary for name, strategy in STRATEGIES.items()},
        "sources": [
            {"name": name, "n": entry.n_rollouts, "mean_mc": entry.mean_mc, "level": level_of(entry.mean_mc)}
            for name, entry in corpus.statistics.items()
        ],
        "levels": WORDS,
        "step_scores": corpus.step_scores.tolist(),
        "cells": packed_cells(corpus.cells) if why is None else None,
        "why_not_live": why,
        "histograms": None if why is None else [asdict(histogram) for histogram in corpus.histograms],
    }


def _corpus_markup(corpus: CorpusView, config: ReportConfig) -> str:
    cases = ""
    if corpus.cases:
        cases = cards_markup(
            corpus.cases,
            alpha=config.alpha,
            tau=config.tau,
            n_rollouts={name: entry.n_rollouts for name, entry in corpus.statistics.items()},
            picture=Pictures(None if config.image_root is None else Path(config.image_root).expanduser()),
        )
        cases = Template(_part("cases.html")).substitute(
            cards=cases, alpha=f"{config.alpha:g}", rho=f"{config.rho:g}", tau=f"{config.tau:g}"
        )
    return Template(_part("corpus.html")).substitute(
        statistics=table_markup(_statistics_table(corpus.statistics)),
        high=f"{HIGH:.2f}",
        low=f"{LOW:.2f}",
        cases=cases,
    )


def _statistics_table(statistics: dict[str, Statistics]) -> Table:
    place = 1 + next(number for number, column in enumerate(STATISTICS) if column.attribute == "mean_mc")

    def row(name: str, entry: Statistics, level: str, *, is_total: bool = False) -> Row:
        cells = [column.cell(entry) for column in STATISTICS]
        return Row(cells=(name, *cells[:place], level, *cells[place:]), is_total=is_total)

    rows = [row(name, entry, level_of(entry.mean_mc)) for name, entry in statistics.items()]
    rows.append(row("all", total(statistics), "", is_total=True))
    heads = [column.head for column in STATISTICS]
    return Table(
        caption="Statistics by source",
        heads=("source", *heads[:place], "level", *heads[place:]),
        groups=(Group(head=None, rows=tuple(rows)),),
    )


def _runs_markup(runs: RunsView) -> str:
    tables = "".join(map(table_markup, runs.tables))
    return f'<section id="runs"><h2>Runs</h2><div id="charts" class="charts"></div>{tables}</section>'

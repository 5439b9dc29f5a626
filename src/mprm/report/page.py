"""The page: one HTML file that holds all it needs and asks for nothing."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from mprm import __version__
from mprm.report.card_images import Pictures
from mprm.report.cards import cards_markup
from mprm.report.config import ReportConfig
from mprm.report.corpus_view import CorpusView
from mprm.report.label_cells import packed_cells, why_not_live
from mprm.report.markup import content_hash, json_text, paragraphs, table_markup, text
from mprm.report.run_views import RunsView
from mprm.report.source_level import HIGH, LOW, WORDS, level_of
from mprm.report.table import Group, Row, Table
from mprm.scores.rank import STRATEGIES
from mprm.scores.statistics import Statistics, total
from mprm.scores.statistics_columns import STATISTICS

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

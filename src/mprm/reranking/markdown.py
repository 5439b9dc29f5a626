"""The metrics of a reranking as tables."""

from __future__ import annotations

from collections.abc import Sequence

from mprm.reranking.best_of_n import METHODS, RIVALS, BestOfN, Estimate
from mprm.reranking.rerank import Reranking
from mprm.rollouts.printable import printable

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

"""The numbers of docs/theory.md and docs/results/theory.md are those of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import mprm
from mprm.theory import fit_corpus
from mprm_lab.theory.statements import CRITERION, FAMILY_ERROR, STATEMENTS

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "results" / "theory.md").read_text(encoding="utf-8")
RESULTS: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "theory.json").read_text(encoding="utf-8"))
FIT: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "theory_fit.json").read_text(encoding="utf-8"))
SEEDS: dict[str, Any] = json.loads(
    (ROOT / "benchmarks" / "results" / "theory_seeds.json").read_text(encoding="utf-8")
)


def table_after(text: str, document: str = PAGE) -> list[list[str]]:
    """The cells of the first table after the text, without heads and rule."""
    table = re.search(r"(?:^\|.*\n)+", document[document.index(text) :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[0].splitlines()][2:]


def line_cells(line: dict[str, Any]) -> list[str]:
    interval = "exact" if line["low"] == line["high"] else f"{line['low']:.4g} to {line['high']:.4g}"
    return [
        line["name"],
        line["equation"],
        line["statement"].replace("|", r"\|"),
        line["relation"],
        f"{line['predicted']:.4g}",
        f"{line['simulated']:.4g}",
        interval,
        str(line["n_settings"]),
        "holds" if line["holds"] else "fails",
    ]


def strategy_rows() -> list[list[str]]:
    rows = []
    for world in RESULTS["strategies"]["worlds"]:
        for name, metrics in world["students"].items():
            made = f"{world['world']['correlation']:g}, {world['world']['slope']:g}"
            cells = [made, f"`{name}`" if name != "all" else "all"]
            for measure in ("f1", "refitted_risk", "risk"):
                mean, half = metrics[measure]
                cells.append(f"{mean:.4f} ± {half:.4f}")
            rows.append([*cells, f"{metrics['pseudo_positive']:.1%}"])
    return rows


def coverage_rows() -> list[list[str]]:
    return [
        [
            f"Beta({simulation['a']:g}, {simulation['b']:g})",
            f"{simulation['correlation']:g}",
            *(f"{share:.1%}" for share in (*simulation["covered"], *simulation["independent"])),
        ]
        for simulation in FIT["coverage"]
    ]


def test_the_table_of_lines_is_the_committed_one() -> None:
    assert table_after("## Statements") == [line_cells(line) for line in RESULTS["lines"]]


def test_every_committed_line_holds_by_the_criterion_of_today() -> None:
    assert RESULTS["holds"] is True
    assert all(line["holds"] for line in RESULTS["lines"])
    assert RESULTS["criterion"] == CRITERION
    assert f"at most {FAMILY_ERROR:.0%}" in DOCUMENT
    statements = {line["name"]: (line["equation"], line["statement"], line["relation"]) for line in RESULTS["lines"]}
    assert statements == STATEMENTS
    assert f"All {len(STATEMENTS)} statements hold" in DOCUMENT


def test_the_table_of_strategies_is_the_committed_one() -> None:
    assert table_after("## Subsets compared") == strategy_rows()


def test_the_table_of_coverage_is_the_committed_one_and_near_95() -> None:
    assert table_after("### Measured", DOCUMENT) == coverage_rows()
    for simulation in FIT["coverage"]:
        # a binomial share of that many corpora, 4 standard deviations
        assert simulation["covered"] == pytest.approx(
            [0.95, 0.95], abs=4 * (0.95 * 0.05 / simulation["corpora"]) ** 0.5 + 0.005
        )


def test_seeds_and_times_are_the_committed_ones() -> None:
    text = " ".join(DOCUMENT.split())
    said = f"Over {SEEDS['seeds']} seeds {SEEDS['lines_failed']} of {SEEDS['lines']} lines were rejected"
    assert said in text
    for measured in (FIT["time"], FIT["known"]):
        assert f"{measured['steps']:,} steps" in text
        assert f"{min(measured['seconds']):.1f} s" in text


def test_a_known_prior_of_three_million_steps_lies_in_its_committed_interval() -> None:
    known = FIT["known"]
    assert known["steps"] == 3_000_000
    assert known["holds"] == [True, True]
    for name in ("a", "b"):
        low, high = known["prior"][f"{name}_interval"]
        assert low < known[name] < high
        assert f"{name} = {known['prior'][name]:.4f} [{low:.4f}, {high:.4f}]" in " ".join(DOCUMENT.split())


def test_figures_are_there() -> None:
    for folder, text in (("docs", DOCUMENT), ("docs/results", PAGE)):
        for name in re.findall(r"\]\(([\w./]+\.(?:svg|json|md))\)", text):
            assert (ROOT / folder / name).exists()


def test_the_shares_of_pseudo_positives_are_those_of_the_two_corpora(tmp_path: Path) -> None:
    sample = json.loads((ROOT / "docs" / "results" / "theory_fit_sample.json").read_text(encoding="utf-8"))
    committed = {subset["strategy"]: subset["pseudo_positive"] for subset in sample["subsets"]}
    again = {subset.strategy: subset.pseudo_positive for subset in fit_corpus(mprm.quickstart(tmp_path)).subsets}
    assert again == pytest.approx(committed, abs=1e-6)
    rows = table_after("Expected pseudo-positives among the positive steps of a tenth", DOCUMENT)
    for (_, *cells), shares in zip(rows, (committed, FIT["time"]["subsets"]), strict=True):
        assert cells == [f"{100 * shares[name]:.1f}%" for name in ("bis", "random", "mixed", "low-mc", "reliable")]

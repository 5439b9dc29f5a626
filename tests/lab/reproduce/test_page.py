from __future__ import annotations

import re
from pathlib import Path

import pytest

from mprm_lab.reproduce.figures import charts_of, write_figures
from mprm_lab.reproduce.page import page
from mprm_lab.reproduce.plan import ReproducePlan
from mprm_lab.reproduce.results import read_results, write_results
from tests.lab.reproduce.made_runs import TINY, made_results


def rows(text: str, head: str) -> list[list[str]]:
    """Runs of the table under a heading."""
    part = re.split(r"^#+ ", text.split(f"# {head}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines() if "|" in line
    ]


def test_the_page_has_the_papers_numbers_beside_the_labs() -> None:
    text = page(made_results())
    internvl = text.split("## InternVL2.5-8B's architecture")[1].split("## Qwen")[0]
    main = {row[0]: row for row in rows(internvl, "Labels and fractions")}
    # 0.60 + 0.05 · 0.1 + 0.03, seeds 0 to 2 add 0.001 on average, t(2) · 0.001/√3 = 0.00248
    assert main["BIS-10%"][4:6] == ["65.46", "63.60 [63.35, 63.85]"]
    assert main["All rollouts, soft"][4] == "61.54"
    assert main["BIS-10%"][3] == "4.00"  # 20 errors of 500 steps
    paired = {row[0]: row for row in rows(internvl, "BIS minus random selection")}
    assert paired["10%"][1:] == ["+2.60", "+3.00 [+3.00, +3.00]", "+3.00 [+1.00, +5.00]"]
    ablation = {row[0]: row for row in rows(internvl, "Ablation at 25%")}
    assert ablation["Mixed-25%"][1:5] == ["11.02", "64.70", "-0.76", "4.00"]
    assert {row[0] for row in rows(internvl, "Sensitivity to α at 25%")} > {"α = 0.02", "α = 0.05", "α = 0.2"}
    best = {row[0]: row for row in rows(internvl, "Best of N")}
    assert best["BIS-25%"][1:5] == ["41.00", "12.67", "40.89", "59.00"]
    assert best["no reward model"][1] == "33.13"
    by_position = {row[0]: row for row in rows(internvl, "Whether, or where")}
    assert by_position["BIS-10%"][2] == "58.00 [57.00, 59.00]"
    # 8,000 of 8,500 claiming steps are wrong; 38 of 40 repeats are below
    truth = {row[0]: row[1:] for row in rows(text, "Labels against the truth")}
    assert truth["0"] == ["9,000", "500", "94.1", "99.0", "40", "95.0", "97.0"]
    assert truth["1"] == ["215,000", "20,000", "1.0", "", "0", "", ""]


def test_findings_have_a_verdict_for_each_backbone() -> None:
    findings = {row[1]: row for row in rows(page(made_results()), "Findings")}
    assert findings["bis-10 − random-10 > 0"][2:] == [
        "+2.60",
        "+3.00 [+3.00, +3.00]",
        "reproduced",
        "+2.64",
        "+3.00 [+3.00, +3.00]",
        "reproduced",
    ]
    # the made-up soft labels are as good as hard ones, to the last digit
    assert findings["full − full-soft > 0"][4] == "open"


def test_every_table_is_rectangular_and_every_figure_is_drawn() -> None:
    text = page(made_results())
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    named = set(re.findall(r"\]\((lab_\w+)\.svg\)", text))
    assert named == {chart.name for chart in charts_of(made_results())}
    kinds = ("scaling", "random", "curves", "best_of_n")
    assert named == {f"lab_{kind}_{backbone}" for kind in kinds for backbone in ("internvl", "qwen")}


def test_the_trials_of_rates_are_shown_with_the_plans_in_bold() -> None:
    results = made_results()
    results["rate_trials"][0]["overall"] = 0.8  # internvl, all rollouts, 1e-4
    assert "| internvl | 100% | **80.00** | 60.03 | 60.10 |" in page(results)
    assert "| qwen | 5% | 60.01 | **60.03** | 60.10 |" in page(results)


def test_leads_are_shown_with_one_threshold_and_with_one_for_each_source() -> None:
    text = page(made_results())
    rows = re.findall(r"^\| 10% \| 63.60 \| 63.00 \| 60.60 \| 62.00 \| \+3.00 .* \| \+1.00 .* \| \+1.00", text, re.M)
    assert len(rows) == 2  # both backbones
    assert "All rollouts come to 64.00 with one each." in " ".join(text.split())


def test_a_page_of_few_runs_leaves_out_what_they_cannot_show() -> None:
    results = made_results(TINY)
    results["n_planned"] += 3
    text = page(results)
    assert "3 planned runs are not done yet." in " ".join(text.split())
    assert "### Best of N" not in text
    assert "lab_curves" not in text
    assert "BIS-10%" in text


def test_the_results_file_comes_back_as_it_was_with_a_line_for_each_run(tmp_path: Path) -> None:
    results = made_results(TINY)
    write_results(results, tmp_path / "lab.json")
    assert read_results(tmp_path / "lab.json") == results
    lines = (tmp_path / "lab.json").read_text().splitlines()
    assert sum(line.startswith('{"name"') for line in lines) == len(results["runs"])
    assert page(read_results(tmp_path / "lab.json")) == page(results)


def test_figures_are_svg(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    names = write_figures(made_results(ReproducePlan(seeds=2, backbones=("qwen",))), tmp_path)
    assert len(names) == 4
    scaling = (tmp_path / "lab_scaling_qwen.svg").read_text()
    assert scaling.startswith("<svg")
    assert "all rollouts" in scaling

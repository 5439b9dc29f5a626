"""The results file, its page and its figures, in one folder."""

from __future__ import annotations

from pathlib import Path

from mprm.data.output import atomic_write
from mprm_lab.reproduce.figures import write_figures
from mprm_lab.reproduce.page import page
from mprm_lab.reproduce.reproduce_plan import ReproducePlan
from mprm_lab.reproduce.results import read_results, results_of, write_results

NAME = "lab"


def write_page(lab: Path, out: Path, plan: ReproducePlan | None = None) -> list[Path]:
    """Write ``lab.json``, ``lab.md`` and the figures from the finished cells; they replace earlier ones."""
    file = out / f"{NAME}.json"
    write_results(results_of(lab, plan or ReproducePlan()), file)
    return [file, *page_again(out)]


def page_again(out: Path) -> list[Path]:
    """The page and its figures, of the results file that lies beside them."""
    results = read_results(out / f"{NAME}.json")
    text = out / f"{NAME}.md"
    with atomic_write(str(text)) as temporary:
        temporary.write_text(page(results), encoding="utf-8")
    return [text, *(out / name for name in write_figures(results, out))]

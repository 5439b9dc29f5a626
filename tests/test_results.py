"""The pages of docs/results say what their results files say."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import zstandard

from tests.conftest import script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def test_the_page_on_the_text_model_is_made_of_its_results() -> None:
    results = json.loads((RESULTS / "text_prm.json").read_text())
    assert (RESULTS / "text_prm.md").read_text() == script("benchmarks/text_prm.py").page(results)


def test_the_lab_page_is_made_of_its_results() -> None:
    from mprm_lab.reproduce.page import page
    from mprm_lab.reproduce.results import read_results, summary_of

    results = read_results(RESULTS / "lab.json")
    assert results["summary"] == summary_of(results["runs"])
    text = (RESULTS / "lab.md").read_text()
    assert text == page(results)
    figures = re.findall(r"\((lab_\w+\.svg)\)", text)
    assert figures
    assert all((RESULTS / name).is_file() for name in figures)
    readme = " ".join((ROOT / "README.md").read_text().split())
    for backbone in ("internvl", "qwen"):
        summary = results["summary"][backbone]["conditions"]
        means = [f"{100 * summary[name]['overall']['mean']:.2f}" for name in ("full", "bis-10", "random-10")]
        cells = [f"**{mean}**" if mean == max(means) else mean for mean in means]
        assert f"| {' | '.join(cells)} |" in readme


def test_the_labs_document_and_its_log_say_what_its_results_say() -> None:
    from mprm_lab.reproduce.results import read_results

    results = read_results(RESULTS / "lab.json")
    document, log = ((ROOT / "docs" / name).read_text() for name in ("lab.md", "log.md"))

    def shown(mean: dict[str, float | None]) -> str:
        value, low, high = (100 * (mean[name] or 0.0) for name in ("mean", "low", "high"))
        return f"{value:.1f}" if mean["low"] is None else f"{value:.1f} [{low:.1f}, {high:.1f}]"

    rows = {"all rollouts": "full", "BIS tenth": "bis-10", "random tenth": "random-10", "BIS quarter": "bis-25"}
    rows |= {
        "random quarter": "random-25",
        "backbone, untrained": "base",
        "position alone, reads nothing": "position",
    }
    for backbone in ("internvl", "qwen"):
        summary, same_index = results["summary"][backbone]["conditions"], results["auc_at_same_position"][backbone]
        for words, name in rows.items():
            of_condition, chosen = summary[name], summary[name]["best_of_n"]["prm"]["16"]
            means = [of_condition["overall"], of_condition["auc"], same_index[name], chosen]
            assert f"| {words} | {' | '.join(map(shown, means))} |" in document
            if name not in ("base", "position"):
                label = "all" if name == "full" else name.replace("bis", "BIS")
                aucs = (f"{mean['mean']:.3f}" for mean in means[1:3])
                f1, accuracy = (f"{100 * mean['mean']:.1f}" for mean in (means[0], chosen))
                assert f"| {backbone}, {label} | {' | '.join(aucs)} | {f1} | {accuracy} | +" in log


def overall_of_records(name: str) -> dict[str, float]:
    """Of each run whose record the archive holds."""
    packed = zstandard.ZstdDecompressor().stream_reader((RESULTS / name).read_bytes())
    with tarfile.open(fileobj=packed, mode="r|") as bundle:
        records = [json.load(bundle.extractfile(file)) for file in bundle if file.name.endswith(".json")]  # type: ignore[arg-type]
    return {record["name"]: record["metrics"]["held_out"]["overall"] for record in records}


def test_the_packed_records_are_the_runs_of_the_lab_page() -> None:
    overall = overall_of_records("lab_runs.tar.zst")
    for run in json.loads((RESULTS / "lab.json").read_text())["runs"]:
        assert overall[run["name"]] == run["metrics"]["held_out"]["overall"]


def test_the_page_of_rivals_is_made_of_its_cells_and_these_of_the_packed_records() -> None:
    from mprm_lab.reproduce.compare import compare_page

    for folder in ("", "fresh/"):
        assert (RESULTS / f"{folder}compare.md").read_text() == compare_page(RESULTS / f"{folder}compare.json")
        overall = overall_of_records(f"{folder}compare_runs.tar.zst")
        for cell in json.loads((RESULTS / f"{folder}compare.json").read_text())["cells"]:
            name = f"{cell['backbone']}.{cell['method']}-{100 * cell['rho']:g}.seed{cell['seed']}"
            assert overall[name] == cell["overall"]


def test_the_documents_on_rivals_say_what_their_page_says() -> None:
    rivals = (RESULTS / "compare.md").read_text().replace("-", "−")

    def differences(title: str) -> dict[str, str]:
        table = rivals.split(f"## {title}: internvl and qwen\n")[1].split("\n## ")[0]
        rows = [line.strip("| ").partition(" | ") for line in table.splitlines() if "[" in line]
        return {name: cells for name, _, cells in rows}

    documents = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("strategies", "readout", "index")}
    recommended = {"random": (0,), "bis−alpha−0.5": (1, 2), "random−readout": (0, 1, 2)}
    for metric in ("step F1", "best−of−16"):
        cells = {name: row.split(" | ") for name, row in differences(f"{metric}, minus BIS").items()}
        assert all(f"| {cells[name][n]} |" in documents["index"] for name, ns in recommended.items() for n in ns)
    over_bis, over_random = (differences(f"step F1, minus {name}") for name in ("BIS", "random selection"))
    assert len(over_bis) == 10
    rows = [line.strip("| ").partition(" | ") for line in documents["strategies"].splitlines() if "[" in line]
    shown = {name: cells for name, _, cells in rows}
    for name, cells in over_bis.items():
        start = (
            name.removesuffix("−readout").replace("bis−alpha−0.5", "bis --alpha 0.5").replace("random−soft", "random")
        )
        start = f"`--strategy {start.replace('−', '-')}`"
        ends = {"−readout": "read-out", "−soft": "`--labels soft`", "scan": "`--labels scan`"}
        end = next((words for ending, words in ends.items() if name.endswith(ending)), "")
        label = next(row for row in shown if row.startswith(start) and (end in row if end else row == start))
        assert shown[label] == cells
    first, second, third = over_random["bis−alpha−0.5"].split(" | ")
    assert f"{first}, {second} and {third} in F1" in " ".join(documents["strategies"].split())
    for metric in ("step F1", "best−of−16"):
        for baseline, name in (("BIS", "bis"), ("random selection", "random")):
            cells = differences(f"{metric}, minus {baseline}")[f"{name}−readout"]
            words = f"{metric.replace('−', '-')}, {baseline.removesuffix(' selection')}"
            assert f"| {words} | {cells} |" in documents["readout"]


def test_what_is_said_of_held_back_problems_is_in_their_page() -> None:
    page = (RESULTS / "fresh" / "compare.md").read_text().replace("-", "−")
    strategies = (ROOT / "docs" / "strategies.md").read_text()
    bullet = next(part for part in strategies.split("\n- ") if part.startswith("**Held back**"))
    shown = re.findall(r"\*\*[+−][\d.]+\*\* \[[^\]]+\]", " ".join(bullet.split()))
    assert len(shown) == 8
    assert all(f"| {cell} |" in page for cell in shown)
    index = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert sum(cell.replace("*", "") in index for cell in shown) >= 3


def test_the_figures_on_shared_prefixes_are_those_of_the_results() -> None:
    text = (ROOT / "docs" / "shared_prefixes.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "×" in line]
    tables = {len(row): {cells[0]: cells[1:] for cells in rows if len(cells) == len(row)} for row in rows}
    assert {len(table) for table in tables.values()} >= {4, 6}
    names = {"internvl": "InternVL", "qwen2_5_vl": "Qwen2.5-VL"}
    shapes = {
        "candidates": "",
        "trie": ", fours share 4 steps",
        "4 of a problem": ", 4 of a problem",
        "2 problems of 4": ", 2 problems of 4",
        "8 of unlike problems": ", 8 of unlike problems, 2 to 16 steps",
    }

    def ms(case: dict[str, float]) -> str:
        return f"{case['ms']:,.0f} ms"

    def expected(ways: list[dict[str, float]]) -> list[str]:
        plain, last = ways[-2:]
        memory = f"{plain['peak_gib']:.1f}, {last['peak_gib']:.1f}"
        return [*map(ms, ways), f"**{last['speedup']:.1f}×**", f"{last['bound_by_flops']:.1f}×", memory]

    for name, wanted in (("scoring", ("one by one", "batched", "shared")), ("training", ("padded", "packed"))):
        cases = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["cases"]
        case_of = {(case["backbone"], case["shape"], case["way"]): case for case in cases if not case.get("liger")}
        shown = tables[len(wanted) + 4]
        measured = {key[:2] for key in case_of if key[1] != "rerank"}
        assert len(shown) == len(measured)
        for backbone, shape in measured:
            ways = [case_of[backbone, shape, way] for way in wanted]
            assert shown[names[backbone] + shapes[shape]] == expected(ways)


def test_packed_and_plain_cells_are_compared_by_the_seeds_that_both_have() -> None:
    comparison = script("benchmarks/packed_tables.py").compared(
        {0: 58.0, 1: 60.0, 2: 59.0}, {0: 57.0, 1: 60.0, 3: 10.0}
    )
    assert comparison["packed"]["mean"] == 59.0
    assert comparison["plain"]["mean"] == 58.5
    assert (comparison["packed_less_plain"]["mean"], comparison["packed_less_plain"]["n"]) == (0.5, 2)

"""What the page's script must bear: flat curves, large seeds, names that steer text."""

import json
from pathlib import Path

import pytest

from mprm.report.corpus_view import ReportConfig
from mprm.report.report import report
from tests.conftest import raw_record, write_jsonl
from tests.report.browser import Browser


@pytest.mark.parametrize("value", [0.1, 0.3387055481228217])
def test_three_seeds_that_agree_on_every_point_do_not_hang_the_page(value: float, tmp_path: Path) -> None:
    assert sum([value] * 3) / 3 != value  # so that the band is a last bit wide
    for seed in range(3):
        folder = tmp_path / "runs" / str(seed)
        points = [{"update": u, "overall": value, "macro_f1": {"bars": value}} for u in range(3)]
        write_jsonl(folder / "curve.jsonl", points)
        (folder / "train.json").write_text(json.dumps({"seed": seed, "model": "base"}))
    report(out=tmp_path / "r.html", runs=tmp_path / "runs")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "r.html")
        assert browser.run("document.querySelectorAll('#charts .mark').length") > 0
        assert browser.errors == []


def test_the_command_names_a_seed_of_many_digits(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0])])
    report(tmp_path / "in", out=tmp_path / "r.html", config=ReportConfig(seed=2**53 + 1))
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "r.html")
        assert f"--seed {2**53 + 1} " in browser.run("document.getElementById('command').textContent")


def test_names_cannot_turn_the_text_around_them(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [raw_record([1.0, 0.0], source="evil\u202egnp\x00\n")])
    report(tmp_path / "in", out=tmp_path / "r.html")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "r.html")
        words = browser.run("document.querySelector('#by-source tbody th').textContent")
        assert words == "evil\\u{202e}gnp\\x00\\x0a"
        assert "\u202e" not in browser.run("document.body.textContent.replace(document.scripts[0].textContent, '')")

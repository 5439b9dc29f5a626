"""The demo from a packed lab to its last table, in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from mprm.cli import run
from mprm_lab import shipped
from mprm_lab.cli import MPRM_LAB
from mprm_lab.shipped import pack_lab
from tests.lab.reproduce.made_runs import make_with_both_labels
from tests.lab.reproduce.test_end_to_end import LAB, hasty


@pytest.mark.slow
def test_the_demo_runs_on_a_packed_lab_to_its_last_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    plan = replace(LAB, policies={**LAB.policies, "small": hasty("internvl", 2)}, demo_policy="small")
    make_with_both_labels(made, plan)
    pack_lab(made, tmp_path / "packed")
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "packed")
    folder = tmp_path / "a demo"
    assert run(["demo", str(folder)], MPRM_LAB) == 0
    printed = capsys.readouterr().out
    assert "[1 of 13] unpack the corpus, draw its pictures: about 10 s" in printed
    assert (folder / "report.html").is_file()
    last = printed.split("[13 of 13]")[1]
    rows = [" ".join(line.split()) for line in last.splitlines()]
    models = ("a random tenth", "a tenth by BIS", "all rollouts (shipped scores)")
    for name in (*models, "one answer", "oracle"):
        row = next(line for line in rows if line.startswith(name))
        assert row.endswith("]")  # the last column is best-of-N, with its interval
    assert "majority vote" in rows  # no candidate of policies as hasty as these states an answer
    assert "best-of-2" in last
    assert (folder / "compare" / "metrics.md").is_file()
    assert run(["demo", str(folder)], MPRM_LAB) == 1
    assert "is there already; choose another folder, or remove it" in capsys.readouterr().err


def test_without_a_shipped_lab_open_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "nothing")
    assert run(["open", str(tmp_path / "lab")], MPRM_LAB) == 1
    assert "this installation ships no lab; make one on a GPU: mprm-lab make DIR" in capsys.readouterr().err
    assert not (tmp_path / "lab").exists()

"""The command around the experiments; what a worker does is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mprm_lab.reproduce.reproduce as library
from mprm.cli.main import run
from tests.lab.reproduce.made_cells import make_folder, measure_nothing

pytest.importorskip("torch")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(library, "workbench", measure_nothing)
    return make_folder(tmp_path)


def test_cells_are_measured_and_counted(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "reproduce", str(lab), "--only", "internvl.bis-5.*", "--seeds", "2", "--jobs", "1"]
    assert run(command) == 0
    shown = capsys.readouterr()
    assert "2 of 2 cells are done, 0 from before." in shown.out
    assert "experiments 2/2: internvl.bis-5.seed" in shown.err
    assert run(command) == 0
    assert "2 of 2 cells are done, 2 from before." in capsys.readouterr().out


def test_the_lab_is_made_before_its_cells_where_that_is_asked_for(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mprm_lab.make

    made, away = [], lab.with_name("away")
    lab.rename(away)

    def make(folder: str, **_options: object) -> None:
        made.append(folder)
        away.rename(folder)

    monkeypatch.setattr(mprm_lab.make, "make_lab", make)
    command = ["lab", "reproduce", str(lab), "--only", "internvl.bis-5.*", "--seeds", "1", "--jobs", "1"]
    assert run(command) == 1
    assert "mprm lab make" in capsys.readouterr().err
    assert run([*command, "--make"]) == 0
    assert run([*command, "--make"]) == 0  # now it is there
    assert made == [str(lab)]
    assert "1 of 1 cells are done" in capsys.readouterr().out


def test_a_failed_cell_is_named_and_the_exit_code_is_1(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "behaviour.json").write_text(json.dumps({"bis-5": "fail"}))
    assert run(["lab", "reproduce", str(lab), "--only", "internvl.bis-5.*", "--seeds", "1", "--jobs", "1"]) == 1
    assert "internvl.bis-5.seed0 failed: Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--force"], "--force replaces results in --out"),
        (["--only", "a", "b"], "takes one pattern, got a b"),
        (["--only", "llama.*"], "no cell is called 'llama.*'"),
        (["--seeds", "0"], "seeds must be from 1"),
        (["--only", "internvl.*", "--jobs", "0"], "jobs must be 1 or more"),
        (["--make", "--dry-run"], "--dry-run makes nothing"),
        (["--make", "--only", "llama.*"], "no cell is called 'llama.*'"),
        (["--make", "--jobs", "0"], "jobs must be 1 or more"),
    ],
)
def test_wrong_use_is_told(lab: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert run(["lab", "reproduce", str(lab), *more]) == 2
    assert message in capsys.readouterr().err


def test_results_that_are_there_are_not_replaced_in_silence(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "lab.json").write_text("{}")
    assert run(["lab", "reproduce", str(lab), "--only", "internvl.bis-5.*", "--out", str(lab)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert not (lab / "ran").exists()


def test_options_of_reproduce_are_refused_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "make", str(tmp_path), "--dry-run"]) == 2
    assert "--dry-run is for mprm lab reproduce" in capsys.readouterr().err
    assert run(["lab", "corpus", str(tmp_path), "--seeds", "3"]) == 2
    assert "--seeds is for mprm lab reproduce" in capsys.readouterr().err
    assert run(["lab", "open", str(tmp_path), "--jobs", "0"]) == 2
    assert "--jobs is for mprm lab reproduce" in capsys.readouterr().err

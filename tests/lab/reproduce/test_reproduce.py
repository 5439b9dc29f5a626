"""The experiments' command; what a worker does is made up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("torch")

import mprm_lab.make
import mprm_lab.reproduce.reproduce as library
from mprm.cli import run as run_program
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm_lab.cli import MPRM_LAB
from mprm_lab.folder import LabFolder
from mprm_lab.reproduce.plan import REFERENCES
from mprm_lab.reproduce.reproduce import dry_run, reproduce
from mprm_lab.world import draw, problem_named
from tests.lab.reproduce.made_runs import TINY, MeasureNothing, done, make_folder

CONDITIONS = ["full", "full-soft", "random-10", "bis-10"]


def ran(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "ran").read_text().splitlines()]


def test_every_run_is_done_once_with_the_rate_of_its_share(tmp_path: Path) -> None:
    make_folder(tmp_path)
    shown: list[str] = []

    @contextmanager
    def progress(title: str, total: int | None, unit: str = "items") -> Iterator[Any]:
        shown.append(title)
        left = total or 0

        def advance(n: int, note: str = "") -> None:
            nonlocal left
            left -= n
            shown.append(note)

        yield advance
        assert left == 0, "the costs of all runs"

    outcome = done(tmp_path, jobs=2, progress=progress)
    runs = [f"internvl.{name}.seed0" for name in REFERENCES]
    runs += [f"internvl.{name}.seed{seed}" for seed in (0, 1) for name in CONDITIONS]
    assert (outcome.n_runs, outcome.n_kept, outcome.failed) == (12, 0, {})
    assert sorted(ran(tmp_path)) == sorted(runs)
    rates = dict(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    assert (rates["internvl.bis-10.seed0"], rates["internvl.full.seed1"]) == ("0.2", "0.1")
    assert "experiments: 12 of 12 runs" in shown
    assert shown[-1].startswith("12/12: internvl.")
    again = done(tmp_path, jobs=2)
    assert (again.n_runs, again.n_kept) == (12, 12)
    assert len(ran(tmp_path)) == 12


def test_trials_try_every_rate_on_all_data_and_each_fraction(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert done(tmp_path, trials=True).n_runs == 4
    rates = dict(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    names = {f"internvl.choose-lr-{r}-{data}.seed1000": r for r in ("0.1", "0.2") for data in ("full", "random-10")}
    assert rates == names


def test_a_failing_run_is_reported_and_tried_again_by_the_next_command(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "behaviour.json").write_text(json.dumps({"bis-10": "fail", "full-soft": "die"}))
    outcome = done(tmp_path)
    assert sorted(outcome.failed) == [f"internvl.{arm}.seed{s}" for arm in ("bis-10", "full-soft") for s in (0, 1)]
    assert "nothing comes of it" in outcome.failed["internvl.bis-10.seed0"]
    assert "died with status 3" in outcome.failed["internvl.full-soft.seed1"]
    assert outcome.failed["internvl.bis-10.seed0"].startswith("Traceback")
    logs = [path.read_text() for path in (tmp_path / "logs").iterdir()]
    assert any("works on internvl.full.seed0" in log for log in logs)
    (tmp_path / "behaviour.json").unlink()
    n_before = len(ran(tmp_path))
    mended = done(tmp_path)
    assert (mended.n_kept, mended.failed) == (8, {})
    assert len(ran(tmp_path)) == n_before + 4


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for the worker among the processes of Linux")
def test_a_killed_command_goes_on_and_repeats_nothing_that_was_finished(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "behaviour.json").write_text(json.dumps({"bis-10": "hang"}))
    code = (
        "import sys; from tests.lab.reproduce.made_runs import Path, done\n"
        "if __name__ == '__main__': done(Path(sys.argv[1]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    running = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": paths})
    try:
        deadline = time.monotonic() + 120
        while not any(".bis-10." in line for line in (ran(tmp_path) if (tmp_path / "ran").exists() else [])):
            assert time.monotonic() < deadline, "the worker did not come to the run that hangs"
            time.sleep(0.1)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    deadline = time.monotonic() + 10
    while (worker := Path(f"/proc/{(tmp_path / 'pid').read_text()}")).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.exists()  # it ends with the command, in the middle of its run
    before = ran(tmp_path)
    finished = {path.stem for path in (tmp_path / "results").glob("*.json")}
    assert finished == set(before) - {before[-1]}
    (tmp_path / "behaviour.json").unlink()
    outcome = done(tmp_path)
    assert outcome.failed == {}
    after = ran(tmp_path)[len(before) :]
    assert not finished & set(after)
    assert before[-1] in after
    assert len(finished) + len(after) == 12


def test_only_some_runs_can_be_asked_for(tmp_path: Path) -> None:
    make_folder(tmp_path)
    outcome = done(tmp_path, only="*.bis-*.seed1")
    assert outcome.n_runs == 1
    assert ran(tmp_path) == ["internvl.bis-10.seed1"]
    with pytest.raises(ConfigError, match="no run is called 'llama"):
        reproduce(tmp_path, TINY, only="llama*")


def test_runs_of_other_data_or_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    make_folder(tmp_path)
    done(tmp_path)
    (tmp_path / "benchmark.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"internvl\.base\.seed0\.json was made otherwise: inputs was"):
        done(tmp_path)
    with pytest.raises(ConfigError, match="was made otherwise"):  # the page has all that are finished
        done(tmp_path, only="*.full.*")


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    done(tmp_path, only="*.full.*")
    for text in ("{}", '{"settings": {', "[]"):
        (tmp_path / "results" / "internvl.full.seed0.json").write_text(text)
        with pytest.raises(DataError, match=r"internvl\.full\.seed0\.json is damaged: .*the run is repeated"):
            done(tmp_path)


def test_what_the_lab_lacks_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "validation.jsonl").unlink()
    with pytest.raises(InputNotFoundError, match=r"validation\.jsonl: not there; mprm-lab make"):
        reproduce(tmp_path, TINY)


def test_pictures_that_are_not_there_are_drawn(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "images").rmdir()
    named = {"corpus": {"image": "grid-sum/1.png"}, "benchmark": {"image": ["bars-range/2.png"]},
             "candidates": {"images": ["grid-sum/1.png"]}}  # fmt: skip
    for name, record in named.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    said: list[str] = []
    done(tmp_path, log=said.append)
    assert f"2 pictures were not in {tmp_path / 'images'} and have been drawn" in said
    with Image.open(tmp_path / "images" / "grid-sum" / "1.png") as image:
        assert image.convert("RGB").tobytes() == draw(problem_named("grid-sum/1")).convert("RGB").tobytes()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for line, words in (
        (b'{"image": 3}', r":3: not a record of a lab: .*got `int`"),
        (b'{"image": "\xff.png"}', ":3: not a record of a lab: .*utf-8"),
        (b'{"image": "grid-sum/3"}', ":3: .*'grid-sum/3' names no problem of the lab; expected SOURCE/SEED.png"),
        (b'{"image": "cats/3.png"}', ":3: .*'cats/3.png' names no problem of the lab"),
    ):
        (tmp_path / "validation.jsonl").write_bytes(b"{}\n\n" + line + b"\n")
        with pytest.raises(DataError, match=r"validation\.jsonl" + words):
            done(tmp_path)


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / ".reproduce" / "run").mkdir(parents=True)
    (tmp_path / ".reproduce" / "run" / "weights").write_text("x")
    done(tmp_path, only="*.base.*")
    assert not (tmp_path / ".reproduce").exists()


@pytest.mark.parametrize("name", ["results", "images", "logs", "runs"])
def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_done(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path)
    shutil.rmtree(tmp_path / name, ignore_errors=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} is in the way: a folder belongs there"):
        done(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_verdicts_on_other_candidates_are_not_taken_for_these(tmp_path: Path) -> None:
    make_folder(tmp_path)
    said: list[str] = []
    for answer, stated in (("7", 7), ("8", 7), ("8", 8)):
        record = {
            "id": "1",
            "question": "?",
            "answer": answer,
            "candidates": [{"text": f"So \\boxed{{{stated}}}", "steps": ["So"]}],
        }
        (tmp_path / "candidates.jsonl").write_text(json.dumps(record) + "\n")
        os.utime(tmp_path / "candidates.jsonl", (0, 0))  # as a copy that keeps times would be
        folder = LabFolder.read(tmp_path, ("internvl",))
        folder.grade_candidates(said.append)
        folder.grade_candidates(said.append)
        assert json.loads(folder.graded.read_text())["labels"] == [int(answer == str(stated))]
    assert said == ["checking the answers of 1 candidates"] * 3


def test_a_dry_run_lists_runs_and_learns_from_finished_ones_how_long_they_take(tmp_path: Path) -> None:
    make_folder(tmp_path)
    lines = list(dry_run(tmp_path, TINY))
    assert not (tmp_path / "results").exists()
    assert lines[0] == "internvl.base.seed0: 0 of all rollouts"
    assert "internvl.bis-10.seed1: 0.1 of all rollouts" in lines
    assert lines[-1].startswith("12 of 12 runs to do")
    assert lines[-1].endswith("known once some are finished.")
    done(tmp_path, replace(TINY, seeds=1))
    lines = list(dry_run(tmp_path, TINY))
    assert "internvl.bis-10.seed0: done in 2 s" in lines
    assert lines[-1].startswith("4 of 12 runs to do")
    assert "as long as the finished ones took" in lines[-1]
    trials = list(dry_run(tmp_path, TINY, trials=True))
    assert trials[0] == "internvl.choose-lr-0.1-full.seed1000: 1 of all rollouts"
    assert trials[-1].startswith("4 of 4 runs to do")


def test_a_second_command_in_the_same_lab_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with library._exclusive(tmp_path / ".reproduce"), pytest.raises(ConfigError, match="another mprm-lab reproduce"):
        done(tmp_path)


def test_the_longest_runs_go_first_and_one_process_does_them_all(tmp_path: Path) -> None:
    make_folder(tmp_path)
    done(tmp_path)
    conditions = [name.split(".")[1] for name in ran(tmp_path)]
    assert conditions[:4] == ["full", "full-soft"] * 2  # a pass over all rollouts each
    assert set(conditions[-4:]) == set(REFERENCES)
    assert len(list((tmp_path / "logs").iterdir())) == 1


# The command line.


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(library, "Runner", lambda folder, _plan: MeasureNothing(folder.path))
    return make_folder(tmp_path)


def run(*words: str) -> int:
    return run_program(list(words), MPRM_LAB)


ONE = ("--only", "internvl.bis-5.*", "--seeds", "1", "--jobs", "1")


def test_runs_are_done_and_counted(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", str(lab), "--only", "internvl.bis-5.*", "--seeds", "2", "--jobs", "1"]
    assert run(*command) == 0
    assert "2 of 2 runs are done, 0 from before." in capsys.readouterr().out
    assert run(*command) == 0
    assert "2 of 2 runs are done, 2 from before." in capsys.readouterr().out


def test_the_lab_is_made_before_its_runs_where_that_is_asked_for(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, away = [], lab.with_name("away")
    lab.rename(away)

    def make(folder: Path, **_options: object) -> None:
        made.append(folder)
        away.rename(folder)

    monkeypatch.setattr(mprm_lab.make, "make_lab", make)
    assert run("reproduce", str(lab), *ONE) == 1
    assert "mprm-lab make" in capsys.readouterr().err
    assert run("reproduce", str(lab), *ONE, "--make") == 0
    assert run("reproduce", str(lab), *ONE, "--make") == 0  # now it is there
    assert made == [lab]
    assert "1 of 1 runs are done" in capsys.readouterr().out


def test_a_failed_run_is_named_and_the_exit_code_is_1(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "behaviour.json").write_text(json.dumps({"bis-5": "fail"}))
    assert run("reproduce", str(lab), *ONE) == 1
    assert "internvl.bis-5.seed0 failed: Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--force"], "--force replaces results in --out"),
        (["--only", "llama.*"], "no run is called 'llama.*'"),
        (["--seeds", "0"], "seeds must be at least 1 and at most 1000"),
        (["--seeds", "1001"], "seeds must be at least 1 and at most 1000"),
        (["--only", "internvl.*", "--jobs", "0"], "jobs must be at least 1"),
        (["--make", "--dry-run"], "--dry-run makes nothing"),
        (["--make", "--only", "llama.*"], "no run is called 'llama.*'"),
    ],
)
def test_wrong_use_is_told(lab: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert run("reproduce", str(lab), *more) == 2
    assert message in capsys.readouterr().err


def test_results_that_are_there_are_not_replaced_in_silence(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "lab.json").write_text("{}")
    assert run("reproduce", str(lab), "--only", "internvl.bis-5.*", "--out", str(lab)) == 1
    assert "exists already" in capsys.readouterr().err
    assert not (lab / "ran").exists()

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mprm.cli.main import run
from mprm.errors import ConfigError, DataError, InputNotFoundError, MprmError
from mprm_lab.reproduce.dry_run import dry_run
from mprm_lab.reproduce.inputs import find_inputs, judge_once
from mprm_lab.reproduce.reproduce import reproduce
from mprm_lab.world import problem_named
from mprm_lab.world.drawing import draw
from tests.lab.reproduce.made_cells import TINY, make_folder, measure_nothing

pytest.importorskip("torch")

ARMS = ["full", "full-soft", "random-10", "bis-10"]


def ran(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "ran").read_text().splitlines()]


def test_every_cell_is_measured_once_with_the_rate_that_was_chosen(tmp_path: Path) -> None:
    make_folder(tmp_path)
    said: list[str] = []
    found = reproduce(tmp_path, TINY, jobs=2, say=said.append, make=measure_nothing)
    cells = ["internvl.base.seed0", *(f"internvl.{arm}.seed{seed}" for seed in (0, 1) for arm in ARMS)]
    assert (found.n_cells, found.n_kept, found.failed) == (9, 0, {})
    assert sorted(ran(tmp_path)) == sorted([*cells, *(f"internvl.choose-lr-{r}.seed1000" for r in (0.1, 0.2))])
    # of 0.1 and 0.2 the latter came to 0.7, the better value
    rates = {line.split()[1] for line in (tmp_path / "ran").read_text().splitlines() if ".bis-10." in line}
    assert rates == {"0.2"}
    assert said[0] == "learning rates: 2 to do, 0 done before"
    assert any(line.startswith("experiments 9/9: internvl.") for line in said)
    assert all(line.endswith(" left") for line in said if "/" in line)
    again = reproduce(tmp_path, TINY, jobs=2, say=said.append, make=measure_nothing)
    assert (again.n_cells, again.n_kept) == (9, 9)
    assert len(ran(tmp_path)) == 11


def test_untrained_weights_need_no_rate(tmp_path: Path) -> None:
    make_folder(tmp_path)
    found = reproduce(tmp_path, TINY, only="*.base.*", jobs=1, say=lambda _: None, make=measure_nothing)
    assert (found.n_cells, ran(tmp_path)) == (1, ["internvl.base.seed0"])


def test_a_rate_that_was_chosen_before_is_not_chosen_again(tmp_path: Path) -> None:
    make_folder(tmp_path)
    reproduce(tmp_path, TINY, jobs=1, rates={"internvl": 0.05}, say=lambda _: None, make=measure_nothing)
    assert not any("choose-lr" in name for name in ran(tmp_path))
    rates = {line.split()[1] for line in (tmp_path / "ran").read_text().splitlines() if ".bis-10." in line}
    assert rates == {"0.05"}
    with pytest.raises(ConfigError, match="rates name no learning rate for internvl"):
        reproduce(tmp_path, TINY, jobs=1, rates={}, make=measure_nothing)


def test_a_failing_cell_is_reported_and_tried_again_by_the_next_command(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "behaviour.json").write_text(json.dumps({"bis-10": "fail", "full-soft": "die"}))
    said: list[str] = []
    found = reproduce(tmp_path, TINY, jobs=1, say=said.append, make=measure_nothing)
    assert sorted(found.failed) == [f"internvl.{arm}.seed{s}" for arm in ("bis-10", "full-soft") for s in (0, 1)]
    assert "nothing comes of it" in found.failed["internvl.bis-10.seed0"]
    assert "died with status 3" in found.failed["internvl.full-soft.seed1"]
    assert any("bis-10.seed0 FAILED: ValueError: nothing comes of it" in line for line in said)
    (tmp_path / "behaviour.json").unlink()
    n_before = len(ran(tmp_path))
    mended = reproduce(tmp_path, TINY, jobs=1, say=said.append, make=measure_nothing)
    assert (mended.n_kept, mended.failed) == (5, {})
    assert len(ran(tmp_path)) == n_before + 4


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for the worker among the processes of Linux")
def test_a_killed_command_goes_on_and_repeats_nothing_that_was_finished(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "behaviour.json").write_text(json.dumps({"bis-10": "hang"}))
    code = (
        "import sys; from tests.lab.reproduce.made_cells import TINY, measure_nothing\n"
        "from mprm_lab.reproduce.reproduce import reproduce\n"
        "if __name__ == '__main__': reproduce(sys.argv[1], TINY, jobs=1, make=measure_nothing)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    running = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": paths})
    try:
        deadline = time.monotonic() + 60
        while not any(".bis-10." in line for line in (ran(tmp_path) if (tmp_path / "ran").exists() else [])):
            assert time.monotonic() < deadline, "the worker did not come to the cell that hangs"
            time.sleep(0.1)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    deadline = time.monotonic() + 10
    while (worker := Path(f"/proc/{(tmp_path / 'pid').read_text()}")).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.exists()  # it ends with the command, in the middle of its cell
    before = ran(tmp_path)
    finished = {path.stem for path in (tmp_path / "cells").glob("*.json")}
    assert finished == set(before) - {before[-1]}
    (tmp_path / "behaviour.json").unlink()
    found = reproduce(tmp_path, TINY, jobs=1, say=lambda _line: None, make=measure_nothing)
    assert found.failed == {}
    after = ran(tmp_path)[len(before) :]
    assert not finished & set(after)
    assert before[-1] in after
    assert len(finished) + len(after) == 11


def test_only_some_cells_can_be_asked_for(tmp_path: Path) -> None:
    make_folder(tmp_path)
    found = reproduce(tmp_path, TINY, only="*.bis-*.seed1", jobs=1, say=lambda _line: None, make=measure_nothing)
    assert found.n_cells == 1
    assert [name for name in ran(tmp_path) if "choose" not in name] == ["internvl.bis-10.seed1"]
    with pytest.raises(ConfigError, match="no cell is called 'llama"):
        reproduce(tmp_path, TINY, only="llama*")


def test_cells_of_other_data_or_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    make_folder(tmp_path)
    reproduce(tmp_path, TINY, jobs=1, say=lambda _line: None, make=measure_nothing)
    (tmp_path / "benchmark.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"internvl\.base\.seed0\.json was measured otherwise: inputs was"):
        reproduce(tmp_path, TINY, jobs=1, say=lambda _line: None, make=measure_nothing)


def test_without_any_rate_to_go_by_the_command_stops(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "behaviour.json").write_text(json.dumps({"choose-lr-0.1": "fail"}))
    with pytest.raises(MprmError, match="no learning rate can be chosen"):
        reproduce(tmp_path, TINY, jobs=1, say=lambda _line: None, make=measure_nothing)


def test_what_the_lab_lacks_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "validation.jsonl").unlink()
    with pytest.raises(InputNotFoundError, match=r"validation\.jsonl: not there; mprm lab make"):
        reproduce(tmp_path, TINY)


def test_pictures_that_are_not_there_are_drawn(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "images").rmdir()
    named = {"corpus": {"image": "grid-sum/1.png"}, "benchmark": {"image": ["bars-range/2.png"]},
             "candidates": {"images": ["grid-sum/1.png"]}}  # fmt: skip
    for name, record in named.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    said: list[str] = []
    reproduce(tmp_path, TINY, jobs=1, say=said.append, make=measure_nothing)
    assert f"2 pictures were not in {tmp_path / 'images'} and have been drawn" in said
    assert (tmp_path / "images" / "grid-sum" / "1.png").read_bytes() == draw(problem_named("grid-sum/1"))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for line, words in (
        (b'{"image": 3}', r":3: not a record of a lab: .*got `int`"),
        (b'{"image": "\xff.png"}', ":3: not a record of a lab: .*utf-8"),
        (b'{"image": "grid-sum/3"}', ": 'grid-sum/3' is not in .*images, and no picture of the lab"),
        (b'{"image": "cats/3.png"}', ": 'cats/3.png' names no problem of the lab"),
    ):
        (tmp_path / "validation.jsonl").write_bytes(b"{}\n\n" + line + b"\n")
        with pytest.raises(DataError, match=r"validation\.jsonl" + words):
            reproduce(tmp_path, TINY, jobs=1, say=lambda _: None, make=measure_nothing)


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_what_stands_where_the_work_goes_is_left_alone(tmp_path: Path, kind: str) -> None:
    folder, mine = tmp_path / "lab", tmp_path / "mine"
    folder.mkdir()
    make_folder(folder)
    mine.mkdir()
    (mine / "notes").write_text("mine")
    if kind == "link":
        (folder / "work").symlink_to(mine)
    else:
        (mine if kind == "folder" else mine / "notes").rename(folder / "work")
    with pytest.raises(ConfigError, match="work is in the way"):
        reproduce(folder, TINY, jobs=1, make=measure_nothing)
    words = ["lab", "reproduce", str(folder), "--make", "--only", "internvl.base.*"]
    assert run(words) == 2  # before anything is made
    assert (folder / "work").exists()
    assert next(tmp_path.rglob("notes" if kind != "file" else "work")).read_text() == "mine"


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for left in ({}, {"work/.mprm": "", "work/encoded": "x", "work/cell/weights": "x"}):
        (tmp_path / "work").mkdir(exist_ok=True)
        for name, text in left.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        reproduce(tmp_path, TINY, only="*.base.*", jobs=1, say=lambda _: None, make=measure_nothing)
        assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("name", ["cells", "images", "logs", "runs"])
def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_done(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path)
    shutil.rmtree(tmp_path / name, ignore_errors=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} is in the way: a folder belongs there"):
        reproduce(tmp_path, TINY, jobs=1, make=measure_nothing)
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
        inputs = find_inputs(tmp_path, ("internvl",))
        judge_once(inputs, said.append)
        judge_once(inputs, said.append)
        assert json.loads(inputs.judged.read_text())["labels"] == [int(answer == str(stated))]
    assert said == ["checking the answers of 1 candidates"] * 3


def test_a_dry_run_of_untrained_weights_chooses_no_rates(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert next(iter(dry_run(tmp_path, TINY, only="*.base.*"))).startswith("internvl.base.seed0: ")


def test_a_dry_run_lists_cells_and_learns_from_finished_ones_how_long_they_take(tmp_path: Path) -> None:
    make_folder(tmp_path)
    lines = list(dry_run(tmp_path, TINY))
    assert not (tmp_path / "cells").exists()
    assert lines[0] == "internvl.choose-lr-0.1.seed1000: 1 of all rollouts"
    assert "internvl.bis-10.seed1: 0.1 of all rollouts" in lines
    assert lines[-1].startswith("11 of 11 cells to do (2 of all to choose learning rates)")
    assert lines[-1].endswith("known once some are finished.")
    reproduce(tmp_path, replace(TINY, seeds=1), jobs=1, say=lambda _line: None, make=measure_nothing)
    lines = list(dry_run(tmp_path, TINY))
    assert "internvl.bis-10.seed0: done in 2 s" in lines
    assert lines[-1].startswith("4 of 11 cells to do")
    assert "as long as the finished ones took" in lines[-1]
